//! What `plimsoll probe` says: the host, and per interface its facts, the ways to send and count, and hints.
//!
//! Pure.

use super::document::{Block, Document, Table, Tone, words};
use crate::{
    host::probe::{PortProbe, Probe, Verdict},
    human,
};

/// Describes a probe.
pub fn describe(probe: &Probe) -> Document {
    let host = &probe.host;
    let mut facts = Table::new("", vec![words("host"), words("")]);
    let namespace = host.netns.clone().unwrap_or_else(|| "none named".to_owned());
    for (name, value) in [
        ("kernel", host.kernel.clone()),
        ("CPUs", format!("{} ({})", host.cpus, host.cpu_model.as_deref().unwrap_or("unknown model"))),
        ("clock source", host.clocksource.clone()),
        ("network namespace", namespace),
    ] {
        facts.rows.push(vec![name.to_owned(), value]);
    }
    let mut blocks = vec![Block::Table(facts)];
    if !probe.notes.is_empty() {
        blocks.push(Block::Doubts(probe.notes.clone()));
    }
    for port in &probe.ports {
        blocks.push(Block::Heading(port.name.clone()));
        blocks.extend(port_blocks(port));
    }
    let summary = match probe.ports.len() {
        0 => (Tone::Bad, "No interface besides lo in this network namespace.".to_owned()),
        _ => (Tone::Plain, summary(probe)),
    };
    Document { title: "plimsoll probe".to_owned(), blocks, summary: vec![summary] }
}

fn port_blocks(port: &PortProbe) -> Vec<Block> {
    let mut facts = Table::new("", vec![words("fact"), words("")]);
    let join = |list: &[String]| (!list.is_empty()).then(|| list.join(", "));
    let claim = port.claim_mbps.map_or_else(|| "none".to_owned(), human::link_speed);
    let features =
        port.xdp_features.as_ref().map(|names| if names.is_empty() { "none".to_owned() } else { names.join(", ") });
    for (name, value) in [
        ("driver", Some(port.driver.clone())),
        ("bus", port.bus.clone()),
        ("NUMA node", port.numa_node.map(|node| node.to_string())),
        ("other names", join(&port.altnames)),
        ("MAC", Some(port.mac.clone())),
        ("state", Some(port.state.to_owned())),
        ("MTU", Some(format!("{} bytes", port.mtu))),
        ("claimed link speed", Some(claim)),
        ("queues", Some(format!("{} rx, {} tx", port.rx_queues, port.tx_queues))),
        ("rings", port.rings.clone()),
        ("offloads on", join(&port.offloads)),
        ("XDP features", features),
        ("XDP program", port.xdp_program.clone()),
        ("interrupts", join(&port.irqs)),
    ] {
        if let Some(value) = value {
            facts.rows.push(vec![name.to_owned(), value]);
        }
    }
    let mut ways = Table::new("", vec![words("way"), words("works"), words("how that is known, or why not")]);
    for way in &port.ways {
        let verdict = match way.verdict {
            Verdict::Works => "yes",
            Verdict::Announced => "announced",
            Verdict::No => "no",
        };
        ways.rows.push(vec![way.name.to_owned(), verdict.to_owned(), way.reason.clone()]);
    }
    let mut blocks = vec![Block::Table(facts), Block::Table(ways)];
    if !port.hints.is_empty() {
        blocks.push(Block::Doubts(port.hints.clone()));
    }
    blocks
}

/// Which way to send is the fastest on each interface.
fn summary(probe: &Probe) -> String {
    let fastest = probe.ports.iter().map(|port| {
        let mut sending = port.ways.iter().filter(|way| !way.name.starts_with("rx "));
        match sending.find(|way| way.verdict != Verdict::No) {
            Some(way) if way.verdict == Verdict::Announced => format!("{}: {} if it works", port.name, way.name),
            Some(way) => format!("{}: {}", port.name, way.name),
            None => format!("{}: none", port.name),
        }
    });
    format!("Fastest way to send: {}.", fastest.collect::<Vec<_>>().join(", "))
}
