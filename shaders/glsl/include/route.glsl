// The choice of experts from a token's router logits, for one subgroup: picks, weights and, resolved, slots (route.comp).
//
// The kernel that includes this declares EXPERTS_USED and PER_LANE, its push constants hold the fields of RoutePush, and it
// has buffers logits, table, routes, tiles, pairs and report.

const uint NAN_BITS = 0x7fc00000u;

void route_token(uint token, uint lane) {
    float chances[PER_LANE];
    uint is_broken = 0u;
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        uint expert = lane + i * SUBGROUP;
        float logit = expert < push.expert_count ? logits[token * push.expert_count + expert] : 0.0;
        // By its bits: a driver may assume that arithmetic never meets a NaN.
        if ((floatBitsToUint(logit) & 0x7fffffffu) > 0x7f800000u) { is_broken = 1u; }
        chances[i] = expert < push.expert_count ? 1.0 / (1.0 + exp(-logit)) : -1.0;
    }
    is_broken = subgroupMax(is_broken);

    uint picks[EXPERTS_USED];
    float weights[EXPERTS_USED];
    float total = 0.0;
    [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
        float best = -1.0;
        uint best_expert = NO_SLOT;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            // Ascending experts and a strict comparison: the lower index wins within a lane.
            if (chances[i] > best) {
                best = chances[i];
                best_expert = lane + i * SUBGROUP;
            }
        }
        float largest = subgroupMax(best);
        uint pick = subgroupMin(best == largest ? best_expert : NO_SLOT);
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            if (lane + i * SUBGROUP == pick) { chances[i] = -2.0; }
        }
        picks[j] = pick;
        weights[j] = largest;
        total += largest;
    }

    if (lane != 0u) { return; }
    uint at = token * 2u * EXPERTS_USED;
    [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
        // With a NaN among the logits nobody can be picked: the first experts stand in, with NaN for their weights, which
        // is found again at the output.
        uint pick = is_broken != 0u ? j : picks[j];
        uint weight = is_broken != 0u ? NAN_BITS : floatBitsToUint(weights[j] / total * push.weights_scale);
        routes[at + j] = pick;
        routes[at + EXPERTS_USED + j] = weight;
        report[push.report_first + at + j] = pick;
        report[push.report_first + at + EXPERTS_USED + j] = weight;
        if (push.is_resolved != 0u) {
            uint slot = table[push.table_first + pick];
            tiles[j * TILE_WORDS] = slot;
            tiles[j * TILE_WORDS + 1u] = j;
            tiles[j * TILE_WORDS + 2u] = 1u;
            pairs[j] = j;
            if (slot == NO_SLOT) { control[CONTROL_STOP] = push.layer + 1u; }
        }
    }
}
