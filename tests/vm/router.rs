//! A DUT that forwards: from a tap through one driver and out by another, to the other tap, every frame counted.

use crate::{
    fixture::{self, DUT_NICS, RUN},
    support::{harness::Test, run::Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![a_guest_forwards_every_frame_between_two_drivers]
}

/// Frames each way; at 2 kpps no emulated driver has trouble.
const COUNT: u64 = 4000;

fn a_guest_forwards_every_frame_between_two_drivers() {
    let dut = fixture::dut();
    for (a, b) in [(0, 4), (2, 3)] {
        let port =
            |nic: usize| format!("  - {{interface: t{nic}, src_ip: 10.{0}.0.2, default_gw: 10.{0}.0.1}}\n", nic + 1);
        // No address is given: the gateways are asked, and answer.
        let profile = format!(
            "bidirectional: true\nports:\n{}{}dut: {{observe: 'vm:{}', interface: nic{b}}}\n",
            port(a),
            port(b),
            dut.spec().dir.display()
        );
        let forwarded = || dut.sh("awk '/^Ip: [0-9]/ {print $7}' /proc/net/snmp").parse::<u64>().expect("a count");
        let (before, to_b) = (forwarded(), dut.counter(&format!("nic{b}"), "tx_packets"));
        let arguments = format!("run PROFILE --backend packet --rate 2kpps --count {COUNT} --frame-size 64,1518");
        let outcome = Plimsoll::with_profile(&profile).run(&dut.netns, &arguments, RUN).expect_code(0);
        eprintln!(
            "{} and {}: {}",
            DUT_NICS[a],
            DUT_NICS[b],
            outcome.stdout.trim_end().lines().last().unwrap_or_default()
        );
        for size in 0..2 {
            for port in outcome.trial(size)["ports"].as_array().expect("ports") {
                for count in ["intended_frames", "offered_frames", "completed_frames", "received_frames"] {
                    assert_eq!(port[count], COUNT, "{count} of {port}");
                }
            }
            assert_eq!(outcome.trial(size)["lost_frames"], 0);
        }
        // Two sizes, both ways; the guest itself says that it was its IP layer, and that they left by the other NIC.
        assert!(forwarded() - before >= 4 * COUNT, "{} forwarded", forwarded() - before);
        assert!(dut.counter(&format!("nic{b}"), "tx_packets") - to_b >= 2 * COUNT);
    }
}
