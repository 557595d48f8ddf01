//! How the victim is chosen: a name and a number, to be compared by the simulator and chosen by the engine.
//!
//! - Owns: nothing. In: words such as `half-life:64`. Out: a [`Policy`].
//! - Invariants: a policy is plain data; what it has to remember lies in the pool (`recency.rs`, `ranking.rs`).

use std::fmt;
use std::str::FromStr;

/// Longest half-life, tokens: it costs a table of as many numbers, and beyond it nothing changes within a conversation.
pub const HALF_LIFE_MAX: u32 = 65_536;

/// Who leaves when a slot is needed. Ties go to the one unused for longest.
///
/// All but the first remember an expert's uses while it is in no slot, too, and count time in steps ([`begin_step`]).
///
/// [`begin_step`]: crate::expert::pool::Pool::begin_step
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// The one whose last use lies furthest back.
    Lru,
    /// The one with the fewest uses since the pool was made.
    Lfu,
    /// The one with the fewest uses, all of which are halved at once every so many steps (LFU with ageing).
    Ageing {
        /// Steps between two halvings.
        steps: u32,
    },
    /// The one with the smallest sum of uses, each halved every so many steps since it happened.
    HalfLife {
        /// Steps in which a use loses half its weight.
        steps: u32,
    },
    /// The one with the smallest product of its uses and a recency that is halved every so many steps since the last one.
    FrequencyRecency {
        /// Steps in which the recency loses half.
        steps: u32,
    },
}

/// What the simulator found best on the recorded routes, see `runtime/CACHE.md`.
impl Default for Policy {
    fn default() -> Self {
        Self::HalfLife { steps: 64 }
    }
}

impl Policy {
    /// Every policy, those with a number with `steps`.
    pub fn all(steps: u32) -> [Self; 5] {
        [
            Self::Lru,
            Self::Lfu,
            Self::Ageing { steps },
            Self::HalfLife { steps },
            Self::FrequencyRecency { steps },
        ]
    }

    /// Its number of steps, if it has one.
    pub fn steps(self) -> Option<u32> {
        match self {
            Self::Lru | Self::Lfu => None,
            Self::Ageing { steps } | Self::HalfLife { steps } | Self::FrequencyRecency { steps } => {
                Some(steps)
            }
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lru => f.write_str("lru"),
            Self::Lfu => f.write_str("lfu"),
            Self::Ageing { steps } => write!(f, "lfu-ageing:{steps}"),
            Self::HalfLife { steps } => write!(f, "half-life:{steps}"),
            Self::FrequencyRecency { steps } => write!(f, "frequency-recency:{steps}"),
        }
    }
}

/// A word that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{word}` is no cache policy; wanted lru, lfu, lfu-ageing:N, half-life:N or frequency-recency:N with N from 1 to \
     {HALF_LIFE_MAX} steps"
)]
pub struct UnknownPolicy {
    /// The word.
    pub word: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
        let (name, number) = word.split_once(':').unwrap_or((word, ""));
        let steps = number.parse().ok().filter(|steps| (1..=HALF_LIFE_MAX).contains(steps));
        match (name, steps) {
            ("lru", None) if word == name => Ok(Self::Lru),
            ("lfu", None) if word == name => Ok(Self::Lfu),
            ("lfu-ageing", Some(steps)) => Ok(Self::Ageing { steps }),
            ("half-life", Some(steps)) => Ok(Self::HalfLife { steps }),
            ("frequency-recency", Some(steps)) => Ok(Self::FrequencyRecency { steps }),
            _ => Err(UnknownPolicy { word: word.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_policies_are_the_same() {
        for policy in Policy::all(48) {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for word in
            ["", "mru", "lru:3", "lfu:", "half-life", "half-life:0", "half-life:65537", "half-life:-1"]
        {
            let error = word.parse::<Policy>().expect_err("no policy");
            assert!(error.to_string().starts_with(&format!("`{word}` is no cache policy")), "{error}");
        }
    }
}
