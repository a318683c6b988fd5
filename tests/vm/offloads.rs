//! What attaching an XDP program turns off on a real driver is on again afterwards.

use crate::{
    fixture::{self, RUN},
    support::harness::Test,
};

pub fn tests() -> Vec<Test> {
    crate::tests![vmxnet3s_lro_is_off_under_xdp_and_on_again_after_it]
}

fn vmxnet3s_lro_is_off_under_xdp_and_on_again_after_it() {
    let dut = fixture::dut();
    let features = || dut.sh("ethtool -k nic0 | grep -v '\\[fixed\\]' | sort");
    // Off as the guest comes: it forwards.
    dut.sh("ethtool -K nic0 lro on");
    let before = features();
    assert!(before.contains("large-receive-offload: on"), "{before}");
    let line = "plimsoll sink nic0 --mode xdp --duration 4s >/run/sink.out 2>/run/sink.err & \
                for n in $(seq 100); do grep -q counting /run/sink.err && break; sleep 0.1; done; \
                ethtool -k nic0 | grep ^large; wait; cat /run/sink.err /run/sink.out";
    let output = dut.run(line, RUN).unwrap();
    eprintln!("{}", output.stdout);
    assert!(output.stdout.starts_with("large-receive-offload: off"), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("changed nic0") && output.stdout.contains("received: "), "{}", output.stdout);
    assert_eq!(features(), before);
    dut.sh("ethtool -K nic0 lro off");
}
