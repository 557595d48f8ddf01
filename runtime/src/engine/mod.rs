//! Models opened, conversations kept, tokens generated.
//!
//! - Owns: one [`crate::model::Model`] with its tokenizer, and per [`Session`] one sequence with the tokens in it.
//! - In: a path and [`EngineOptions`]; then prompts as token ids.
//! - Out: tokens, one at a time, and why they ended.
//! - Invariants: the engine is a value that one thread drives; nothing below it holds a reference to it. What a session's token
//!   list says is what its cache holds.

pub mod options;

pub mod advice;

pub mod host_budget;

pub mod budget;

pub mod pressure;

pub mod open;

pub mod rehearsal;

pub mod profile;

pub mod run_ahead;

pub mod survey;

pub mod drive_cost;

pub mod hit_curve;

pub mod expectation;

pub mod simulate;

pub mod session;

pub mod snapshot;

pub mod speculate;

pub mod generate;

pub mod telemetry;

pub mod times;

pub mod tuned;

pub mod warm;

mod error;

pub use advice::SamplingAdvice;
pub use budget::{MemoryBill, MemoryPlan};
pub use error::EngineError;
pub use generate::{Finish, GenerateObserver, GenerateOptions, Generated, StepTimes};
pub use host_budget::{HostBill, HostMemory, HostPlan};
pub use open::{Engine, HostTierUse, LoadPhase, LoadProgress, PathsChosen};
pub use options::EngineOptions;
pub use pressure::Pressure;
pub use profile::{KernelTime, StepProfile};
pub use session::{Feed, Session};
pub use snapshot::{Snapshot, SnapshotError};
pub use speculate::{SpeculateMode, SpeculateStats};
pub use survey::Survey;
pub use telemetry::Telemetry;
pub use times::TimeSplit;
pub use tuned::{ChosenTuning, TuningSource};
