//! What a session's programs are compiled from, kept so that they can be compiled again with another run tag.
//!
//! Pure data, control plane.

use super::options::Options;
use crate::{
    error::Result,
    profile::{Profile, SizeMix},
    program::compile::{self, Compiled, PortFacts},
};

/// The inputs of [`compile::compile`].
pub(super) struct Recipe {
    pub profile: Profile,
    /// Frame sizes asked for; empty = the profile's.
    pub sizes: Vec<SizeMix>,
    pub facts: Vec<PortFacts>,
    pub run_tag: u32,
    pub seed: u64,
}

impl Recipe {
    pub fn new(profile: Profile, options: &Options, facts: Vec<PortFacts>, run_tag: u32) -> Recipe {
        let seed = profile.seed;
        Recipe { profile, sizes: options.sizes.clone(), facts, run_tag, seed }
    }

    /// Compiles the n-th size.
    pub fn compile(&self, size: usize) -> Result<Compiled> {
        let Some(size) = self.sizes.get(size) else {
            return compile::compile(&self.profile, &self.facts, self.run_tag, self.seed);
        };
        let mut profile = self.profile.clone();
        profile.set_frame_size(size);
        compile::compile(&profile, &self.facts, self.run_tag, self.seed)
    }

    /// Compiles every size.
    pub fn compile_all(&self) -> Result<Vec<Compiled>> {
        (0..self.sizes.len().max(1)).map(|size| self.compile(size)).collect()
    }
}
