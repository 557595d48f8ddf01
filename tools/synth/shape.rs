//! The dimensions of a synthetic model: presets, and single ones changed.
//!
//! In: a preset and the flags. Out: a [`Shape`]. What of it no Flint can have is refused by the library's own check of the
//! header, except for what a header cannot be made of.

use clap::ValueEnum;
use flint_rt::model::hparams::FlintConfig;

use super::args::SynthArgs;
use super::vocabulary;
use crate::exit::{Failure, Outcome};

/// Dimensions to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Under 2 MB: 6 layers, 16 experts of which a token uses 4.
    Tiny,
    /// 11 MB: the dimensions of the bundled model.
    Nano,
    /// 8 GB: the real Flint with a quarter of its experts, so a token reads as much as from the real one.
    Quarter,
    /// 26 GB: the real Flint's dimensions.
    Full,
}

impl Preset {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Nano => "nano",
            Self::Quarter => "quarter",
            Self::Full => "full",
        }
    }
}

/// The dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: u32,
    pub(super) lead_layers: u32,
    pub(super) embed: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) ffn: u32,
    pub(super) experts: u32,
    pub(super) experts_used: u32,
    pub(super) expert_ffn: u32,
    pub(super) shared_ffn: u32,
    pub(super) vocabulary: u32,
    pub(super) window: u32,
    pub(super) context: u32,
    pub(super) alignment: u32,
    /// Whether full layers lie as in the bundled model (each fourth) or as in Flint.
    full_is_fourth: bool,
}

const FULL: Shape = Shape {
    layers: 49,
    lead_layers: 2,
    embed: 2048,
    heads: 32,
    kv_heads: 4,
    head_dim: 128,
    ffn: 6144,
    experts: 256,
    experts_used: 6,
    expert_ffn: 512,
    shared_ffn: 1024,
    vocabulary: 150_144,
    window: 513,
    context: 262_144,
    alignment: 32,
    full_is_fourth: false,
};

const NANO: Shape = Shape {
    layers: 8,
    lead_layers: 2,
    embed: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 128,
    ffn: 512,
    experts: 16,
    experts_used: 4,
    expert_ffn: 64,
    shared_ffn: 128,
    vocabulary: 3072,
    window: 129,
    context: 4096,
    full_is_fourth: true,
    ..FULL
};

const TINY: Shape = Shape {
    layers: 6,
    embed: 64,
    head_dim: 32,
    ffn: 96,
    expert_ffn: 32,
    shared_ffn: 64,
    vocabulary: 512,
    window: 17,
    context: 8192,
    full_is_fourth: false,
    ..NANO
};

impl Shape {
    /// What the arguments ask for.
    pub(super) fn new(args: &SynthArgs) -> Outcome<Self> {
        let mut shape = match args.preset {
            Preset::Tiny => TINY,
            Preset::Nano => NANO,
            Preset::Quarter => Self { experts: 64, ..FULL },
            Preset::Full => FULL,
        };
        let flags = &args.dimensions;
        for (value, flag) in [
            (&mut shape.layers, flags.layers),
            (&mut shape.lead_layers, flags.lead_layers),
            (&mut shape.embed, flags.embed),
            (&mut shape.heads, flags.heads),
            (&mut shape.kv_heads, flags.kv_heads),
            (&mut shape.head_dim, flags.head_dim),
            (&mut shape.ffn, flags.ffn),
            (&mut shape.experts, flags.experts),
            (&mut shape.experts_used, flags.experts_used),
            (&mut shape.expert_ffn, flags.expert_ffn),
            (&mut shape.shared_ffn, flags.shared_ffn),
            (&mut shape.vocabulary, flags.vocabulary),
            (&mut shape.window, flags.window),
            (&mut shape.context, flags.context),
            (&mut shape.alignment, flags.alignment),
        ] {
            *value = flag.unwrap_or(*value);
        }
        shape.check()?;
        Ok(shape)
    }

    /// The shapes of a model, with `layers` expert layers instead of its own.
    pub(super) fn like(config: &FlintConfig, layers: u32) -> Outcome<Self> {
        let shape = Self {
            layers: config.lead_layer_count + layers,
            lead_layers: config.lead_layer_count,
            embed: config.embed_dim,
            heads: config.head_count,
            kv_heads: config.kv_head_count,
            head_dim: config.head_dim,
            // No layer has it where there is no lead layer, and then the file says 0.
            ffn: config.ffn_dim.max(32),
            experts: config.expert_count,
            experts_used: config.experts_used,
            expert_ffn: config.expert_ffn_dim,
            shared_ffn: config.shared_ffn_dim,
            vocabulary: config.vocabulary,
            window: config.window.max(1),
            context: config.context_len,
            alignment: 32,
            full_is_fourth: false,
        };
        shape.check()?;
        Ok(shape)
    }

    /// Refuses what no header can be made of; the flags' own limits have kept each number small.
    fn check(&self) -> Outcome {
        let query = self.heads * self.head_dim;
        for (what, width) in [
            ("--embed", self.embed),
            ("--heads times --head-dim", query),
            ("--ffn", self.ffn),
            ("--expert-ffn", self.expert_ffn),
            ("--shared-ffn", self.shared_ffn),
        ] {
            if width == 0 || !width.is_multiple_of(32) {
                return Err(Failure::usage(format!(
                    "{what} is {width}, wanted a multiple of 32, the block of Q4_1"
                )));
            }
        }
        if !self.alignment.is_power_of_two() || self.alignment < 32 {
            return Err(Failure::usage(format!(
                "--alignment is {}, wanted a power of two from 32",
                self.alignment
            )));
        }
        let sizes = vocabulary::SMALLEST..=vocabulary::LARGEST;
        if !sizes.contains(&self.vocabulary) {
            return Err(Failure::usage(format!(
                "--vocabulary is {}, wanted {} to {} tokens",
                self.vocabulary,
                sizes.start(),
                sizes.end()
            )));
        }
        Ok(())
    }

    /// For each layer, whether its attention slides over a window and rotates; the others see all and do neither.
    ///
    /// In Flint the layers that see all are the first, each fourth from 1 on, and the last; in the bundled model each fourth.
    pub(super) fn slides(&self) -> Vec<bool> {
        let last = self.layers - 1;
        (0..self.layers)
            .map(|layer| match self.full_is_fourth {
                true => layer % 4 != 3,
                false => layer != 0 && layer % 4 != 1 && layer != last,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_preset_has_the_layers_of_flint() {
        let full: Vec<usize> = FULL
            .slides()
            .iter()
            .enumerate()
            .filter(|(_, slides)| !**slides)
            .map(|(layer, _)| layer)
            .collect();
        assert_eq!(full, [0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 48]);
    }

    #[test]
    fn every_preset_can_be_written() {
        for shape in [FULL, NANO, TINY, Shape { experts: 64, ..FULL }] {
            assert!(shape.check().is_ok(), "{shape:?}");
        }
    }
}
