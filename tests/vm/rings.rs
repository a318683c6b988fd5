//! The users' case judged: a vmxnet3 DUT under bursts, its ring swept, the best one named, the old one put back.

use std::{sync::Arc, time::Duration};

use plimsoll::{
    diagnose::{
        Stage, TrialCounts, VerdictKind, diagnose,
        settings::{self, Reading},
    },
    dut::{
        journal::Journal,
        observer::{Observer, Target},
        setting::{Kind, Setting},
        stages::Side,
        story::Story,
    },
};

use crate::{
    fixture::{self, SHORT},
    support::{frames::Frame, harness::Test},
};

pub fn tests() -> Vec<Test> {
    crate::tests![under_bursts_the_vnic_ring_is_named_a_larger_one_advised_and_the_old_one_put_back]
}

/// Frames in a burst, more than a ring of 64 or 256 can hold.
const BURST: u64 = 512;
/// Bursts at each ring.
const BURSTS: u64 = 10;
/// Ten bursts a second.
const LOAD_FPS: u64 = 10 * BURST;

fn under_bursts_the_vnic_ring_is_named_a_larger_one_advised_and_the_old_one_put_back() {
    let dut = fixture::dut();
    dut.sh("ethtool -G nic0 rx 256");
    let observe = format!("vm:{}", dut.spec().dir.display());
    let target = Target::parse(&observe).expect("a guest is a target");
    let observer = Arc::new(Observer::open(&target, vec!["nic0".into()]).expect("it can be opened").with_limit(SHORT));
    let setting = Setting { kind: Kind::RxRing, interface: "nic0".into(), command: None };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let held = Journal::in_folder(folder.path()).take(&observe, observer.clone(), setting).expect("the guest answers");
    assert_eq!(held.original(), 256);

    let frame = Frame::new(dut.spec().mac(0).to_string(), [10, 1, 0, 1]);
    let (mut readings, mut losses) = (Vec::new(), Vec::new());
    for ring in [64, 256, 1024] {
        assert_eq!(held.set(ring).expect("vmxnet3 takes it"), ring);
        let on_wire = dut.netns.counter("t0", "tx_packets");
        let before = observer.observe();
        frame.send(&dut.netns, "t0", BURST * BURSTS, BURST, Duration::from_millis(100));
        wait_for_the_guest(&dut);
        let after = observer.observe();
        let completed_frames = dut.netns.counter("t0", "tx_packets") - on_wire;
        let story = Story::of(before, after, observer.interfaces(), Side::Dut);
        let received_frames = story.ingested.as_ref().map(|ingested| ingested.frames);
        let lost = completed_frames - received_frames.expect("the guest tells");
        let counts = TrialCounts {
            intended_frames: completed_frames,
            completed_frames,
            received_frames,
            ..TrialCounts::default()
        };
        let verdict = diagnose(&counts, &story.moved_before_receipt(), &story.facts, &[]);
        eprintln!(
            "ring {ring}: {completed_frames} offered, {lost} lost: {}",
            verdict.as_ref().map_or("-", |v| &v.summary)
        );
        if lost > 0 {
            let verdict = verdict.expect("loss has a verdict");
            assert_eq!((verdict.kind, verdict.stage), (VerdictKind::DutLimited, Some(Stage::VnicRing)), "{verdict:#?}");
            assert!(verdict.evidence[0].counter.contains("pkts rx OOB"), "{verdict:#?}");
            assert!(verdict.advice[0].contains(&format!("ethtool -G nic0 rx {}", 2 * ring)), "{verdict:#?}");
        }
        losses.push(lost);
        let received_fps = LOAD_FPS * (completed_frames - lost) / completed_frames;
        readings.push(Reading { value: ring, load_fps: Some(LOAD_FPS), sent_fps: LOAD_FPS, received_fps });
    }
    assert!(
        losses[0] > losses[1] && losses[1] > 0 && losses[2] * 10 < losses[1],
        "lost at rings 64, 256, 1024: {losses:?}"
    );
    let found = settings::compare("RX ring", held.original(), &readings).expect("all were offered the same");
    assert_eq!(found.best, 1024, "{found:?}");
    assert!(found.sentences[0].contains("1,024 (set it)"), "{found:?}");
    held.restore().expect("the guest takes it back");
    assert_eq!(dut.sh("ethtool -g nic0 | grep ^RX: | tail -1").split_whitespace().last(), Some("256"));
    dut.sh("ethtool -G nic0 rx 1024");
}

/// Waits until what the guest received stands still.
fn wait_for_the_guest(dut: &fixture::Machine) {
    let mut last = None;
    for _ in 0..100 {
        let now = dut.counter("nic0", "rx_packets");
        if last == Some(now) {
            return;
        }
        last = Some(now);
    }
}
