//! The addresses that a port stands for on its link, for its ARP and ND answers.
//!
//! Pure; control plane. A port without a known prefix is taken to have the usual one: it answers only for addresses that the
//! profile uses, so too wide a subnet does no harm.

use std::net::IpAddr;

use crate::{
    profile::{Header, PortConfig, Values},
    wire::layer::LayerKind,
};

/// Addresses that a port stands for on its link: its own and its streams' that lie in its subnet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OnLink {
    /// Inclusive ranges.
    pub ranges: Vec<(IpAddr, IpAddr)>,
    /// The gateway: the DUT's own address, never answered for.
    pub except: Option<IpAddr>,
}

impl OnLink {
    /// Whether the port answers for `ip`.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let same_family = |range: &&(IpAddr, IpAddr)| range.0.is_ipv4() == ip.is_ipv4();
        self.except != Some(ip)
            && self.ranges.iter().filter(same_family).any(|(first, last)| (*first..=*last).contains(&ip))
    }
}

impl OnLink {
    /// The port's own address.
    pub(super) fn of(port: &PortConfig) -> OnLink {
        OnLink { ranges: port.src_ip.iter().map(|&ip| (ip, ip)).collect(), except: port.default_gw }
    }

    /// Adds the part of a field of these headers' outermost IP header (`src`, `dst`) that lies in the port's subnet.
    pub(super) fn add(&mut self, port: &PortConfig, headers: &[Header], field: &str) {
        let Some(ip) = headers.iter().find(|header| header.kind.is_ip()) else { return };
        let Some(vary) = ip.field(field) else { return };
        let bounds = match &vary.values {
            Values::List(list) => list.iter().map(|&value| (value, value)).collect(),
            values => vec![values.bounds()],
        };
        self.ranges.extend(bounds.iter().filter_map(|&(first, last)| within_subnet(port, ip.kind, first, last)));
    }

    /// Sorted, each range once.
    pub(super) fn tidy(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup();
    }
}

/// The part of a range of addresses that lies in the port's subnet.
fn within_subnet(port: &PortConfig, kind: LayerKind, first: u128, last: u128) -> Option<(IpAddr, IpAddr)> {
    let (own, bits, matches) = match port.src_ip? {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32, kind == LayerKind::Ipv4),
        IpAddr::V6(ip) => (u128::from(ip), 128, kind == LayerKind::Ipv6),
    };
    let host_bits = bits - u32::from(port.prefix_len_or_usual()?);
    let hosts = 1u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
    let (low, high) = (own & !hosts, own | hosts);
    let (first, last) = (first.max(low), last.min(high));
    let address = |value: u128| match bits {
        32 => IpAddr::V4((value as u32).into()),
        _ => IpAddr::V6(value.into()),
    };
    (matches && first <= last).then(|| (address(first), address(last)))
}
