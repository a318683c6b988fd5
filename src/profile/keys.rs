//! Every mapping of the profile language and its keys: the name that the documentation uses, then its synonyms.
//!
//! Pure data. The fields of headers are in `wire::layer`.

/// A valid key of a mapping: its name, then its synonyms.
pub(super) type Key = &'static [&'static str];

pub(super) const PROFILE: &[Key] = &[
    &["ports", "port"],
    &["streams", "stream"],
    &["dut"],
    &["size", "frame_size"],
    &["seed"],
    &["rate"],
    &["duration"],
    &["count"],
    &["workers"],
    &["flows"],
    &["bidirectional"],
];

pub(super) const PORT: &[Key] = &[
    &["interface", "iface", "name"],
    &["link_speed", "speed"],
    &["src_ip", "ip"],
    &["mask", "netmask"],
    &["default_gw", "gateway"],
    &["dest_mac", "dst_mac"],
    &["src_mac"],
    &["vlan", "vlans"],
];

/// What a TRex configuration says of a port beside its interface.
pub(super) const PORT_INFO: &[Key] = PORT.split_at(2).1;

pub(super) const VLAN_TAG: &[Key] = &[&["id", "vid"], &["pcp", "priority"], &["tpid"]];

pub(super) const DUT: &[Key] = &[&["observe"], &["interface", "iface"], &["restore"], &["set_ring"]];

pub(super) const STREAM: &[Key] = &[
    &["name"],
    &["port", "tx_port"],
    &["rx_port", "to"],
    &["pcap", "capture"],
    &["headers", "packet"],
    &["size", "frame_size"],
    &["rate"],
    &["share", "weight"],
    &["mode"],
    &["frames"],
    &["gap", "ibg"],
    &["bursts"],
    &["next"],
    &["track", "signature"],
    &["start_delay", "isg"],
    &["loops", "loop"],
    &["self_start"],
];

/// One of several frame sizes.
pub(super) const SIZE: &[Key] = &[&["size", "length"], &["share", "weight"]];

/// How a field varies.
pub(super) const FIELD: &[Key] = &[
    &["increment", "inc"],
    &["decrement", "dec"],
    &["random"],
    &["list", "values"],
    &["start"],
    &["step"],
    &["count"],
    &["every"],
];

pub(super) const PCAP: &[Key] = &[&["file"], &["timing"], &["passes", "loop"], &["rewrite"]];

pub(super) const REWRITE: &[Key] =
    &[&["src_mac"], &["dst_mac", "dest_mac"], &["src_ip"], &["dst_ip"], &["checksums"], &["map"]];

/// TRex's `/etc/trex_cfg.yaml`; the last entry holds keys that say nothing about ports.
pub(super) const TREX: &[Key] = &[
    &["interfaces"],
    &["port_info"],
    &["port_limit"],
    &[
        "version",
        "c",
        "prefix",
        "limit_memory",
        "platform",
        "memory",
        "low_end",
        "low_end_core",
        "stack",
        "enable_zmq_pub",
        "zmq_pub_port",
        "zmq_rpc_port",
        "telnet_port",
        "services_core",
        "new_memory",
        "rx_desc",
        "tx_desc",
        "tw",
        "port_bandwidth_gb",
        "port_speed",
        "port_mtu",
        "ext_dpdk_opt",
        "interfaces_vdevs",
        "vm_name",
        "max_pkt_size",
        "debug",
    ],
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{profile::parse, wire::layer::LayerKind};

    /// One letter wrong or missing, anywhere in a valid key.
    fn typos(name: &str) -> impl Iterator<Item = String> {
        (0..name.len())
            .flat_map(move |at| ["q", ""].map(|letter| format!("{}{letter}{}", &name[..at], &name[at + 1..])))
    }

    #[test]
    fn a_mistyped_key_of_any_mapping_is_named_before_anything_that_is_missing() {
        let headers = LayerKind::ALL.into_iter().filter(|&kind| kind != LayerKind::Raw).map(|kind| {
            let names: Vec<Key> = kind.fields().iter().map(|spec| spec.names).collect();
            (format!("{{ports: [{{interface: g0}}], streams: [{{headers: {{{}: {{KEY: 1}}}}}}]}}", kind.name()), names)
        });
        let stream = |inner: &str| format!("{{ports: [{{interface: g0}}], streams: [{inner}]}}");
        let mappings = [
            ("{KEY: 1}".to_owned(), PROFILE),
            ("{ports: [{KEY: 1}]}".to_owned(), PORT),
            ("{ports: [{interface: g0, vlan: {KEY: 1}}]}".to_owned(), VLAN_TAG),
            ("{ports: [{interface: g0}], dut: {KEY: 1}}".to_owned(), DUT),
            (stream("{KEY: 1}"), STREAM),
            (stream("{size: [{KEY: 1}]}"), SIZE),
            (stream("{headers: {udp: {src_port: {KEY: 1}}}}"), FIELD),
            (stream("{pcap: {KEY: 1}}"), PCAP),
            (stream("{pcap: {file: x, rewrite: {KEY: 1}}}"), REWRITE),
            ("{port_info: [], KEY: 1}".to_owned(), TREX),
            ("{interfaces: [g0], port_info: [{KEY: 1}]}".to_owned(), PORT_INFO),
        ];
        let mappings = mappings.into_iter().map(|(text, keys)| (text, keys.to_vec())).chain(headers);
        let mut tried = 0;
        for (text, keys) in mappings {
            let valid = keys.concat();
            for typo in valid.iter().flat_map(|name| typos(name)).filter(|typo| !typo.is_empty()) {
                if valid.contains(&typo.as_str()) {
                    continue;
                }
                let said = parse(&text.replace("KEY", &typo), "p.yaml").expect_err(&typo).to_string();
                let place = format!("cannot read p.yaml:1:{}: unknown key `{typo}`", text.find("KEY").unwrap() + 1);
                assert!(said.starts_with(&place), "{text}\n{said}");
                let meant = said.split("did you mean `").nth(1).and_then(|rest| rest.split('`').next());
                let meant = meant.unwrap_or_else(|| panic!("{said}"));
                assert!(valid.contains(&meant) && strsim::damerau_levenshtein(meant, &typo) == 1, "{said}");
                tried += 1;
            }
        }
        assert!(tried > 1_000, "{tried}");
    }
}
