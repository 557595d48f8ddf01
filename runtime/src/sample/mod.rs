//! Logits to a token: the sampler, its options, its random numbers, and log-probabilities.
//!
//! Owns: the random state and the recent tokens of one session. In: a row of logits, `[vocabulary]`. Out: a token id.
//!
//! # The order
//! 1. Penalties for recent tokens: repetition divides a positive logit and multiplies a negative one; presence and
//!    frequency are subtracted. They are stated in logits, so they come before anything that scales.
//! 2. The caller's bias. After the penalties, so that a forced or forbidden token stays so.
//! 3. Greedy ends here: temperature 0 takes the best logit.
//! 4. Top-k. It asks only for the order, which temperature does not change, and makes all that follows small.
//! 5. Temperature. Before top-p and min-p, so that both cut the distribution from which the draw is made (as the model
//!    maker's recommendation and the common servers' interface have it).
//! 6. Top-p over what top-k left, renormalised; then min-p relative to the best.
//! 7. One draw, in order of id.
//!
//! Invariants:
//! - Equal logits, options, seed and history give equal tokens, release after release: sums are f64 in a fixed order,
//!   ties go to the lower id, and the generator is ours.
//! - Greedy draws no random number; every other call draws exactly one.
//! - A logit that is not finite is an error that names its id, never a token.

mod error;
mod options;
mod penalties;
mod probability;
mod rng;
mod sampler;
mod select;

pub use error::{OptionsError, SampleError};
pub use options::SamplerOptions;
pub use probability::{log_probabilities, top_n};
pub use rng::Rng;
pub use sampler::Sampler;
