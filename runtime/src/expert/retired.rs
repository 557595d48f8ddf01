//! Submitted commands, kept until the device has run them: they hold what they use.

use std::collections::VecDeque;

use crate::expert::ExpertError;
use crate::gpu::{Commands, Gpu, Ticket};

/// The commands, first submitted first.
#[derive(Default)]
pub(super) struct Retired(VecDeque<(Ticket, Commands)>);

impl Retired {
    /// Keeps `commands`, which end with `ticket`; those that have ended go.
    ///
    /// # Errors
    /// When the device is lost.
    pub(super) fn add(&mut self, gpu: &Gpu, ticket: Ticket, commands: Commands) -> Result<(), ExpertError> {
        self.0.push_back((ticket, commands));
        self.drop_ended(gpu)
    }

    /// Lets go of commands that have ended.
    ///
    /// # Errors
    /// When the device is lost.
    pub(super) fn drop_ended(&mut self, gpu: &Gpu) -> Result<(), ExpertError> {
        while let Some(&(oldest, _)) = self.0.front() {
            if !gpu.is_done(oldest)? {
                break;
            }
            self.0.pop_front();
        }
        Ok(())
    }
}
