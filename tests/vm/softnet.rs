//! A full softnet backlog in a guest, where `net.core.netdev_max_backlog` may be changed: it is the whole machine's.

use std::time::Duration;

use plimsoll::{
    diagnose::{Stage, TrialCounts, VerdictKind, diagnose},
    dut::{
        observer::{Observer, Target},
        stages::Side,
        story::Story,
    },
};

use crate::{
    fixture::{self, SHORT},
    support::{frames::Frame, harness::Test, run::wait_until},
};

pub fn tests() -> Vec<Test> {
    crate::tests![a_small_backlog_that_overflows_is_named_and_a_large_one_is_not]
}

/// Frames in a burst: far less than vmxnet3's ring of 1024, far more than the small backlog.
const BURST: u64 = 128;
const BURSTS: u64 = 20;

fn a_small_backlog_that_overflows_is_named_and_a_large_one_is_not() {
    let dut = fixture::dut();
    let backlog = |frames: u64| dut.sh(&format!("echo {frames} >/proc/sys/net/core/netdev_max_backlog"));
    let old: u64 = dut.sh("cat /proc/sys/net/core/netdev_max_backlog").parse().expect("a number");
    // Receive packet steering, to the only CPU: every frame goes through the backlog.
    dut.sh("for q in /sys/class/net/nic0/queues/rx-*; do echo 1 >$q/rps_cpus; done");
    let observe = format!("vm:{}", dut.spec().dir.display());
    let target = Target::parse(&observe).expect("a guest is a target");
    let observer = Observer::open(&target, vec!["nic0".into()]).expect("it can be opened").with_limit(SHORT);
    let frame = Frame::new(dut.spec().mac(0).to_string(), [10, 1, 0, 1]);
    let trial = || {
        let on_wire = dut.netns.counter("t0", "tx_packets");
        let before = observer.observe();
        let arrived = dut.counter("nic0", "rx_packets");
        frame.send(&dut.netns, "t0", BURST * BURSTS, BURST, Duration::from_millis(50));
        wait_until("the guest has all frames", || dut.counter("nic0", "rx_packets") - arrived >= BURST * BURSTS);
        let after = observer.observe();
        let completed_frames = dut.netns.counter("t0", "tx_packets") - on_wire;
        let story = Story::of(before, after, observer.interfaces(), Side::Dut);
        let received_frames = story.ingested.as_ref().map(|ingested| ingested.frames);
        let counts = TrialCounts {
            intended_frames: completed_frames,
            completed_frames,
            received_frames,
            ..TrialCounts::default()
        };
        let verdict = diagnose(&counts, &story.moved_before_receipt(), &story.facts, &[]);
        (completed_frames - received_frames.expect("the guest tells"), verdict)
    };
    backlog(4);
    let provoked: Vec<_> = (0..3).map(|_| trial()).collect();
    backlog(old);
    let healthy = trial();
    dut.sh("for q in /sys/class/net/nic0/queues/rx-*; do echo 0 >$q/rps_cpus; done");
    for (lost, verdict) in provoked {
        eprintln!("backlog 4: {lost} lost: {}", verdict.as_ref().map_or("-", |v| &v.summary));
        assert!(lost > BURST, "{lost} lost");
        let verdict = verdict.expect("loss has a verdict");
        assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::Softnet)), "{verdict:#?}");
        assert!(verdict.evidence[0].counter.contains("softnet"), "{verdict:#?}");
        assert!(verdict.advice.iter().any(|advice| advice.contains("netdev_max_backlog")), "{verdict:#?}");
    }
    assert_eq!((healthy.0, healthy.1), (0, None), "with a backlog of {old}");
}
