// f32 to f16 with round to nearest even, in integers: what a conversion instruction rounds to is the driver's choice.

uint half_bits(float value) {
    uint bits = floatBitsToUint(value);
    uint sign = (bits >> 16u) & 0x8000u;
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x47800000u) {
        return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Below the smallest normal half, whose steps are of 2^-24: the mantissa shifted down to that step.
        uint shift = 126u - (magnitude >> 23u);
        if (shift > 24u) { return sign; }
        uint mantissa = (magnitude & 0x7fffffu) | 0x800000u;
        uint steps = mantissa >> shift;
        uint rest = mantissa & ((1u << shift) - 1u);
        uint middle = 1u << (shift - 1u);
        bool is_up = rest > middle || (rest == middle && (steps & 1u) != 0u);
        return sign | (steps + (is_up ? 1u : 0u));
    }
    uint rounded = magnitude + 0xfffu + ((magnitude >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

uint pack_half(float low, float high) { return half_bits(low) | (half_bits(high) << 16u); }
