//! The fixtures themselves: a topology that does not carry frames would make every other test meaningless.

use crate::support::{
    harness::Test,
    netns::{Options, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![a_forwarding_topology_carries_frames_and_cleans_up]
}

fn a_forwarding_topology_carries_frames_and_cleans_up() {
    let topology = Topology::forward(Options::default());
    topology.generator.sh("ip addr add 10.1.0.2/24 dev g0");
    topology.generator.sh("ping -c 1 -W 2 10.1.0.1");
    assert!(topology.generator.counter("g0", "tx_packets") > 0);
    let names = [topology.generator.name().to_owned(), topology.dut.name().to_owned()];
    drop(topology);
    let left =
        String::from_utf8(std::process::Command::new("ip").args(["netns", "list"]).output().unwrap().stdout).unwrap();
    assert!(names.iter().all(|name| !left.contains(name.as_str())), "{left}");
}
