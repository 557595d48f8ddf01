//! Twins of `group_pairs` and `resolve_groups`.

use super::{Control, at};
use crate::layout::{
    GRID_WORDS, GROUP_WORDS, GroupPairsPush, KIND_GRIDS, NO_SLOT, ResolveGroupsPush, TILE_WORDS,
};

/// A number of a pair or a tile as the kernels store it.
fn word(value: usize) -> u32 {
    u32::try_from(value).expect("invariant: pairs are counted in u32")
}

/// The picks sorted by expert, and within an expert by token.
///
/// routes `[tokens, 2, experts_used]`; pairs `[pair_count]`; groups `[expert_count, 2]`: where an expert's pairs begin, and how many
/// there are.
pub fn group_pairs(
    control: &Control,
    push: &GroupPairsPush,
    experts_used: u32,
    routes: &[u32],
    pairs: &mut [u32],
    groups: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    let used = at(experts_used);
    let picks = (0..at(push.pair_count)).map(|pair| routes[pair / used * 2 * used + pair % used]);
    let mut sorted: Vec<(u32, usize)> = picks.zip(0..).collect();
    sorted.sort_unstable();
    for (target, &(_, pair)) in pairs.iter_mut().zip(&sorted) {
        *target = word(pair);
    }
    for (group, expert) in groups.chunks_exact_mut(at(GROUP_WORDS)).zip(0..) {
        let begin = sorted.partition_point(|&(other, _)| other < expert);
        let end = sorted.partition_point(|&(other, _)| other <= expert);
        group.copy_from_slice(&[word(begin), word(end - begin)]);
    }
}

/// Tiles of the experts that have pairs, by kind; or the stop word, when one of them is in no slot.
///
/// groups as [`group_pairs`] leaves them, `[expert_count, 2]`; table: slots, this layer's from `table_first` on; tiles
/// `[kinds * kind_stride, 3]`; grids `[kinds, 2, 3]`, of which the last word of each is written.
pub fn resolve_groups(
    control: &mut Control,
    push: &ResolveGroupsPush,
    groups: &[u32],
    table: &[u32],
    tiles: &mut [u32],
    grids: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    let table = &table[at(push.table_first)..][..at(push.expert_count)];
    let used: Vec<(u32, [u32; 2])> = groups
        .chunks_exact(at(GROUP_WORDS))
        .zip(table)
        .map(|(group, &slot)| (slot, [group[0], group[1]]))
        .filter(|(_, [_, count])| *count > 0)
        .collect();
    if used.iter().any(|&(slot, _)| slot == NO_SLOT) {
        control.stop = push.layer + 1;
        return;
    }
    let sizes: Vec<u32> = (0..push.kinds).rev().map(|halvings| push.tile_max >> halvings).collect();
    let mut made = vec![0; sizes.len()];
    for (slot, [begin, count]) in used {
        let kind = sizes.iter().position(|&size| count <= size).unwrap_or(sizes.len() - 1);
        let size = sizes[kind];
        for first in (0..count).step_by(at(size)) {
            let place = kind * at(push.kind_stride) + made[kind];
            tiles[place * at(TILE_WORDS)..][..at(TILE_WORDS)].copy_from_slice(&[
                slot,
                begin + first,
                size.min(count - first),
            ]);
            made[kind] += 1;
        }
    }
    for (kind, made) in made.into_iter().enumerate() {
        for grid in 0..at(KIND_GRIDS) {
            grids[(kind * at(KIND_GRIDS) + grid + 1) * at(GRID_WORDS) - 1] = word(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens of two picks: experts 2 and 0, 2 and 3, 0 and 2. The weights are no picks.
    const ROUTES: [u32; 12] = [2, 0, 9, 9, 2, 3, 9, 9, 0, 2, 9, 9];

    fn grouped() -> ([u32; 6], [u32; 8]) {
        let (mut pairs, mut groups) = ([7; 6], [7; 8]);
        let push = GroupPairsPush { pair_count: 6 };
        group_pairs(&Control::default(), &push, 2, &ROUTES, &mut pairs, &mut groups);
        (pairs, groups)
    }

    #[test]
    fn pairs_are_sorted_by_expert_and_then_by_token() {
        assert_eq!(grouped(), ([1, 4, 0, 2, 5, 3], [0, 2, 2, 0, 2, 3, 5, 1]));
    }

    #[test]
    fn an_expert_takes_the_smallest_kind_of_tile_that_holds_its_pairs() {
        let (_, groups) = grouped();
        let mut push = ResolveGroupsPush {
            expert_count: 4,
            layer: 6,
            table_first: 1,
            tile_max: 2,
            kinds: 2,
            kind_stride: 3,
        };
        let table = [NO_SLOT, 40, NO_SLOT, 42, 43];
        let (mut tiles, mut grids) = ([7; 18], [1; 12]);
        let mut control = Control::default();
        resolve_groups(&mut control, &push, &groups, &table, &mut tiles, &mut grids);
        // Of one pair: expert 3; of two: expert 0, and expert 2 in two tiles.
        assert_eq!(tiles, [43, 5, 1, 7, 7, 7, 7, 7, 7, 40, 0, 2, 42, 2, 2, 42, 4, 1]);
        assert_eq!(grids, [1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 3]);
        assert_eq!(control.stop, 0, "expert 1 is in no slot, and nobody picked it");
        push.table_first = 0;
        resolve_groups(&mut control, &push, &groups, &table, &mut tiles, &mut grids);
        assert_eq!(control.stop, 7, "expert 0 is missing now");
    }
}
