//! NICs whose rings cannot overflow under QEMU: it stops reading the tap, so the loss is the tap's, and is reported there.

use crate::{
    fixture::{self, DUT_NICS, RUN},
    support::{harness::Test, run::Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![under_overload_the_loss_is_at_the_tap_and_reported_there]
}

fn under_overload_the_loss_is_at_the_tap_and_reported_there() {
    let dut = fixture::dut();
    for (nic, model) in DUT_NICS.iter().enumerate().skip(1) {
        let tap = format!("t{nic}");
        let profile = format!(
            "ports:\n  - {{interface: {tap}, src_ip: 10.{0}.0.2, default_gw: 10.{0}.0.1, dest_mac: '{1}'}}\n",
            nic + 1,
            dut.spec().mac(nic)
        );
        let guest = format!("nic{nic}");
        let read = || {
            let missed = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"].map(|name| dut.counter(&guest, name));
            (dut.counter(&guest, "rx_packets"), missed, dut.netns.counter(&tap, "tx_packets"))
        };
        let before = read();
        let arguments = "run PROFILE --backend xsk-copy --rate max --duration 1s --workers 1";
        let outcome = Plimsoll::with_profile(&profile).run(&dut.netns, arguments, RUN).expect_code(0);
        let after = read();
        let (offered, completed) = (outcome.count("offered_frames"), outcome.count("completed_frames"));
        let device = &outcome.trial(0)["ports"][0]["device"];
        let dropped = device["tx_dropped"].as_u64().unwrap_or(0);
        eprintln!("{model}: offered {offered}, tap dropped {dropped}, completed {completed}");
        assert_eq!(after.1, before.1, "{guest} lost frames inside the guest");
        assert_eq!(after.0 - before.0, after.2 - before.2, "{guest} received what the tap gave");
        assert_eq!(completed + dropped, offered, "{device}");
        if dropped > 0 {
            assert!(outcome.caveats().contains(&"completed_not_sent".to_owned()), "{:?}", outcome.caveats());
        }
    }
}
