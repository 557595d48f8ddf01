// f32 to f16 with round to nearest even, in integers: what a conversion instruction rounds to is the driver's choice.

uint half_bits(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = (bits >> 16u) & 0x8000u;
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x47800000u) {
        return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Below the smallest normal half: adding 0.5 rounds to a multiple of 2^-24, the step of f16 there.
        return sign | (floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) - 0x3f000000u);
    }
    uint rounded = magnitude + 0xfffu + ((magnitude >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

uint pack_half(float low, float high) { return half_bits(low) | (half_bits(high) << 16u); }
