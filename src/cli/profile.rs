//! The profile and the flags that change what it sends, for every command that takes one.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;

use crate::{
    error::{Error, Result},
    profile::{self, Profile, SizeMix},
    program::{self, Compiled, PortFacts},
    units::Rate,
    wire::{capture::MAX_CAPTURE_BYTES, signature::run_tag},
};

/// A profile, and what is different from it.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// Profile (YAML), or a TRex configuration with ports
    profile: PathBuf,
    /// Load per port, shared among its streams: 1mpps, 500kpps, 3.5gbps (L2, FCS in), 3.5gbpsl1, 50%, or max
    /// [default: the profile's, else max]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Frame sizes with FCS, one trial or search each: 64,128,1518, imix, imix:aaaaaaabbbbg
    #[arg(long, value_name = "LIST")]
    frame_size: Option<String>,
    /// Every stream also in the other direction
    #[arg(long)]
    bidirectional: bool,
    /// Seed of everything random [default: the profile's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl ProfileArgs {
    /// The profile with what the flags change, and the frame sizes asked for (none: the profile's).
    pub(super) fn read(&self) -> Result<(Profile, Vec<SizeMix>)> {
        let mut profile = read_profile(&self.profile)?;
        profile.rate = self.rate.or(profile.rate);
        profile.seed = self.seed.unwrap_or(profile.seed);
        if self.bidirectional {
            profile.set_bidirectional()?;
        }
        let sizes = match &self.frame_size {
            None => Vec::new(),
            Some(text) => profile::parse_size_list(text)
                .map_err(|cause| Error::usage("use", format!("--frame-size {text}")).because(cause))?,
        };
        Ok((profile, sizes))
    }

    /// The profile, compiled with placeholders for what only a NIC knows; one for each frame size asked for.
    pub(super) fn compile(&self) -> Result<Vec<(Profile, Compiled)>> {
        let (profile, sizes) = self.read()?;
        let compile = |profile: Profile| {
            let facts: Vec<_> = (0..profile.ports.len()).map(PortFacts::placeholder).collect();
            let compiled = program::compile(&profile, &facts, run_tag(0), profile.seed)?;
            Ok((profile, compiled))
        };
        if sizes.is_empty() {
            return Ok(vec![compile(profile)?]);
        }
        let with_size = |size| {
            let mut profile = profile.clone();
            profile.set_frame_size(size);
            compile(profile)
        };
        sizes.iter().map(with_size).collect()
    }
}

/// Reads a profile and the files it refers to.
pub(super) fn read_profile(path: &Path) -> Result<Profile> {
    profile::load(path, &read_bounded)
}

/// A file's bytes; one byte more than the largest capture at most, so that `/dev/zero` is an error and not an endless read.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_CAPTURE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
