//! The modelled DUT in the lab: put onto `d0`, changed and read from outside the DUT's namespace.

use std::{fs::File, os::fd::AsFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{DUT, GENERATOR, shell::Shell};
use crate::{
    error::{Error, Result},
    xdp::model::{Model, ModelConfig, ModelCounters},
};

/// Puts it onto `d0`, sending what it passes out of `d1` to `g1`.
pub(super) fn attach(config: &ModelConfig) -> Result<()> {
    let config = wired(config)?;
    // A redirect into veth needs an XDP program or GRO at its other end; the generator's receiver is not there yet.
    Shell::inside(GENERATOR).run("ethtool -K g1 gro on >/dev/null")?;
    let ifindex = link(DUT, "d0")?.0;
    inside(move || Model::attach(ifindex, &config).map(drop))
}

/// Changes how it behaves.
pub(super) fn configure(config: &ModelConfig) -> Result<()> {
    let config = wired(config)?;
    found(move |model| model.configure(&config))
}

/// Changes its first ring's size; its rate follows the curve.
///
/// # Errors
/// If the lab is not up with a modelled DUT.
pub fn set_ring(slots: u64) -> Result<()> {
    found(move |model| model.set_ring(slots))
}

/// How it behaves and what it counted.
///
/// # Errors
/// If the lab is not up with a modelled DUT.
pub fn read() -> Result<(ModelConfig, ModelCounters)> {
    found(|model| Ok((model.config()?, model.counters()?)))
}

/// Fills in where it sends to.
fn wired(config: &ModelConfig) -> Result<ModelConfig> {
    let ((out_ifindex, source), (_, destination)) = (link(DUT, "d1")?, link(GENERATOR, "g1")?);
    Ok(ModelConfig { out_ifindex, source, destination, ..config.clone() })
}

/// An interface's index and MAC address.
fn link(netns: &'static str, name: &str) -> Result<(u32, [u8; 6])> {
    let text = Shell::inside(netns).run(&format!("cat /sys/class/net/{name}/ifindex /sys/class/net/{name}/address"))?;
    let parsed = text.split_once('\n').and_then(|(index, mac)| {
        let mut bytes = [0; 6];
        for (byte, text) in bytes.iter_mut().zip(mac.split(':')) {
            *byte = u8::from_str_radix(text, 16).ok()?;
        }
        Some((index.parse().ok()?, bytes))
    });
    parsed.ok_or_else(|| Error::environment("read", format!("{name} of the lab")).because(format!("got `{text}`")))
}

fn found<T: Send + 'static>(act: impl FnOnce(&Model) -> Result<T> + Send + 'static) -> Result<T> {
    let ifindex = link(DUT, "d0")?.0;
    inside(move || act(&Model::find(ifindex)?))
}

/// Runs on a thread inside the DUT's namespace: interface numbers mean something only there.
fn inside<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let error = |cause: &std::io::Error| Error::environment("enter", DUT).os(cause).remedy("plimsoll lab up");
    let netns = File::open(format!("/var/run/netns/{DUT}")).map_err(|cause| error(&cause))?;
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|cause| error(&cause.into()))?;
        act()
    });
    thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
}
