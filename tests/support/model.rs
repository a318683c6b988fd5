//! The modelled DUT between a test's own links: its ceiling is known, so a search has a truth to be held against.

use plimsoll::xdp::model::{Model, ModelConfig, ModelCounters};

use super::netns::{Netns, Options, Topology};

/// A forwarding topology whose DUT is modelled on `d0`.
pub struct ModelDut {
    /// The two namespaces.
    pub topology: Topology,
    model: Model,
}

impl ModelDut {
    /// Builds it; addresses and the interface that frames leave by are filled in.
    pub fn new(config: &ModelConfig) -> ModelDut {
        let topology = Topology::forward(Options::default());
        // A redirect into veth needs an XDP program or GRO at its other end, and live frames into d0 need the same.
        topology.generator.sh("ethtool -K g1 gro on");
        let config = ModelConfig {
            out_ifindex: index(&topology.dut, "d1"),
            source: mac(&topology.dut, "d1"),
            destination: mac(&topology.generator, "g1"),
            ..config.clone()
        };
        let d0 = index(&topology.dut, "d0");
        let model = topology.dut.enter(|| Model::attach(d0, &config).expect("the modelled DUT can be attached"));
        ModelDut { topology, model }
    }

    /// What it counted.
    pub fn counters(&self) -> ModelCounters {
        self.model.counters().expect("its map can be read")
    }
}

fn index(netns: &Netns, interface: &str) -> u32 {
    netns.sh(&format!("cat /sys/class/net/{interface}/ifindex")).parse().expect("an index is a number")
}

fn mac(netns: &Netns, interface: &str) -> [u8; 6] {
    let text = netns.mac(interface);
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a MAC address")).collect();
    bytes.try_into().expect("six bytes")
}
