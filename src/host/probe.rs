//! What this host and its NICs can do, for `plimsoll probe`: facts, which ways to send and count work, and why others do not.
//!
//! Control plane. Tries what can be tried without disturbing an interface (sockets, the kernel's features on a private
//! namespace); what would reset a queue or retrain a link is asked of the driver instead, and said to be only asked. Changes
//! nothing.

use serde::Serialize;

use super::{
    caps::{self, Need},
    link::{Device, Link, Rings},
    netns, routes, system,
};
use crate::{
    backend::{
        live,
        packet::PacketQueue,
        xsk::{XskMode, XskQueue},
    },
    error::{Error, Result},
    ids::QueueId,
    report::result::Host,
    xdp::{
        attach::{self, Features},
        rx::{Receiver, RxConfig, XdpChoice},
    },
};

/// Longest buffer that the tries ask for: a minimum-size frame's.
const TRY_BYTES: usize = 60;

/// The host and the interfaces that were asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Probe {
    /// Name and version of this document's shape.
    pub schema: &'static str,
    /// Kernel, CPUs, clock source, namespace.
    pub host: Host,
    /// What about the host a user should know before trusting a number.
    pub notes: Vec<String>,
    /// Interfaces.
    pub ports: Vec<PortProbe>,
}

/// An interface.
#[derive(Debug, Clone, Serialize)]
pub struct PortProbe {
    /// Name, with other names.
    pub name: String,
    /// All its other names.
    pub altnames: Vec<String>,
    /// Own MAC.
    pub mac: String,
    /// Driver or kind of virtual device, with its version.
    pub driver: String,
    /// Bus address.
    pub bus: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u64>,
    /// "up", "up, no carrier" or "down".
    pub state: &'static str,
    /// MTU, bytes.
    pub mtu: u64,
    /// Claimed link speed, Mbit/s; `None` if it claims none.
    pub claim_mbps: Option<u64>,
    /// Receive queues in use.
    pub rx_queues: u64,
    /// Transmit queues in use.
    pub tx_queues: u64,
    /// Rings in descriptors, if told.
    pub rings: Option<String>,
    /// Offloads that are on and matter here.
    pub offloads: Vec<String>,
    /// XDP features that the driver announces; `None` if the kernel cannot be asked (before 6.3).
    pub xdp_features: Option<Vec<&'static str>>,
    /// The XDP program that is attached.
    pub xdp_program: Option<String>,
    /// Interrupts with their CPUs, `label → CPUs`.
    pub irqs: Vec<String>,
    /// Ways to send (`xsk-zc`, `live`, `xsk-copy`, `packet`), fastest first, then ways to count (`rx native`, `rx generic`).
    pub ways: Vec<Way>,
    /// What to watch out for with this driver and set-up.
    pub hints: Vec<String>,
}

/// A way to send or to count.
#[derive(Debug, Clone, Serialize)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// Whether it works.
    pub verdict: Verdict,
    /// How that is known, or why it does not work.
    pub reason: String,
}

/// Whether something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Tried: it works.
    Works,
    /// Not tried, because that would disturb the interface; the driver says so.
    Announced,
    /// It does not.
    No,
}

/// Probes these interfaces, or all but `lo` if none is named.
///
/// # Errors
/// A named interface does not exist.
pub fn probe(names: &[String]) -> Result<Probe> {
    let links: Vec<Link> = if names.is_empty() {
        Link::all()?.into_iter().filter(|link| link.name != "lo").collect()
    } else {
        names.iter().map(|name| Link::find(name)).collect::<Result<_>>()?
    };
    let counting = try_counting();
    Ok(Probe {
        schema: "plimsoll-probe/1",
        host: system::host(),
        notes: host_notes(),
        ports: links.iter().map(|link| PortProbe::of(link, &counting)).collect(),
    })
}

/// Loads the counting program and attaches it to `lo` of a namespace made for it; why not, if not.
fn try_counting() -> Result<(), String> {
    let tried = netns::in_new(|| {
        let attached = Link::find("lo").and_then(|lo| Receiver::attach(&lo, &RxConfig::default(), XdpChoice::Generic));
        Ok(attached.map(drop).map_err(|error| cause(&error)))
    });
    tried.unwrap_or_else(|error| Err(format!("no namespace to try it in: {error}")))
}

fn host_notes() -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(system::kernel_too_old());
    for (need, what) in [(Need::RawSocket, "sending"), (Need::Xdp, "counting received frames and backend live")] {
        let missing = caps::missing(need);
        if !missing.is_empty() {
            notes.push(format!("{what} needs {}", missing.join(" and ")));
        }
    }
    if let Some(bytes) = caps::memlock_limit_bytes() {
        notes.push(format!("locked memory is limited to {} KiB (AF_XDP needs some MB): `ulimit -l`", bytes / 1024));
    }
    if let Some(mode) = system::lockdown().filter(|mode| mode != "none") {
        notes.push(format!("kernel lockdown: {mode}"));
    }
    let (allowed, online) = (system::allowed_cpus().len(), system::online_cpus().len());
    if allowed < online {
        notes.push(format!("this process may use {allowed} of {online} CPUs"));
    }
    if allowed == 1 {
        notes.push("one CPU: generator and interrupt handling share it".to_owned());
    }
    notes
}

impl PortProbe {
    fn of(link: &Link, counting: &Result<(), String>) -> PortProbe {
        let device = Device::of(link);
        let features = attach::features(link.index);
        let kind = || link.kind.clone().unwrap_or_else(|| "unknown".to_owned());
        let driver = device.driver.clone().unwrap_or_else(kind);
        let offloads = ["rx-lro", "rx-gro", "rx-gro-hw", "rx-vlan-hw-parse", "tx-vlan-hw-insert"];
        PortProbe {
            name: link.name.clone(),
            altnames: link.altnames.clone(),
            mac: link.mac.to_string(),
            driver: match &device.driver_version {
                Some(version) if *version != system::kernel_release() => format!("{driver} {version}"),
                _ => driver.clone(),
            },
            bus: device.bus_info.clone(),
            numa_node: device.numa_node,
            state: match (link.is_up, link.has_carrier) {
                (false, _) => "down",
                (true, false) => "up, no carrier",
                (true, true) => "up",
            },
            mtu: link.mtu,
            claim_mbps: device.claim_mbps,
            rx_queues: device.rx_queues(link),
            tx_queues: device.tx_queues(link),
            rings: device.rings.map(rings),
            offloads: offloads.into_iter().filter(|name| device.has_feature(name)).map(str::to_owned).collect(),
            xdp_features: features.map(Features::names),
            xdp_program: link.xdp.map(|attached| {
                let name = attach::program_name(attached.program_id).unwrap_or_else(|| "?".to_owned());
                format!("`{name}` (id {}, {})", attached.program_id, attached.mode)
            }),
            irqs: system::irqs(link, &device).iter().map(|irq| format!("{} → {:?}", irq.label, irq.cpus)).collect(),
            ways: ways(link, &driver, features, counting),
            hints: hints(link, &device, &driver, features),
        }
    }
}

fn rings(rings: Rings) -> String {
    format!("rx {} of {}, tx {} of {}", rings.rx, rings.max_rx, rings.tx, rings.max_tx)
}

fn ways(link: &Link, driver: &str, features: Option<Features>, counting: &Result<(), String>) -> Vec<Way> {
    let tried = |name, outcome: Result<String, String>| match outcome {
        Ok(reason) => Way { name, verdict: Verdict::Works, reason },
        Err(reason) => Way { name, verdict: Verdict::No, reason },
    };
    let unknown = |name| Way {
        name,
        verdict: Verdict::Announced,
        reason: "this kernel cannot say; only a run tries it".to_owned(),
    };
    let opened = "socket opened and bound".to_owned();
    let zero_copy = match features {
        Some(features) if features.has(Features::ZERO_COPY) => Way {
            name: "xsk-zc",
            verdict: Verdict::Announced,
            reason: "the driver announces it; binding resets a queue, so only a run tries it".to_owned(),
        },
        Some(_) => tried("xsk-zc", Err(format!("driver {driver} does not announce zero-copy"))),
        None => unknown("xsk-zc"),
    };
    let live = match features {
        // Asking the backend would attach a program to make the driver ready.
        Some(features) if !features.has(Features::NDO_XMIT) && features.has(Features::BASIC) && driver != "veth" => {
            Way {
                name: "live",
                verdict: Verdict::Announced,
                reason: "the driver may take redirected frames once an XDP program is attached; only a run tries it"
                    .to_owned(),
            }
        }
        Some(features) if !features.has(Features::NDO_XMIT) => {
            tried("live", Err(format!("driver {driver} takes no redirected frames")))
        }
        Some(_) => tried(
            "live",
            live::probe(&link.name, link.index)
                .map(|()| "live frames ran in a private namespace; the driver takes redirected frames".to_owned())
                .map_err(|error| cause(&error)),
        ),
        None => unknown("live"),
    };
    let copy = XskQueue::open(&link.name, QueueId(0), XskMode::Copy, TRY_BYTES);
    let packet = PacketQueue::open(&link.name, link.index, QueueId(0), TRY_BYTES);
    let native = match (counting, features) {
        (Err(reason), _) => tried("rx native", Err(reason.clone())),
        (Ok(()), Some(features)) if !features.has(Features::BASIC) => {
            tried("rx native", Err(format!("driver {driver} does not announce native XDP")))
        }
        (Ok(()), features) => Way {
            name: "rx native",
            verdict: Verdict::Announced,
            reason: match features {
                Some(_) => "the driver announces it; attaching may retrain the link, so only a run tries it".to_owned(),
                None => "this kernel cannot say; a run tries it".to_owned(),
            },
        },
    };
    let generic = counting.clone().map(|()| "attached to a private interface; every driver has it".to_owned());
    vec![
        zero_copy,
        live,
        tried("xsk-copy", copy.map(|_| opened.clone()).map_err(|error| cause(&error))),
        tried("packet", packet.map(|_| opened).map_err(|error| cause(&error))),
        native,
        tried("rx generic", generic),
    ]
}

/// The cause alone: what was tried, and on what, stands beside it.
fn cause(error: &Error) -> String {
    error.cause().map_or_else(|| error.to_string(), str::to_owned)
}

/// What is known to go wrong with this driver, kind or setting.
fn hints(link: &Link, device: &Device, driver: &str, features: Option<Features>) -> Vec<String> {
    let mut hints = Vec::new();
    let name = &link.name;
    match routes::default_routes_via(link.index) {
        Ok(families) if !families.is_empty() => {
            hints.push(format!(
                "carries the {} default route: a run refuses it without --force",
                families.join(" and ")
            ));
        }
        Ok(_) => {}
        Err(error) => hints.push(error.to_string()),
    }
    if device.claim_mbps.is_none() {
        hints.push("claims no link speed: give rates in pps or bps, not in percent".to_owned());
    }
    hints.extend(link.upper_device_hint());
    if let Some(above) = link.controller_index.and_then(|index| Link::by_index(index).ok()) {
        hints.push(format!("belongs to {}: frames it receives go there", above.name));
    }
    if device.has_feature("rx-vlan-hw-parse") {
        hints.push(
            "takes VLAN tags off before XDP sees a frame: frames are recognised all the same, byte counts lack 4 bytes"
                .to_owned(),
        );
    }
    let queues = device.channels.unwrap_or_default();
    let fixed = |feature: &str| device.features.get(feature).is_some_and(|state| state.is_on && state.is_fixed);
    match driver {
        "vmxnet3" => hints.push(
            "vmxnet3: attaching XDP resets the NIC, clears LRO and re-sizes receive rings; no zero-copy; the link speed is a \
             label, not a limit"
                .to_owned(),
        ),
        "virtio_net" => {
            for feature in ["rx-lro", "rx-gro-hw"].into_iter().filter(|feature| fixed(feature)) {
                hints.push(format!("virtio: {feature} is on and fixed, native XDP is refused: switch it off on the hypervisor"));
            }
            if queues.max_combined > 0 && queues.combined * 2 > queues.max_combined.max(2) {
                hints.push(format!(
                    "virtio: native XDP wants a spare TX queue per CPU; if it is refused, `ethtool -L {name} combined {}`",
                    (queues.max_combined / 2).max(1)
                ));
            }
        }
        "ena" | "gve" => {
            let most = queues.max_combined.max(queues.max_rx) / 2;
            let used = queues.combined.max(queues.rx);
            if most == 0 {
                hints.push(format!("{driver}: native XDP needs two queues, this instance has one: frames are counted in generic mode"));
            } else if used > most {
                hints.push(format!("{driver}: native XDP uses half of the queues: `ethtool -L {name} combined {most}`"));
            }
        }
        "hv_netvsc" if device.has_feature("rx-lro") => {
            hints.push(format!("netvsc: LRO must be off for native XDP: `ethtool -K {name} lro off`"));
        }
        "e1000" | "e1000e" | "8139cp" | "r8169" => {
            hints.push(format!("{driver} has no native XDP: frames are counted in generic mode"));
        }
        "veth" => {
            if features.is_some_and(|features| !features.has(Features::NDO_XMIT)) {
                hints.push("veth: backend live needs an XDP program or GRO on the peer".to_owned());
            }
            if link.mtu > 3506 {
                hints.push("veth: above MTU 3506 frames are counted by the program for several buffers".to_owned());
            }
        }
        _ => {}
    }
    // A VF that netvsc has taken over: the synthetic NIC is the one to use.
    if let Some(above) = link.controller_index.and_then(|index| Link::by_index(index).ok())
        && Device::of(&above).driver.as_deref() == Some("hv_netvsc")
    {
        hints.push(format!("is the VF of {}: use {} instead", above.name, above.name));
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::link::{Channels, Feature, Stats},
        wire::mac::Mac,
    };

    fn link() -> Link {
        Link {
            index: u32::MAX,
            name: "eth9".into(),
            altnames: Vec::new(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            is_up: true,
            has_carrier: true,
            carrier_changes: 0,
            promiscuity: 0,
            kind: None,
            lower_index: None,
            controller_index: None,
            max_rx_queues: 1,
            max_tx_queues: 1,
            xdp: None,
            stats: Stats::default(),
        }
    }

    fn hints_of(driver: &str, device: Device) -> String {
        hints(&link(), &device, driver, None).join("\n")
    }

    #[test]
    fn ena_names_the_command_that_halves_its_queues() {
        let channels = |combined| Some(Channels { combined, max_combined: 8, ..Channels::default() });
        let device = |combined| Device { channels: channels(combined), ..Device::default() };
        assert!(hints_of("ena", device(8)).contains("ethtool -L eth9 combined 4"));
        assert!(!hints_of("ena", device(4)).contains("ethtool -L"));
        let single = Device {
            channels: Some(Channels { combined: 1, max_combined: 1, ..Channels::default() }),
            ..Device::default()
        };
        assert!(hints_of("gve", single).contains("generic"));
    }

    #[test]
    fn what_a_virtio_guest_cannot_switch_off_is_quoted() {
        let mut device = Device::default();
        device.features.insert("rx-gro-hw".into(), Feature { is_on: true, is_fixed: true });
        assert!(hints_of("virtio_net", device.clone()).contains("rx-gro-hw"));
        device.features.insert("rx-gro-hw".into(), Feature { is_on: true, is_fixed: false });
        assert!(!hints_of("virtio_net", device).contains("hypervisor"));
    }

    #[test]
    fn each_known_driver_has_its_hint() {
        for (driver, word) in [("vmxnet3", "LRO"), ("e1000", "generic"), ("e1000e", "generic")] {
            assert!(hints_of(driver, Device::default()).contains(word), "{driver}");
        }
        let mut lro = Device::default();
        lro.features.insert("rx-lro".into(), Feature { is_on: true, is_fixed: false });
        assert!(hints_of("hv_netvsc", lro).contains("ethtool -K eth9 lro off"));
    }

    #[test]
    fn an_unknown_link_speed_asks_for_absolute_rates() {
        assert!(hints_of("tun", Device::default()).contains("pps"));
        assert!(!hints_of("tun", Device { claim_mbps: Some(10), ..Device::default() }).contains("pps"));
    }
}
