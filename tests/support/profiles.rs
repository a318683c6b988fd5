//! Profiles made at random (`proptest`): every header, every way to vary, sizes from the smallest possible, all modes.
//!
//! Each text compiles. Used by whatever must hold for any profile: checksums, conformance of backends and interpreters.

use proptest::{collection::vec, option, prelude::*, sample::select};

use plimsoll::{profile, program};

/// Ports of every generated profile: `g0` sends to `g1` and back.
const PORTS: &str = "ports:
- {interface: g0, src_ip: 10.1.0.2/24, default_gw: 10.1.0.1}
- {interface: g1, src_ip: 10.2.0.2/24, default_gw: 10.2.0.1}
";

/// A profile's text that parses and compiles.
pub fn profile_text() -> impl Strategy<Value = String> {
    (any::<u32>(), any::<bool>(), vec(stream(), 1..4)).prop_map(|(seed, bidirectional, streams)| {
        let mut text = format!("{PORTS}seed: {seed}\nbidirectional: {bidirectional}\nstreams:\n");
        for (index, stream) in streams.iter().enumerate() {
            text += &format!("- {{name: s{index}, size: {}, {}}}\n", sizes(stream), stream.rest);
        }
        text
    })
}

/// A stream before its sizes are known to fit.
#[derive(Debug, Clone)]
struct Stream {
    headers: String,
    rest: String,
    /// Bytes over the smallest frame, one per size.
    extra: Vec<u64>,
}

/// The stream's sizes: those extra bytes over what its headers need.
fn sizes(stream: &Stream) -> String {
    let text = format!("{PORTS}streams: [{{size: 9216, headers: {}}}]\n", stream.headers);
    let parsed = profile::parse(&text, "generated").unwrap_or_else(|error| panic!("{text}\n{error}"));
    let compiled = program::compile(&parsed, &[], 1, 1).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let min = compiled.min_sizes[0].headers_bytes;
    let sizes: Vec<String> = stream.extra.iter().map(|extra| (min + extra).min(9216).to_string()).collect();
    format!("[{}]", sizes.join(", "))
}

fn stream() -> impl Strategy<Value = Stream> {
    let extra = vec(prop_oneof![0u64..20, 0u64..1500], 1..4);
    let mode = prop_oneof![
        3 => Just("mode: continuous".to_owned()),
        1 => (1u64..500).prop_map(|frames| format!("mode: burst, frames: {frames}")),
        1 => (1u64..50, 0u64..3000, 0u64..5)
            .prop_map(|(frames, gap, bursts)| format!("mode: multi_burst, frames: {frames}, gap: {}us, bursts: {bursts}", gap + 1)),
    ];
    (headers(), extra, 1u64..10, mode, option::of(1u64..2000)).prop_map(|(headers, extra, share, mode, delay)| {
        let delay = delay.map(|us| format!(", start_delay: {us}us")).unwrap_or_default();
        let rest = format!("share: {share}, {mode}{delay}, headers: {headers}");
        Stream { headers, rest, extra }
    })
}

/// Values between two bounds in every shape a profile can write them; `format` writes one.
fn values(low: u64, high: u64, format: fn(u64) -> String) -> BoxedStrategy<String> {
    let one = move || (low..=high).prop_map(format);
    let range = move || {
        (low..=high, low..=high)
            .prop_map(move |(a, b)| format!("'{}-{}'", bare(format(a.min(b))), bare(format(a.max(b)))))
    };
    prop_oneof![
        one(),
        range(),
        vec(one(), 2..6).prop_map(|list| format!("[{}]", list.join(", "))),
        (range(), 1u64..7, 1u64..5)
            .prop_map(|(range, step, every)| format!("{{increment: {range}, step: {step}, every: {every}}}")),
        (range(), 1u64..7).prop_map(|(range, step)| format!("{{decrement: {range}, step: {step}}}")),
        (range(), option::of(1u64..300)).prop_map(|(range, count)| match count {
            Some(count) => format!("{{random: {range}, count: {count}}}"),
            None => format!("{{random: {range}}}"),
        }),
    ]
    .boxed()
}

fn bare(text: String) -> String {
    text.trim_matches('\'').to_owned()
}

fn number(value: u64) -> String {
    value.to_string()
}

fn ipv4_address(value: u64) -> String {
    format!("'10.{}.{}.{}'", value >> 16 & 255, value >> 8 & 255, value & 255)
}

fn ipv6_address(value: u64) -> String {
    format!("'fd00:{:x}::{:x}:{:x}'", 7, value >> 16, value & 0xFFFF)
}

fn mac_address(value: u64) -> String {
    format!("'02:00:00:{:02x}:{:02x}:{:02x}'", value >> 16 & 255, value >> 8 & 255, value & 255)
}

/// A header with some of its fields given; `always` are given in any case.
fn header(
    name: &'static str,
    always: &'static str,
    fields: Vec<(&'static str, BoxedStrategy<String>)>,
) -> BoxedStrategy<String> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(field, values)| option::of(values.prop_map(move |value| format!("{field}: {value}"))))
        .collect();
    fields
        .prop_map(move |given| {
            let given: Vec<String> = (!always.is_empty())
                .then(|| always.to_owned())
                .into_iter()
                .chain(given.into_iter().flatten())
                .collect();
            format!("{{{name}: {{{}}}}}", given.join(", "))
        })
        .boxed()
}

fn ethernet(is_outer: bool) -> BoxedStrategy<String> {
    let mac = || values(1, 0xFF_FFFF, mac_address);
    // The outer source stays the NIC's own.
    if is_outer {
        header("ethernet", "", vec![("dst", mac())])
    } else {
        header("ethernet", "", vec![("src", mac()), ("dst", mac())])
    }
}

fn ip() -> BoxedStrategy<(String, bool)> {
    let v4 = header(
        "ipv4",
        "",
        vec![
            ("src", values(0x01_0002, 0x01_00FE, ipv4_address)),
            ("dst", values(0x02_0002, 0x02_0FFE, ipv4_address)),
            ("ttl", values(1, 255, number)),
            ("dscp", values(0, 63, number)),
            ("ecn", values(0, 3, number)),
            ("id", values(0, 65_535, number)),
        ],
    );
    let v6 = header(
        "ipv6",
        "src: 'fd00:1::2'",
        vec![
            ("dst", values(2, 0xFFFF_FFFE, ipv6_address)),
            ("flow_label", values(0, 0xF_FFFF, number)),
            ("hop_limit", values(1, 255, number)),
            ("dscp", values(0, 63, number)),
        ],
    )
    // An IPv4 port has no IPv6 destination to fall back on.
    .prop_map(|text| {
        if text.contains("dst:") { text } else { text.replace("'fd00:1::2'", "'fd00:1::2', dst: 'fd00:2::2'") }
    });
    prop_oneof![2 => v4.prop_map(|text| (text, true)), 1 => v6.prop_map(|text| (text, false))].boxed()
}

fn l4(is_v4: bool) -> BoxedStrategy<String> {
    let ports = || vec![("src_port", values(1, 65_535, number)), ("dst_port", values(1, 4_000, number))];
    let mut tcp = ports();
    tcp.extend([
        ("seq", values(0, 0xFFFF_FFFF, number)),
        ("ack", values(0, 0xFFFF_FFFF, number)),
        ("window", values(0, 65_535, number)),
        (
            "flags",
            select(vec!["syn", "ack", "syn+ack", "fin+ack", "rst", "psh+ack+ece"]).prop_map(str::to_owned).boxed(),
        ),
    ]);
    let icmp = vec![("id", values(0, 65_535, number)), ("seq", values(0, 65_535, number))];
    let icmp = header(if is_v4 { "icmp" } else { "icmpv6" }, "", icmp);
    prop_oneof![3 => header("udp", "", ports()), 2 => header("tcp", "", tcp), 1 => icmp].boxed()
}

fn transport() -> BoxedStrategy<Vec<String>> {
    let raw = option::weighted(0.2, vec(any::<u8>(), 1..9));
    (ip(), raw)
        .prop_flat_map(|((ip, is_v4), raw)| {
            l4(is_v4).prop_map(move |l4| {
                let mut stack = vec![ip.clone(), l4];
                if let Some(bytes) = &raw {
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    stack.push(format!("{{raw: '{hex}'}}"));
                }
                stack
            })
        })
        .boxed()
}

fn headers() -> BoxedStrategy<String> {
    let vlan = || header("vlan", "", vec![("pcp", values(0, 7, number))]);
    let vlan = move || {
        (vlan(), values(1, 4094, number))
            .prop_map(|(tag, id)| tag.replace("{vlan: {", &format!("{{vlan: {{id: {id}, ")).replace(", }", "}"))
    };
    let mpls = || {
        header(
            "mpls",
            "",
            vec![
                ("label", values(16, 0xF_FFFF, number)),
                ("tc", values(0, 7, number)),
                ("ttl", values(1, 255, number)),
            ],
        )
    };
    let tunnel = prop_oneof![
        4 => Just(Vec::new()).boxed(),
        1 => (ip(), header("gre", "", vec![("key", values(0, 0xFFFF_FFFF, number))])).prop_map(|((ip, _), gre)| vec![ip, gre]).boxed(),
        1 => (ip(), header("vxlan", "", vec![("vni", values(1, 0xFF_FFFF, number))]), ethernet(false))
            .prop_map(|((ip, _), vxlan, inner)| vec![ip, "udp".to_owned(), vxlan, inner])
            .boxed(),
    ];
    (option::of(ethernet(true)), vec(vlan(), 0..3), vec(mpls(), 0..2), tunnel, transport())
        .prop_map(|(ethernet, vlans, labels, tunnel, transport)| {
            let stack: Vec<String> =
                ethernet.into_iter().chain(vlans).chain(labels).chain(tunnel).chain(transport).collect();
            format!("[{}]", stack.join(", "))
        })
        .boxed()
}
