//! What `flint-rt plan` expects of a bench's tests, from measurements of the same minutes.
//!
//! - Owns: short models of the same shapes, open beside the one that is measured, and reads of its records. In: which measurements
//!   may be made. Out: the costs of drive and device, and where each is from.
//! - Invariants: turns of the short models and of the reads stand before each repetition, so that whatever else loads the machine,
//!   and however the drive's rate wanders, loads both; nothing of theirs is timed with the test. Where the short models find no room,
//!   the device is taken for what is usual of its kind.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use flint_rt::disk::DriveModel;
use flint_rt::engine::drive_cost::DriveCost;
use flint_rt::engine::expectation::{DeviceCost, StepCost, TokenCost};
use flint_rt::engine::rehearsal::Rehearsal;
use flint_rt::engine::{Engine, EngineOptions};
use flint_rt::gpu::DeviceKind;
use flint_rt::store::Source;

use super::drive::Drive;
use super::facts;
use crate::disk_profile::{DecodeReads, Target};
use crate::exit::{Failure, Outcome};
use crate::plan::rehearse::{ROUNDS, Stages};
use crate::terminal::note;

/// What the expectation rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanBy {
    /// The drive's reads and the device's steps are measured beside the tests.
    Measure,
    /// The drive's saved profile, and what is usual for the kind of device.
    Estimate,
}

/// After so long no further turn stands before a repetition: on a slow device one has to do.
const TURNS_MAX: Duration = Duration::from_secs(5);

/// A turn of the drive's reads.
const DRIVE_TURN: Duration = Duration::from_millis(250);

/// What is measured beside the tests of one model.
pub(super) struct Planner {
    stages: Option<Stages>,
    reads: Option<DecodeReads>,
}

impl Planner {
    /// Nothing.
    pub(super) fn none() -> Self {
        Self { stages: None, reads: None }
    }

    /// To measure the drive of `source`, which the user calls `shown`, and short models, which are opened as `options` say, for tokens
    /// at `position`. A drive that is simulated is known already. The caller asks for signals to be told.
    ///
    /// # Errors
    /// Ctrl-C. What else goes wrong is said, and an estimate stands for it.
    pub(super) fn open(
        engine: &Engine,
        options: &EngineOptions,
        source: &Source,
        shown: &str,
        simulated: Option<DriveModel>,
        position: u32,
    ) -> Outcome<Self> {
        let reads = || DecodeReads::new(Target::model(source, shown.to_owned())?, options.read_path);
        let reads = if simulated.is_some() { None } else { or_note("the drive", reads())? };
        let checks = engine.paths().is_checked;
        let stages = Stages::open(engine.config(), options, position, checks);
        Ok(Self { stages: or_note("the device", stages)?, reads })
    }

    /// A test begins: what was measured for another one is forgotten.
    pub(super) fn begin(&mut self) {
        if let Some(stages) = &mut self.stages {
            stages.forget();
        }
        if let Some(reads) = &mut self.reads {
            reads.forget();
        }
    }

    /// The turns before one of so many repetitions.
    ///
    /// # Errors
    /// Ctrl-C; what happened to a step or a read.
    pub(super) fn turns(&mut self, repetitions: u32) -> Outcome {
        let began = Instant::now();
        for _ in 0..ROUNDS.div_ceil(repetitions.max(1)) {
            if let Some(reads) = &mut self.reads {
                reads.turn(DRIVE_TURN)?;
            }
            if let Some(stages) = &mut self.stages {
                stages.round()?;
            }
            if began.elapsed() > TURNS_MAX {
                break;
            }
        }
        Ok(())
    }

    /// What the test's turns found.
    pub(super) fn found(&self) -> Option<Rehearsal> {
        self.stages.as_ref().map(Stages::found)
    }

    /// The drive as the plan takes it, and where that is from.
    pub(super) fn drive(&self, known: &Drive) -> (DriveCost, String) {
        match self.reads.as_ref().and_then(DecodeReads::cost) {
            Some(cost) => (cost, "measured now".to_owned()),
            None => (known.cost.clone(), known.cost_from.clone()),
        }
    }
}

fn or_note<T>(what: &str, measured: Outcome<T>) -> Outcome<Option<T>> {
    match measured {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Told { text, .. }) => {
            note(&format!("note: the plan estimates {what}, as it cannot be measured now: {text}"));
            Ok(None)
        }
        Err(ended) => Err(ended),
    }
}

/// What a token takes of a device, and where that is from.
pub(super) fn step_cost(
    engine: &Engine,
    kind: DeviceKind,
    token: &TokenCost,
    found: Option<&Rehearsal>,
) -> (StepCost, String) {
    let estimate = StepCost::estimate(token, &DeviceCost::estimate(kind, facts::threads()));
    match found {
        None => (estimate, format!("estimate for a {kind}")),
        Some(found) => {
            let rehearsed = TokenCost::new(engine.config(), engine.plan().resident_bytes, found.position);
            (found.step_cost(token, &rehearsed, &estimate), "measured now".to_owned())
        }
    }
}
