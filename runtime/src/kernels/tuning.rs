//! How kernels are cut up: one table of choices, by who made the device. Pure.
//!
//! - Owns: the table. In: what a device says of itself. Out: a [`Tuning`], which [`super::Pipelines`] compiles in.
//! - Invariants: a tuning changes how fast a model is, and in which order sums are taken, so the last bits of what it says; never what
//!   is computed. [`Tuning::deterministic`] gives one for which a row's bits depend on nothing else. A value is one of those that the
//!   table lists to be tried.
//!
//! A software device counts loads, not latency: many rows share the activations that a lane has loaded. A GPU at one token is bound by
//! latency: few rows and more lanes a row (2048 x 2048 on an NVIDIA H200: 1 subgroup 8.9 us, 4 subgroups 6.5 us). For AMD and Intel the
//! columns follow what other programs' kernels of this form were found to want there; nobody has measured them with these.

use std::fmt;
use std::str::FromStr;

use super::many::{Many, ManyForm};
use crate::gpu::{DeviceInfo, DeviceKind};

/// Who made a device, as far as choices differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceFamily {
    /// NVIDIA's GPUs.
    Nvidia,
    /// AMD's.
    Amd,
    /// Intel's.
    Intel,
    /// The host's processor.
    Software,
    /// All others.
    Other,
}

impl DeviceFamily {
    /// Of a device.
    pub fn of(info: &DeviceInfo) -> Self {
        match (info.kind, info.vendor_id) {
            (DeviceKind::Software, _) => Self::Software,
            (_, 0x10DE) => Self::Nvidia,
            (_, 0x1002) => Self::Amd,
            (_, 0x8086) => Self::Intel,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for DeviceFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
            Self::Intel => "Intel",
            Self::Software => "software",
            Self::Other => "other",
        })
    }
}

/// What a choice is for, and so what it is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TunedFor {
    /// The next token of one sequence.
    Token,
    /// The next tokens of a few.
    Few,
    /// A prompt.
    Prompt,
}

/// A choice, and what may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The field of [`Tuning`].
    pub name: &'static str,
    /// What it is for.
    pub work: TunedFor,
    /// All values that it may have.
    pub tries: &'static [u32],
}

/// How much of a layer is done in one dispatch, for the next tokens of sequences. Prompts have every stage apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fusion {
    /// Every stage is a dispatch of its own, as for a prompt.
    Nothing,
    /// Stages that need no more arithmetic together.
    Stages,
    /// Norms are folded into what reads them, too: each workgroup then sums a row's squares for itself.
    StagesAndNorms,
}

macro_rules! choices {
    ($($(#[doc = $doc:literal])* $field:ident for $work:ident, one of $tries:expr;
        NVIDIA $nvidia:literal, AMD $amd:literal, Intel $intel:literal, software $software:literal, other $other:literal;)*) => {
        /// Sizes of kernels' tiles.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Tuning {
            $($(#[doc = $doc])* pub $field: u32,)*
            /// How products of many rows are computed, and with which tiles.
            pub many: Many,
            /// How much of a next token's layer is done in one dispatch.
            pub fusion: Fusion,
            /// Whether next tokens go through the attention of prompts, too, so that their bits are the same.
            pub attends_next_as_prompt: bool,
        }

        /// Every choice, in the order in which they are tried.
        pub static CHOICES: &[Choice] =
            &[$(Choice { name: stringify!($field), work: TunedFor::$work, tries: &$tries }),*];

        impl Tuning {
            /// The table's column for a family, with the form of prompts' products that all of its devices have.
            pub fn of_family(family: DeviceFamily) -> Self {
                let (form, kind, fusion) = match family {
                    DeviceFamily::Software => (ManyForm::Registers, DeviceKind::Software, Fusion::Stages),
                    _ => (ManyForm::Tiles, DeviceKind::Discrete, Fusion::StagesAndNorms),
                };
                Self {
                    many: Many::new(form, kind),
                    fusion,
                    attends_next_as_prompt: false,
                    $($field: match family {
                        DeviceFamily::Nvidia => $nvidia,
                        DeviceFamily::Amd => $amd,
                        DeviceFamily::Intel => $intel,
                        DeviceFamily::Software => $software,
                        DeviceFamily::Other => $other,
                    },)*
                }
            }

            /// Names and values, in the order of [`CHOICES`].
            pub fn values(&self) -> Vec<(&'static str, u32)> {
                vec![$((stringify!($field), self.$field)),*]
            }

            fn field(&mut self, name: &str) -> Option<&mut u32> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

choices! {
    /// Rows of a mat-vec workgroup.
    rows_one for Token, one of [1, 2, 4, 8];
        NVIDIA 2, AMD 2, Intel 4, software 8, other 2;
    /// Subgroups of a mat-vec workgroup, all on the same rows.
    subgroups_one for Token, one of [1, 2, 4, 8];
        NVIDIA 4, AMD 2, Intel 4, software 1, other 4;
    /// Subgroups of a norm's workgroup.
    subgroups_norm for Token, one of [1, 2, 4, 8, 16];
        NVIDIA 4, AMD 4, Intel 4, software 1, other 4;
    /// Splits of the visible keys at decode, at most.
    decode_splits for Token, one of [1, 2, 4, 8, 16, 32];
        NVIDIA 32, AMD 32, Intel 32, software 2, other 32;
    /// Keys of a split, at least, where next tokens have kernels of their own.
    split_keys for Token, one of [1, 16, 32, 64, 128, 256];
        NVIDIA 64, AMD 64, Intel 64, software 1, other 64;
    /// Subgroups that share the keys of a split there.
    subgroups_attend for Token, one of [1, 2, 4];
        NVIDIA 4, AMD 4, Intel 4, software 1, other 4;
    /// Rows of a workgroup that sums a token's experts.
    rows_down for Token, one of [1, 2, 4, 8];
        NVIDIA 1, AMD 1, Intel 1, software 8, other 1;
    /// Rows of a workgroup that serves the tokens of a few sequences.
    rows_few for Few, one of [1, 2, 4, 8];
        NVIDIA 2, AMD 2, Intel 2, software 4, other 2;
    /// Rows of a workgroup that serves many tokens, where they are computed in registers: on a software device a prompt takes a sixth
    /// less of the processors' time than with 4 x 8.
    rows_many for Prompt, one of [1, 2, 4, 8];
        NVIDIA 4, AMD 4, Intel 4, software 8, other 4;
    /// Tokens of such a workgroup.
    tokens_many for Prompt, one of [4, 8, 16];
        NVIDIA 8, AMD 8, Intel 8, software 8, other 8;
    /// Lanes that share a row of a prompt's attention; at most a subgroup is taken.
    attention_lanes for Prompt, one of [1, 2, 4, 8, 16, 32];
        NVIDIA 4, AMD 4, Intel 4, software 1, other 4;
    /// Rows of such a lane: each shares what was loaded of keys and values.
    attention_rows for Prompt, one of [1, 2, 4];
        NVIDIA 2, AMD 2, Intel 2, software 1, other 2;
    /// Subgroups of a workgroup of the attention by cooperative matrices; 0 takes the other form, as does a device without matrices of
    /// 16 x 16 x 16. [`Tuning::with_form`] sets it where products take them.
    attention_matrix for Prompt, one of [0, 1, 2, 4];
        NVIDIA 0, AMD 0, Intel 0, software 0, other 0;
}

impl Tuning {
    /// The table's for a device, in the form that suits it.
    pub fn of(info: &DeviceInfo) -> Self {
        Self::of_family(DeviceFamily::of(info)).with_form(info, ManyForm::for_device(info))
    }

    /// The same, with products of many rows in this form, and attention of prompts in the one that goes with it.
    #[must_use]
    pub fn with_form(self, info: &DeviceInfo, form: ManyForm) -> Self {
        let attention_matrix = if form == ManyForm::CooperativeMatrix { 4 } else { 0 };
        Self { many: Many::new(form, info.kind), attention_matrix, ..self }
    }

    /// The table's for a kind of device of which no more is known.
    pub fn for_device(kind: DeviceKind) -> Self {
        Self::of_family(match kind {
            DeviceKind::Software => DeviceFamily::Software,
            _ => DeviceFamily::Other,
        })
    }

    /// The same, so that a row's bits do not depend on whether it is the next token of a sequence or one of a prompt: one subgroup
    /// sums a product, nobody's keys are split, a next token goes through a prompt's kernels, and products of many rows and attention do
    /// without cooperative matrices.
    #[must_use]
    pub fn deterministic(self) -> Self {
        let many = Many { form: ManyForm::Registers, ..self.many };
        Self {
            subgroups_one: 1,
            decode_splits: 1,
            many,
            attention_matrix: 0,
            fusion: Fusion::Nothing,
            attends_next_as_prompt: true,
            ..self
        }
    }

    /// Pairs of an expert's tile in a step of `tokens` tokens that are a prompt's, each with `experts_used` of `expert_count` experts.
    pub fn tile_pairs(&self, tokens: u32, experts_used: u32, expert_count: u32) -> u32 {
        match self.many.form {
            ManyForm::Registers => self.tokens_many,
            _ => self.many.pairs(f64::from(tokens * experts_used) / f64::from(expert_count)),
        }
    }

    /// The least that [`Self::tile_pairs`] gives: by it the most tiles are counted.
    pub fn tile_pairs_least(&self) -> u32 {
        self.many.experts.iter().map(|tile| tile.tokens).fold(self.tokens_many, u32::min)
    }

    /// The same with one choice made otherwise.
    ///
    /// # Errors
    /// A name that is none, a value that may not be chosen.
    pub fn with(mut self, name: &str, value: u32) -> Result<Self, TuningFault> {
        let choice = CHOICES.iter().find(|choice| choice.name == name);
        let choice = choice.ok_or_else(|| TuningFault::Name { got: name.to_owned() })?;
        if !choice.tries.contains(&value) {
            return Err(TuningFault::Value { choice: *choice, got: value.to_string() });
        }
        *self.field(name).expect("invariant: every choice is a field") = value;
        Ok(self)
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> =
            self.values().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&values.join(","))
    }
}

/// What cannot be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TuningFault {
    /// No such name.
    #[error("{got:?} is none of the choices: {}", names())]
    Name {
        /// What was given.
        got: String,
    },
    /// No such value.
    #[error("{}: {got:?} is none of {:?}", .choice.name, .choice.tries)]
    Value {
        /// Of what.
        choice: Choice,
        /// What was given.
        got: String,
    },
    /// Not a name and a value.
    #[error("{got:?}: wanted NAME=VALUE,... with names of {}", names())]
    Form {
        /// What was given.
        got: String,
    },
}

fn names() -> String {
    CHOICES.iter().map(|choice| choice.name).collect::<Vec<_>>().join(", ")
}

/// Some choices made by hand: `rows_one=4,subgroups_one=2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TuningChanges(Vec<(&'static str, u32)>);

impl TuningChanges {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A tuning with these choices.
    pub fn apply(&self, tuning: Tuning) -> Tuning {
        let with = |tuning: Tuning, &(name, value): &(&str, u32)| {
            tuning.with(name, value).expect("invariant: checked when it was read")
        };
        self.0.iter().fold(tuning, with)
    }
}

impl FromStr for TuningChanges {
    type Err = TuningFault;

    fn from_str(text: &str) -> Result<Self, TuningFault> {
        let any = Tuning::of_family(DeviceFamily::Other);
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let change = |item: &str| {
            let form = || TuningFault::Form { got: item.to_owned() };
            let (name, value) = item.split_once('=').ok_or_else(form)?;
            let value: u32 = value.trim().parse().map_err(|_| form())?;
            any.with(name.trim(), value)?;
            let choice = CHOICES.iter().find(|choice| choice.name == name.trim());
            Ok((choice.expect("invariant: `with` found it").name, value))
        };
        Ok(Self(items.map(change).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_only_what_may_be_chosen() {
        use DeviceFamily::{Amd, Intel, Nvidia, Other, Software};
        for family in [Nvidia, Amd, Intel, Software, Other] {
            for (name, value) in Tuning::of_family(family).values() {
                let tuning = Tuning::of_family(family);
                assert_eq!(tuning.with(name, value), Ok(tuning), "{family}: {name}");
            }
        }
        assert_ne!(Tuning::of_family(Nvidia), Tuning::of_family(Software));
    }

    #[test]
    fn choices_made_by_hand_are_checked() {
        let table = Tuning::for_device(DeviceKind::Discrete);
        let changes: TuningChanges = " rows_one=8, decode_splits=1,".parse().unwrap();
        assert_eq!(changes.apply(table), Tuning { rows_one: 8, decode_splits: 1, ..table });
        assert!("".parse::<TuningChanges>().unwrap().is_empty());
        for (wrong, word) in [
            ("rows_one=3", "none of [1, 2, 4, 8]"),
            ("rows=2", "none of the choices: rows_one"),
            ("rows_one", "wanted NAME=VALUE"),
            ("rows_one=many", "wanted NAME=VALUE"),
        ] {
            let error = wrong.parse::<TuningChanges>().unwrap_err().to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
        let text = table.to_string();
        let software = Tuning::for_device(DeviceKind::Software);
        assert_eq!(text.parse::<TuningChanges>().unwrap().apply(software).values(), table.values());
    }

    #[test]
    fn where_bits_count_one_subgroup_sums() {
        let table = Tuning::of_family(DeviceFamily::Nvidia);
        let same = table.deterministic();
        assert_eq!((same.subgroups_one, same.decode_splits), (1, 1));
        assert_eq!((same.many.form, same.attention_matrix), (ManyForm::Registers, 0));
        assert_eq!((same.fusion, same.attends_next_as_prompt), (Fusion::Nothing, true));
        assert_eq!(same.rows_many, table.rows_many);
    }
}
