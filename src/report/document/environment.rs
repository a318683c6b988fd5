//! Where it ran: the machine and the ports, with the mode each really got.

use super::{Block, Table, Tone, numbers, or_dash, words};
use crate::{
    human,
    report::{labels, result::ResultFile},
};

/// What sizes and bit rates count, said once in every report.
const LAYERS: &str = "frame sizes and L2 bit/s include the 4-byte FCS; L1 bit/s add preamble and gap, 20 bytes a frame";

pub(super) fn blocks(file: &ResultFile) -> Vec<Block> {
    let mut blocks = vec![Block::Line(Tone::Dim, machine(file)), Block::Line(Tone::Dim, LAYERS.to_owned())];
    if file.ports.is_empty() {
        return blocks;
    }
    let columns = vec![
        words("port"),
        words("driver"),
        words("sends with"),
        numbers("queues").rank(2),
        words("CPUs").rank(2),
        words("claims"),
        words("counts with"),
        words("address").rank(3),
        words("gateway").rank(3),
        numbers("MTU").rank(4),
    ];
    let mut table = Table::new("", columns);
    for port in &file.ports {
        let cpus: Vec<String> = port.worker_cpus.iter().map(u64::to_string).collect();
        table.rows.push(vec![
            port.name.clone(),
            port.driver.clone(),
            labels::backend(port),
            port.queues.to_string(),
            cpus.join(" "),
            port.claim_mbps.map_or_else(|| "no speed".to_owned(), human::link_speed),
            if port.xdp == "none" { "–".to_owned() } else { format!("{} XDP", port.xdp) },
            or_dash(port.src_ip.clone(), |ip| ip),
            or_dash(port.gateway.clone(), |gateway| gateway),
            human::count(port.mtu),
        ]);
    }
    blocks.push(Block::Table(table));
    for port in &file.ports {
        for (backend, reason) in &port.why_not {
            blocks.push(Block::Line(Tone::Dim, format!("{}: not {backend}: {reason}", port.name)));
        }
    }
    blocks
}

fn machine(file: &ResultFile) -> String {
    let host = &file.host;
    let mut parts = vec![format!("Linux {}", host.kernel)];
    let model = host.cpu_model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    let plural = if host.cpus == 1 { "" } else { "s" };
    parts.push(format!("{} CPU{plural}{model}", host.cpus));
    parts.push(format!("clock {}", host.clocksource));
    if let Some(netns) = &host.netns {
        parts.push(format!("netns {netns}"));
    }
    parts.push(format!("seed {}", file.seed));
    parts.join(" · ")
}
