//! TRex's configuration (`/etc/trex_cfg.yaml`): recognised by its shape, read for its ports.
//!
//! Pure. What concerns DPDK, cores and memory is understood and ignored; `dummy` ports stay placeholders.

use super::{
    PortConfig, keys,
    node::{Kind, Node, Source},
    ports,
};
use crate::error::Result;

/// The one mapping of a TRex configuration, if this is one: a list of one mapping, or a mapping, with a key for its ports.
pub(super) fn configuration(root: &Node) -> Option<&Node> {
    let candidate = match &root.kind {
        Kind::List(items) => items.first()?,
        _ => root,
    };
    let is_its_own = |key: &str| matches!(key, "interfaces" | "port_info" | "port_limit");
    match &candidate.kind {
        Kind::Map(entries) => entries.iter().any(|(key, ..)| is_its_own(key)).then_some(candidate),
        _ => None,
    }
}

/// Says what a list at the top of a file is, if it is one of TRex's other files.
pub(super) fn foreign_list(root: &Node) -> Option<&'static str> {
    let Kind::List(items) = &root.kind else { return None };
    let Kind::Map(entries) = &items.first()?.kind else { return None };
    let has = |name: &str| entries.iter().any(|(key, ..)| key == name);
    if has("cap_info") || has("generator") || has("cap_ipg") {
        return Some("a TRex traffic file (cap_info, generator), not a profile with ports");
    }
    if has("stream") || has("self_start") {
        return Some("a TRex stream file, not a profile with ports");
    }
    if has("interface") || has("src_ip") || has("default_gw") {
        return Some("a list of ports without the key `ports:` above it");
    }
    None
}

/// Reads the ports of a TRex configuration.
pub(super) fn trex_ports(source: &Source<'_>, node: &Node) -> Result<Vec<PortConfig>> {
    let map = source.section(node, "TRex configuration", keys::TREX)?;
    let limit = match map.take("port_limit")? {
        Some(node) => source.integer(node, "a number of ports", 1, super::MAX_PORTS as u64)? as usize,
        None => super::MAX_PORTS,
    };
    let interfaces = source.items(map.require("interfaces")?);
    let info = map.take("port_info")?.map(|node| source.items(node)).unwrap_or_default();
    if info.len() > interfaces.len() {
        let at = info[interfaces.len()].at;
        let cause = format!("port_info has {} entries for {} interfaces", info.len(), interfaces.len());
        return Err(source.fail(at, cause));
    }
    let mut found = Vec::new();
    for (index, interface) in interfaces.iter().enumerate().take(limit) {
        let mut port = ports::interface_port(source, interface)?;
        if let Some(node) = info.get(index) {
            let map = source.section(node, "port_info entry", keys::PORT_INFO)?;
            ports::addresses(source, &map, &mut port)?;
        }
        found.push(port);
    }
    Ok(found)
}
