//! The profile and the flags that change what it sends, for every command that takes one.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;

use crate::{
    caveat::{Caveat, Code},
    dut::observer::Target,
    error::{Error, Result},
    human,
    profile::{self, Profile, SizeMix},
    program::{self, Compiled, PortFacts},
    units::Rate,
    wire::{capture::MAX_CAPTURE_BYTES, signature::run_tag},
};

/// A profile, and what is different from it.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// Profile (YAML), or a TRex configuration with ports
    #[arg(required = true)]
    profile: Option<PathBuf>,
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
    /// The load that a flag asks for.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Makes sure that what is written does not replace the profile.
    ///
    /// # Errors
    /// `output` is the same file, by whatever name.
    pub(super) fn refuse_overwriting(&self, output: Option<&Path>) -> Result<()> {
        super::refuse_overwriting(output, self.profile.as_slice(), "it is the profile itself")
    }

    /// The profile with what the flags change, and the frame sizes asked for (none: the profile's).
    pub(super) fn read(&self) -> Result<(Profile, Vec<SizeMix>)> {
        // The parser asks for one, except where another flag does without.
        let path =
            self.profile.as_deref().ok_or_else(|| Error::usage("read", "the profile").because("none is named"))?;
        let mut profile = read_profile(path)?;
        // A way to read the DUT that cannot be one is a mistake of the profile; one that does not answer is a doubt.
        let ways = profile.dut.iter().flat_map(|dut| std::iter::once(&dut.observe).chain(&dut.also_observe));
        ways.map(|way| Target::parse(way)).try_for_each(|parsed| parsed.map(drop))?;
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
            let mut facts: Vec<_> = (0..profile.ports.len()).map(PortFacts::placeholder).collect();
            facts.iter_mut().for_each(|port| port.link_bps = Some(ASSUMED_LINK_BPS));
            let mut compiled = program::compile(&profile, &facts, run_tag(0), profile.seed)?;
            if needs_link_speed(&profile) {
                let text = format!(
                    "rates in % are reckoned with a link of {}, because no NIC is looked at here",
                    human::link_speed(ASSUMED_LINK_BPS / 1_000_000)
                );
                compiled.caveats.push(Caveat::new(Code::Note, text));
            }
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

/// What `check` and `pcap` take for a link's speed: a share of it is no mistake of the profile.
const ASSUMED_LINK_BPS: u64 = 10_000_000_000;

/// Whether a rate is a share of a link speed that only the NIC knows.
fn needs_link_speed(profile: &Profile) -> bool {
    let is_share = |rate: Option<Rate>| matches!(rate, Some(Rate::PpmOfLink(_)));
    let unknown = |port: usize| profile.ports[port].link_bps.is_none();
    profile.streams.iter().any(|stream| unknown(stream.port) && (is_share(stream.rate) || is_share(profile.rate)))
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
