//! `cargo bench --bench upload`: expert records from host memory into the device's, by each way that the staging ring knows.
//!
//! Two steps, each with its limit: one long copy beside a memory copy by one thread of the host, and records one by one
//! through the ring, as they come from a drive, beside the long copy. The times are the host's, as it is the host who waits.

#[path = "support/bytes.rs"]
mod bytes;
#[path = "support/device.rs"]
mod device;
#[path = "support/paired.rs"]
mod paired;

use std::time::Duration;

use device::Device;
use flint_rt::base::region::HostBuffer;
use flint_rt::expert::{ExpertError, HostPath, Staging};
use flint_rt::gpu::{Buffer, Commands, Gpu, Ticket};
use paired::{Bench, Limit, Work, repeat};

/// An expert record of the full Flint.
const RECORD_BYTES: usize = 1_966_080;

/// Buffers of the ring: the product's.
const BUFFERS: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(800);
    let Some(device) = Device::open()? else { return Ok(()) };
    let gpu = &device.gpu;
    let work = Work::Bytes((RECORD_BYTES * BUFFERS) as u64);
    let source = bytes::random(RECORD_BYTES * BUFFERS, 1);
    let mut copied = vec![0; source.len()];
    let pool = device.filled("slots", source.len() as u64)?;
    for path in HostPath::ALL {
        let mut ring = match Ring::new(gpu, path, &source, &pool) {
            Ok(ring) => ring,
            Err(error) => {
                println!("upload/{path}: not here: {error}\n");
                continue;
            }
        };
        let mut long = Long::new(gpu, path, &source, &pool)?;
        let copy = |iterations| repeat(iterations, || bytes::copy(&source, &mut copied));
        let limit = Limit { name: "memory copy by one thread", work, run: copy };
        bench.case("upload", &format!("{path}, one long copy"), work, limit, |iterations| {
            long.run(gpu, iterations)
        });
        let name = format!("{path}, records through the ring");
        // Where the host copies first, it does so while the device copies the record before: the host is the limit.
        let (limit_name, run): (_, &mut dyn FnMut(u64) -> Duration) = match path {
            HostPath::Copy => ("memory copy by one thread", &mut |iterations| {
                repeat(iterations, || bytes::copy(&source, &mut copied))
            }),
            HostPath::Import | HostPath::Mapped => {
                ("one long copy", &mut |iterations| long.run(gpu, iterations))
            }
        };
        let limit = Limit { name: limit_name, work, run };
        bench.case("upload", &name, work, limit, |iterations| ring.run(gpu, iterations));
    }
    bench.finish();
    Ok(())
}

/// All of the ring in one copy.
struct Long {
    staging: Staging,
    buffers: Vec<HostBuffer>,
    commands: Commands,
}

impl Long {
    fn new(gpu: &Gpu, path: HostPath, source: &[u8], target: &Buffer) -> Result<Self, ExpertError> {
        let mut staging = Staging::new(gpu, path, source.len(), 1)?;
        let buffers: Vec<_> = fill(gpu, &mut staging, source)?;
        let mut recorder = gpu.recorder()?;
        let (from, offset_bytes) = staging.land(&buffers[0], &(0..source.len()));
        recorder.copy(from, offset_bytes, target, 0, source.len() as u64);
        let commands = recorder.finish()?;
        Ok(Self { staging, buffers, commands })
    }

    fn run(&mut self, gpu: &Gpu, iterations: u64) -> Duration {
        repeat(iterations, || {
            // By the way of copies the host's part is done each time.
            self.staging.land(&self.buffers[0], &(0..self.buffers[0].len_bytes()));
            let ticket = gpu.submit(&[&self.commands]).expect("the device works");
            gpu.wait(ticket).expect("the device works");
        })
    }
}

/// The ring as the transport uses it, without the drive.
struct Ring<'a> {
    staging: Staging,
    pool: &'a Buffer,
    under_way: Vec<(Ticket, Commands)>,
}

impl<'a> Ring<'a> {
    fn new(gpu: &Gpu, path: HostPath, source: &[u8], pool: &'a Buffer) -> Result<Self, ExpertError> {
        let mut staging = Staging::new(gpu, path, RECORD_BYTES, BUFFERS)?;
        fill(gpu, &mut staging, source)?.into_iter().for_each(|buffer| staging.give_back(buffer));
        Ok(Self { staging, pool, under_way: Vec::with_capacity(BUFFERS) })
    }

    fn run(&mut self, gpu: &Gpu, iterations: u64) -> Duration {
        repeat(iterations, || self.round(gpu).expect("the device works"))
    }

    fn round(&mut self, gpu: &Gpu) -> Result<(), ExpertError> {
        let mut slot = 0;
        while slot < BUFFERS {
            let Some(buffer) = self.staging.take(gpu)? else {
                let ticket = self.staging.next_free().expect("a buffer is busy where none is free");
                gpu.wait(ticket)?;
                continue;
            };
            let mut recorder = gpu.recorder()?;
            let (source, offset_bytes) = self.staging.land(&buffer, &(0..RECORD_BYTES));
            let target_bytes = (slot * RECORD_BYTES) as u64;
            recorder.copy(source, offset_bytes, self.pool, target_bytes, RECORD_BYTES as u64);
            let commands = recorder.finish()?;
            let ticket = gpu.submit(&[&commands])?;
            self.staging.release(ticket, buffer);
            self.under_way.push((ticket, commands));
            slot += 1;
        }
        let last = self.under_way.last().map(|(ticket, _)| *ticket);
        last.map_or(Ok(()), |ticket| gpu.wait(ticket))?;
        self.under_way.clear();
        Ok(())
    }
}

/// All buffers of the ring, holding `source`.
fn fill(gpu: &Gpu, staging: &mut Staging, source: &[u8]) -> Result<Vec<HostBuffer>, ExpertError> {
    let mut buffers = Vec::new();
    while let Some(mut buffer) = staging.take(gpu)? {
        let offset = buffer.offset_bytes();
        let len = buffer.len_bytes();
        buffer.as_mut_slice().copy_from_slice(&source[offset..offset + len]);
        buffers.push(buffer);
    }
    Ok(buffers)
}
