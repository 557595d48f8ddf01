// Q4_1, as GGUF stores it: a block of 32 values is five words. Word 0 holds the f16 scale d (low half) and offset m
// (high half); word 1 + p holds values 4p .. 4p + 3 in the low and 16 + 4p .. 16 + 4p + 3 in the high nibbles of its
// bytes. value = d * q + m, so eight values of a row times x are d * (q . x) + m * sum(x): one weight word a lane and
// step, and the sum of x is shared by all rows.

// The eight activations that meet one weight word.
struct Slice {
    vec4 low;
    vec4 high;
    float sum;
};

Slice make_slice(vec4 low, vec4 high) {
    vec4 both = low + high;
    return Slice(low, high, (both.x + both.y) + (both.z + both.w));
}

// The part of a dot product that one weight word adds.
float q4_1_dot(uint word, vec2 scale_offset, Slice x) {
    vec4 low = vec4(float(word & 15u), float((word >> 8u) & 15u), float((word >> 16u) & 15u), float((word >> 24u) & 15u));
    vec4 high = vec4(float((word >> 4u) & 15u), float((word >> 12u) & 15u), float((word >> 20u) & 15u), float(word >> 28u));
    return scale_offset.x * (dot(low, x.low) + dot(high, x.high)) + scale_offset.y * x.sum;
}
