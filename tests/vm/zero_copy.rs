//! Zero-copy proved on real drivers: bound, confirmed by the kernel, every frame intact at the other end; refused by name elsewhere.

use crate::{
    fixture::{self, Machine, RUN},
    support::harness::Test,
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        igb_zero_copy_delivers_every_frame_of_a_mixed_profile,
        virtio_zero_copy_delivers_every_frame_of_a_mixed_profile,
    ]
}

/// Sizes on both sides of igb's 1024-byte trap.
const SIZES: &str = "64,128,512,1024,1025,1028,1280,1518";

/// Two NICs of the guest that face each other, both ways.
fn pair(machine: &Machine, a: usize, b: usize) -> String {
    let port = |n: usize, peer: usize| {
        format!(
            "  - {{interface: nic{n}, src_ip: 10.{0}.0.2, default_gw: 10.{0}.0.3, dest_mac: '{1}'}}\n",
            n + 1,
            machine.spec().mac(peer)
        )
    };
    format!("size: [{SIZES}]\nbidirectional: true\nports:\n{}{}", port(a, b), port(b, a))
}

fn delivers_everything(a: usize, b: usize) {
    let machine = fixture::generator();
    let arguments = "run PROFILE --backend xsk-zc --rate 8kpps --count 16000 --workers 1";
    let outcome = machine.plimsoll(&pair(&machine, a, b), arguments, RUN).expect_code(0);
    for port in outcome.json["ports"].as_array().expect("ports") {
        assert_eq!((port["backend"].as_str(), port["mode"].as_str()), (Some("xsk"), Some("zero-copy")), "{port}");
    }
    let trial = outcome.trial(0);
    for port in trial["ports"].as_array().expect("ports") {
        for count in ["intended_frames", "offered_frames", "completed_frames", "received_frames"] {
            assert_eq!(port[count], 16_000, "{count} of {port}");
        }
        assert_eq!(port["rx_bytes"], port["tx_bytes"], "{port}");
    }
    assert_eq!(trial["lost_frames"], 0);
}

fn igb_zero_copy_delivers_every_frame_of_a_mixed_profile() {
    delivers_everything(0, 1);
}

fn virtio_zero_copy_delivers_every_frame_of_a_mixed_profile() {
    delivers_everything(2, 3);
}
