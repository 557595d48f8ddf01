//! The tests of a run, and their names as llama-bench has them. Pure.

use std::fmt;

use super::args::BenchArgs;
use super::values::{PromptAndReply, Values};

/// One test: what is in the context before, what is fed at once, what is generated one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) n_prompt: u32,
    pub(super) n_gen: u32,
    pub(super) n_depth: u32,
    /// Conversations that take the same steps.
    pub(super) n_parallel: u32,
}

impl Case {
    /// All tests that the flags ask for: at each depth the prompts, then the replies, then both together; replies in as many
    /// conversations at a time as there are to be, each of which begins with the prompt.
    pub(super) fn all(args: &BenchArgs) -> Vec<Self> {
        let mut cases = Vec::new();
        for n_depth in Values::all(&args.n_depth) {
            let mut push = |n_prompt, n_gen, n_parallel| {
                if n_prompt + n_gen > 0 {
                    cases.push(Self { n_prompt, n_gen, n_depth, n_parallel });
                }
            };
            Values::all(&args.n_prompt).into_iter().for_each(|n_prompt| push(n_prompt, 0, 1));
            for n_parallel in Values::all(&args.n_parallel) {
                Values::all(&args.n_gen).into_iter().for_each(|n_gen| push(0, n_gen, n_parallel));
                for &PromptAndReply { n_prompt, n_gen } in &args.prompt_gen {
                    push(n_prompt, n_gen, n_parallel);
                }
            }
        }
        cases
    }

    /// Tokens that are timed, of all conversations.
    pub(super) fn tokens(&self) -> u64 {
        (u64::from(self.n_prompt) + u64::from(self.n_gen)) * u64::from(self.n_parallel)
    }

    /// Positions that each conversation fills.
    pub(super) fn context(&self) -> u64 {
        u64::from(self.n_depth) + u64::from(self.n_prompt) + u64::from(self.n_gen)
    }

    /// Positions that all of them fill.
    pub(super) fn contexts(&self) -> u64 {
        self.context() * u64::from(self.n_parallel)
    }

    /// Whether it is the reply of a single conversation, of which it is known what it reads.
    pub(super) fn is_reply(&self) -> bool {
        self.n_prompt == 0 && self.n_parallel == 1
    }

    /// Tokens in the context of an average timed one.
    pub(super) fn position(&self) -> u32 {
        self.n_depth.saturating_add(self.n_prompt).saturating_add(self.n_gen / 2)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.n_prompt, self.n_gen) {
            (prompt, 0) => write!(f, "pp{prompt}")?,
            (0, reply) => write!(f, "tg{reply}")?,
            (prompt, reply) => write!(f, "pp{prompt}+tg{reply}")?,
        }
        if self.n_parallel > 1 {
            write!(f, " pl{}", self.n_parallel)?;
        }
        if self.n_depth > 0 {
            write!(f, " @ d{}", self.n_depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_benchs() {
        let name = |n_prompt, n_gen, n_depth| Case { n_prompt, n_gen, n_depth, n_parallel: 1 }.to_string();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 512), "tg128 @ d512");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
        let several = Case { n_prompt: 0, n_gen: 16, n_depth: 8, n_parallel: 32 };
        assert_eq!(several.to_string(), "tg16 pl32 @ d8");
        assert_eq!((several.tokens(), several.context(), several.contexts()), (512, 24, 768));
        assert!(!several.is_reply());
    }
}
