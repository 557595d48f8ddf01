//! `argmax` against its twin: bit for bit, for it only compares.

use flint_shaders::kernels::ARGMAX;
use flint_shaders::layout::{ArgmaxPush, NO_SLOT};
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Lanes, Random, count, device, words};

/// The result of each row, after comparison with the twin.
fn run(lanes: Lanes, rows: &[Vec<f32>], parts: u32) -> Vec<u32> {
    let Some(device) = device() else { return Vec::new() };
    let row_count = count(rows.len());
    let push = ArgmaxPush { column_count: count(rows[0].len()), parts, counter_first: 2 };
    let control = Control { token_count: row_count, ..Control::default() };
    let source = rows.concat();
    let partial = vec![99u32; (row_count * parts * 2) as usize + 2];
    let mut result = vec![99u32; rows.len() + 1];
    let counters = vec![0u32; rows.len() + 3];
    let what = format!("{push:?}, {row_count} rows, {lanes:?}");
    let groups = [parts, row_count, 1];
    let call = Call { kernel: &ARGMAX, lanes, constants: &[], push: push.bytes(), groups };
    let after = device.run(&call, &control, &[&[words(&source)], &[&partial], &[&result], &[&counters]]);
    reference::argmax(&control, &push, row_count, &source, &mut result);
    assert_eq!(after[3][0], result, "{what}: result");
    assert_eq!(after[4][0], counters, "{what}: counters are zero again");
    assert_eq!(after[2][0][partial.len() - 2..], [99, 99], "{what}: past the last part");
    result.truncate(rows.len());
    result
}

#[test]
fn argmax_finds_the_lowest_index_of_the_largest() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for column_count in [1, 7, 8, 9, 63, 64, 65, 1009] {
            for parts in [1, 2, 3, 16] {
                let mut random = Random::new(u64::from(column_count * 16 + parts));
                let mut rows: Vec<Vec<f32>> = (0..3).map(|_| random.values(column_count)).collect();
                // The largest value stands in the second row at three places, in the third at its end.
                let last = rows[1].len() - 1;
                for place in [last, last / 2, last / 3] {
                    rows[1][place] = 2.0;
                }
                rows[2][last] = 2.0;
                let result = run(lanes, &rows, parts);
                assert_eq!(result[1..], [(column_count - 1) / 3, column_count - 1]);
            }
        }
    }
}

#[test]
fn argmax_of_equal_or_lowest_values_is_the_first() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        let rows = [vec![0.25; 100], vec![f32::MIN; 100], vec![-0.0; 100]];
        assert_eq!(run(lanes, &rows, 7), [0, 0, 0], "{lanes:?}");
    }
}

#[test]
fn argmax_gives_no_token_when_a_value_is_not_finite() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for broken in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 50, 99] {
                let mut rows = [vec![0.0; 100], vec![1.0; 100]];
                rows[1][place] = broken;
                assert_eq!(run(lanes, &rows, 5), [0, NO_SLOT], "{broken} at {place}, {lanes:?}");
            }
        }
    }
}
