//! Counts our frames of any run on a DUT's interface by an XDP program, and leaves them all to the DUT: `plimsoll sink`.
//!
//! Control plane; one thread. Costs no packet buffer and no copy, so it counts what the driver delivers; and it recognises short
//! signatures, which the packet filter (`host/tally`) cannot: by their sequences, from the second frame of a stream on each CPU on.

use std::mem::MaybeUninit;

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use super::{
    attach::{Attachment, XdpMode, attach, refuse_foreign},
    log,
    rx::XdpChoice,
    surroundings::Surroundings,
};
use crate::{
    caveat::Caveat,
    error::{Error, Result},
    host::{
        caps::{self, Need},
        link::Link,
        system,
    },
};

#[allow(missing_docs, clippy::undocumented_unsafe_blocks, clippy::all, reason = "generated")]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/sink.skel.rs"));
}

/// Our frames so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// With either signature.
    pub frames: u64,
    /// Of these, with a short one.
    pub short_frames: u64,
}

/// The counting program on an interface; gone when dropped.
#[derive(Debug)]
pub struct XdpTally {
    // Dropped first: the offloads that it turned off can come back only then.
    attachment: Attachment,
    counts: MapHandle,
    caveats: Vec<Caveat>,
    _surroundings: Surroundings,
}

impl XdpTally {
    /// Attaches it: native, else generic, as `choice` allows. Waits up to 30 s for a link that attaching took down.
    ///
    /// # Errors
    /// A kernel before 5.9, no privilege, somebody else's program (errno EBUSY), or no mode that works.
    pub fn attach(link: &Link, choice: XdpChoice) -> Result<XdpTally> {
        let failed = || Error::environment("count frames by XDP on", &link.name);
        if let Some(old) = system::kernel_too_old() {
            return Err(failed().because(old));
        }
        log::quiet();
        caps::require(Need::Xdp)?;
        refuse_foreign(link)?;
        let mut surroundings = Surroundings::of(link);
        let mut refusal = None;
        for (mode, is_frags) in [(XdpMode::Native, false), (XdpMode::Native, true), (XdpMode::Generic, false)] {
            if !choice.allows(mode) {
                continue;
            }
            match load(link, mode, is_frags) {
                Ok((attachment, counts)) => {
                    let caveats = surroundings.changes()?;
                    return Ok(XdpTally { attachment, counts, caveats, _surroundings: surroundings });
                }
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(failed))
    }

    /// How it runs.
    pub fn mode(&self) -> XdpMode {
        self.attachment.mode
    }

    /// What attaching changed.
    pub fn caveats(&self) -> &[Caveat] {
        &self.caveats
    }

    /// Our frames since it was attached.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counted(&self) -> Result<Counted> {
        let failed = || Error::environment("read", "the counting program's map");
        let per_cpu = self
            .counts
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|cause| failed().because(cause))?
            .ok_or_else(failed)?;
        let word = |bytes: &[u8], at: usize| -> u64 {
            bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        let sum = |at| per_cpu.iter().map(|bytes| word(bytes, at)).sum::<u64>();
        // `struct sink_counts`.
        let (full, short_frames) = (sum(0), sum(8));
        Ok(Counted { frames: full + short_frames, short_frames })
    }
}

fn load(link: &Link, mode: XdpMode, is_frags: bool) -> Result<(Attachment, MapHandle)> {
    log::forget();
    let failed =
        |cause: libbpf_rs::Error| Error::environment("load the counting program for", &link.name).because(cause);
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::SinkSkelBuilder::default().open(&mut storage).map_err(failed)?;
    open.progs.plimsoll_sink.set_autoload(!is_frags);
    open.progs.plimsoll_sink_f.set_autoload(is_frags);
    let loaded = open.load().map_err(failed)?;
    let program = if is_frags { &loaded.progs.plimsoll_sink_f } else { &loaded.progs.plimsoll_sink };
    let counts = MapHandle::try_from(&loaded.maps.counts).map_err(failed)?;
    Ok((attach(std::os::fd::AsFd::as_fd(program), link, mode)?, counts))
}
