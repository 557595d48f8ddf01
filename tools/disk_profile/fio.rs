//! The job of fio that measures the same as a row, where fio can. Pure.

use std::path::{Path, PathBuf};

use flint_rt::base::limits::POOL_THREADS_MAX;
use flint_rt::disk::profile::{Pattern, ProfileRow, ReadEngine};

/// The command line; `seconds` is how long it runs. Nothing where several threads of ours share one sequence: each of fio's
/// reads one of its own.
pub(super) fn job(row: &ProfileRow, files: &[PathBuf], is_direct: bool, seconds: u32) -> Option<String> {
    let has_threads = !matches!(row.engine, ReadEngine::Ring | ReadEngine::RingPlain);
    if row.pattern == Pattern::Sequential && has_threads && row.depth > 1 {
        return None;
    }
    let threads = row.depth.min(u32::try_from(POOL_THREADS_MAX).unwrap_or(u32::MAX));
    let engine = match row.engine {
        ReadEngine::Ring => {
            format!("--ioengine=io_uring --fixedbufs --registerfiles --iodepth={}", row.depth)
        }
        ReadEngine::RingPlain => format!("--ioengine=io_uring --iodepth={}", row.depth),
        ReadEngine::Pool | ReadEngine::Buffered => {
            format!("--ioengine=psync --numjobs={threads} --thread --group_reporting")
        }
        ReadEngine::Mmap => format!("--ioengine=mmap --numjobs={} --thread --group_reporting", row.depth),
    };
    let rw = match row.pattern {
        Pattern::Random => "randread",
        Pattern::Sequential => "read",
    };
    let direct = u8::from(row.engine.is_direct() && is_direct);
    let names: Vec<String> = files.iter().map(|path| escaped(path)).collect();
    // fio's blocks are multiples of the sector; records that are not are read rounded outward by us, too.
    let block_bytes = row.block_bytes.next_multiple_of(512);
    Some(format!(
        "fio --name=row --filename={} --readonly --rw={rw} --bs={block_bytes} --direct={direct} {engine} --time_based \
         --runtime={seconds}",
        quoted(&names.join(":"))
    ))
}

/// Colons separate names for fio, and a backslash takes that from them.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use flint_rt::disk::profile::Percentiles;

    use super::*;

    fn row(engine: ReadEngine, pattern: Pattern) -> ProfileRow {
        ProfileRow {
            engine,
            pattern,
            is_record: true,
            block_bytes: 1_966_080,
            depth: 32,
            part: None,
            with_uploads: false,
            seconds: 1.0,
            reads: 1,
            bytes: 1,
            gb_s: 1.0,
            iops: 1.0,
            latency_us: Percentiles::default(),
            cpu_s_per_gb: None,
        }
    }

    #[test]
    fn a_job_has_the_rows_engine_depth_block_and_files() {
        let files = ["/a/b".into(), "/c:d e".into()];
        assert_eq!(
            job(&row(ReadEngine::Ring, Pattern::Random), &files, true, 5).unwrap(),
            "fio --name=row --filename='/a/b:/c\\:d e' --readonly --rw=randread --bs=1966080 --direct=1 \
             --ioengine=io_uring --fixedbufs --registerfiles --iodepth=32 --time_based --runtime=5"
        );
        let job = |row: &ProfileRow, is_direct| job(row, &files[..1], is_direct, 5);
        let pool = job(&row(ReadEngine::Pool, Pattern::Random), true).unwrap();
        assert!(pool.contains("--rw=randread ") && pool.contains("psync --numjobs=16 "), "{pool}");
        assert_eq!(
            job(&row(ReadEngine::Pool, Pattern::Sequential), true),
            None,
            "sixteen sequences are not one"
        );
        let one = ProfileRow { depth: 1, ..row(ReadEngine::Pool, Pattern::Sequential) };
        assert!(job(&one, true).unwrap().contains("--rw=read "));
        assert!(job(&row(ReadEngine::Buffered, Pattern::Random), true).unwrap().contains("--direct=0"));
        assert!(job(&row(ReadEngine::Ring, Pattern::Random), false).unwrap().contains("--direct=0"));
    }
}
