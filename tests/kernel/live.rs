//! The live backend: what its generated program writes, what it counts, when it sends.

use std::{
    fs::File,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use plimsoll::{
    backend::live::{LivePort, LiveQueue, MAX_BUF_LEN, probe},
    clock::{self, Instant},
    ids::{StreamId, WorkerId},
    program::{Checksum, Field, Generator, StreamProgram, Template, Term, TermSource, TxProgram, Write, reference},
    units::FrameLen,
    wire::signature::{self, SignatureKind, SignatureSite},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::support::{
    harness::{Test, needs_root},
    netns::{Netns, Options, Topology},
    program::{SOURCE_PORT, continuous, program, udp_stream},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        every_byte_is_what_the_program_defines_whatever_was_in_the_page,
        what_the_receiver_has_no_room_for_is_made_but_never_completed,
        paced_frames_leave_when_they_are_due,
        what_is_late_is_repaid_or_forgiven_never_sent_in_a_burst,
        nothing_leaves_after_the_end,
        a_veth_is_probed_by_whether_its_peer_takes_frames,
        thousands_of_different_frames_load_and_the_limits_are_named,
    ]
}

fn any_field() -> impl Strategy<Value = Field> {
    let edge = prop_oneof![0..4u64, any::<u64>(), Just(u64::MAX), Just(0xFFFF_FFFF), Just(1 << 32)];
    let generator = prop_oneof![
        (edge.clone(), edge.clone()).prop_map(|(start, step)| Generator::Step { start, step }),
        prop::collection::vec(any::<u64>(), 1..9).prop_map(|values| Generator::List(values.into())),
        (any::<u64>(), edge.clone(), edge).prop_map(|(seed, low, span)| Generator::Random {
            seed,
            low,
            span: span.max(1)
        }),
    ];
    let div = prop_oneof![Just(1u64), 1..5u64, Just(u64::MAX)];
    let period = prop_oneof![1..7u64, Just(65_536), Just(1 << 63)];
    (generator, div, period).prop_map(|(generator, div, period)| {
        let period = if let Generator::List(values) = &generator { values.len() as u64 } else { period };
        Field { name: "any".into(), generator, div, period }
    })
}

/// A template with its writes, signature and checksums at places that do not collide (but writes may share bytes).
fn any_template(fields: usize) -> impl Strategy<Value = Template> {
    let len = prop_oneof![Just(60usize), 60..140usize, 1000..1515usize];
    let writes = prop::collection::vec((0..fields as u16, 0..24u16, 1..=8u8, 0..8u8, any::<u64>()), 0..6);
    let signature = prop::option::of(prop_oneof![Just(SignatureKind::Full), Just(SignatureKind::Short)]);
    let sums = prop::collection::vec((any::<u16>(), any::<bool>(), prop::collection::vec(any::<bool>(), 16)), 0..3);
    (len, any::<u8>(), writes, signature, sums).prop_map(|(len, fill, writes, signature, sums)| {
        let mut bytes = vec![fill; len];
        let mut taken = [0u8; 32]; // bits that some write owns
        let mut kept = Vec::new();
        for (field, offset, width, shift, mask) in writes {
            let mut mask = (mask >> shift << shift) & (u64::MAX >> (64 - 8 * u32::from(width)));
            for n in 0..usize::from(width) {
                let down = 8 * (usize::from(width) - 1 - n);
                mask &= !(u64::from(taken[usize::from(offset) + n]) << down);
                taken[usize::from(offset) + n] |= (mask >> down) as u8;
            }
            kept.push(Write { field, offset, width, shift, mask });
        }
        bytes.iter_mut().zip(taken).for_each(|(byte, taken)| *byte &= !taken);
        let signature = signature.map(|kind| SignatureSite { offset: 40, kind });
        if let Some(SignatureSite { kind, .. }) = signature {
            bytes[40..40 + kind.len()].copy_from_slice(&kind.constant(0xA1B2_C3D4, 7));
        }
        let mut checksums = Vec::new();
        for (n, (base, zero_is_ffff, swaps)) in sums.into_iter().enumerate() {
            bytes[34 + 2 * n..36 + 2 * n].fill(0);
            let mut sources: Vec<_> = (0..kept.len() as u16).map(TermSource::Write).collect();
            sources.extend((0..n as u16).map(TermSource::Checksum));
            if let Some(site) = signature {
                sources.push(TermSource::Sequence);
                sources.extend(site.kind.stamp().map(|_| TermSource::Stamp));
            }
            let terms = sources.into_iter().zip(swaps).map(|(source, swap)| Term { source, swap }).collect();
            checksums.push(Checksum { offset: 34 + 2 * n as u16, base, zero_is_ffff, terms });
        }
        let frame_len = FrameLen::from_buf_len(len).expect("the length is in range");
        Template { bytes: bytes.into(), frame_len, writes: kept, signature, checksums }
    })
}

fn any_stream() -> impl Strategy<Value = StreamProgram> {
    prop::collection::vec(any_field(), 1..6).prop_flat_map(|fields| {
        let templates = prop::collection::vec(any_template(fields.len()), 1..5);
        (Just(fields), templates, prop::collection::vec(any::<prop::sample::Index>(), 1..8)).prop_map(
            |(fields, templates, picks)| StreamProgram {
                id: StreamId(7),
                name: "any".into(),
                pattern: picks.iter().map(|pick| pick.index(templates.len()) as u16).collect(),
                templates,
                fields,
                schedule: continuous(1),
                flows: 1,
            },
        )
    })
}

/// Runs on a thread of its own inside a namespace; a panic there is this thread's panic.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let result = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let netns = File::open(format!("/run/netns/{}", netns.name())).expect("the namespace is there");
                rustix::thread::move_into_link_name_space(
                    std::os::fd::AsFd::as_fd(&netns),
                    Some(rustix::thread::LinkNameSpaceType::Network),
                )
                .expect("root enters namespaces");
                let mut cpu = rustix::thread::CpuSet::new();
                cpu.set(0);
                rustix::thread::sched_setaffinity(None, &cpu).expect("CPU 0 exists");
                work()
            })
            .join()
    });
    result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
}

fn every_byte_is_what_the_program_defines_whatever_was_in_the_page() {
    needs_root();
    let netns = Netns::new("live");
    netns.sh("ip link add g0 type veth peer name d0 && ethtool -K d0 gro on && ip link set d0 up && ip link set g0 up");
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let strategy = (prop::collection::vec(any_stream(), 1..4), 1..4u16, any::<u64>());
    let checked = AtomicU64::new(0);
    inside(&netns, || {
        let port = LivePort::open("g0", ifindex_of("g0")).unwrap();
        runner.run(&strategy, |(streams, workers, order)| {
            let program = program(streams);
            let worker = (order % u64::from(workers)) as u16;
            let mut queue = LiveQueue::open(&port, &program, WorkerId(worker), workers).unwrap();
            queue.set_end(Instant(u64::MAX));
            let mut expected = Vec::new();
            let mut made = vec![0u64; program.streams.len()];
            for n in 0..40u32 {
                let stream = (order.rotate_left(n) % program.streams.len() as u64) as usize;
                let index = u64::from(worker) + made[stream] * u64::from(workers);
                let dirt = vec![n as u8 ^ 0x5A; program.max_buf_len()];
                prop_assert_eq!(queue.preview(&dirt).unwrap(), None, "nothing is scheduled");
                queue.schedule(stream as u16, Instant(0));
                let before = signature::stamp(clock::now().0);
                let frame = queue.preview(&dirt).unwrap().expect("a frame is due");
                let template = &program.streams[stream].templates[usize::from(
                    program.streams[stream].pattern[(index % program.streams[stream].pattern.len() as u64) as usize],
                )];
                let stamp = match template.signature {
                    Some(SignatureSite { offset, kind: SignatureKind::Full }) => {
                        let at = usize::from(offset) + 10;
                        u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
                    }
                    _ => 0,
                };
                prop_assert!(stamp == 0 || stamp.wrapping_sub(before) < 1_000_000_000, "a stamp is fresh");
                reference::frame(&program.streams[stream], index, stamp, &mut expected);
                prop_assert_eq!(&frame, &expected, "stream {} frame {}", stream, index);
                made[stream] += 1;
                prop_assert_eq!(queue.made_of(stream), made[stream]);
                checked.fetch_add(1, Relaxed);
            }
            Ok(())
        })
    })
    .unwrap();
    assert_eq!(checked.into_inner(), 200 * 40);
}

/// A program of 64-byte UDP frames to the address of `d0`, whose stack drops them.
fn udp_program(topology: &Topology) -> TxProgram {
    let mac = |text: String| -> Vec<u8> { text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect() };
    let (d0, g0) = (mac(topology.dut.mac("d0")), mac(topology.generator.mac("g0")));
    program(vec![udp_stream(d0.try_into().unwrap(), g0.try_into().unwrap(), &[SOURCE_PORT])])
}

/// The number of an interface of the calling thread's namespace (sysfs shows the one it was mounted in).
fn ifindex_of(interface: &str) -> u32 {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
    rustix::net::netdevice::name_to_index(&socket, interface).unwrap()
}

/// Opens the only queue of `g0` on the calling thread.
fn open_g0(program: &TxProgram) -> LiveQueue {
    let ifindex = ifindex_of("g0");
    LiveQueue::open(&LivePort::open("g0", ifindex).unwrap(), program, WorkerId(0), 1).unwrap()
}

fn what_the_receiver_has_no_room_for_is_made_but_never_completed() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ethtool -K d0 gro on");
    let program = udp_program(&topology);
    // The receiver's own thread works off veth's ring of 256 far slower than it is filled.
    topology.dut.sh("echo 1 > /sys/class/net/d0/threaded");
    let (made, count) = inside(&topology.generator, || {
        let mut queue = open_g0(&program);
        queue.set_end(Instant(u64::MAX));
        let mut left = 100_000;
        while left > 0 || queue.pending() > 0 {
            left -= queue.schedule_at_once(left);
            queue.run(1024, 256).unwrap();
        }
        (queue.made(), queue.transmitted())
    });
    let deadline = clock::now().plus_ns(5_000_000_000);
    let received = || topology.dut.mib("UdpNoPorts");
    while received() < count.sent_frames && clock::now() < deadline {
        std::thread::yield_now(); // the receiver's thread is still at it
    }
    assert_eq!(made, 100_000);
    assert!(count.dropped_frames > 0, "the ring never overflowed: nothing is shown");
    assert_eq!(count.sent_frames + count.dropped_frames, made);
    assert_eq!(count.sent_frames, topology.dut.counter("d0", "rx_packets"));
    assert_eq!(count.sent_frames, received(), "every frame was a whole, valid datagram");
}

fn paced_frames_leave_when_they_are_due() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ethtool -K d0 gro on");
    let program = udp_program(&topology);
    inside(&topology.generator, || {
        let mut queue = open_g0(&program);
        queue.set_end(Instant(u64::MAX));
        let start = clock::now().plus_ns(1_000_000);
        let spacing_ns = 20_000;
        (0..1000).for_each(|n| queue.schedule(0, start.plus_ns(n * spacing_ns)));
        let mut sent_early = 0;
        while queue.pending() > 0 {
            queue.run(64, 16).unwrap();
            let due = clock::now().since_ns(start) / spacing_ns + 1;
            sent_early += queue.made().saturating_sub(due);
        }
        assert_eq!(sent_early, 0);
        assert!(clock::now().since_ns(start) >= 999 * spacing_ns);
        assert_eq!(queue.transmitted().sent_frames, 1000);
    });
}

fn what_is_late_is_repaid_or_forgiven_never_sent_in_a_burst() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ethtool -K d0 gro on");
    let program = udp_program(&topology);
    inside(&topology.generator, || {
        let mut queue = open_g0(&program);
        queue.set_end(Instant(u64::MAX));
        let spacing_ns = 5_000;
        let start = clock::now();
        (0..4000).for_each(|n| queue.schedule(0, start.plus_ns(n * spacing_ns)));
        queue.run(64, 16).unwrap();
        let paused_at = clock::now();
        std::thread::sleep(Duration::from_millis(3));
        let (from, made) = (clock::now(), queue.made());
        let pause_ns = from.since_ns(paused_at);
        while queue.pending() > 0 {
            queue.run(64, 16).unwrap();
            let gone_ns = clock::now().since_ns(from);
            // At most 1.1 times the rate; up to 50 µs count as no delay, before and within the calls.
            let most = gone_ns * 11 / 10 / spacing_ns + 2 * 50_000 / spacing_ns;
            assert!(queue.made() - made <= most, "{} frames in {gone_ns} ns", queue.made() - made);
        }
        let forgiven_ns = queue.forgiven_ns();
        assert!(forgiven_ns + 1_150_000 >= pause_ns, "{forgiven_ns} ns of {pause_ns} ns");
        assert_eq!(queue.made(), 4000);
        assert!(clock::now().since_ns(start) >= 3999 * spacing_ns + forgiven_ns, "what is forgiven is not made up for");
        let before_idling = forgiven_ns;
        std::thread::sleep(Duration::from_millis(3));
        queue.schedule(0, Instant(clock::now().0 - queue.lag_ns()));
        queue.run(64, 16).unwrap();
        assert_eq!(
            (queue.made(), queue.forgiven_ns()),
            (4001, before_idling),
            "a pause with nothing to send is no debt"
        );
    });
}

fn nothing_leaves_after_the_end() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ethtool -K d0 gro on");
    let program = udp_program(&topology);
    inside(&topology.generator, || {
        let mut queue = open_g0(&program);
        queue.schedule_at_once(2000);
        queue.set_end(clock::now());
        queue.run(4096, 64).unwrap();
        // The clock is read once in 64 frames at the latest.
        assert!(queue.made() <= 64, "{}", queue.made());
        assert_eq!(queue.transmitted().sent_frames, queue.made());
    });
}

fn a_veth_is_probed_by_whether_its_peer_takes_frames() {
    let topology = Topology::sink(Options::default());
    let why_not = || inside(&topology.generator, || probe("g0", ifindex_of("g0")).err().map(|error| error.to_string()));
    topology.dut.sh("ethtool -K d0 gro off");
    let refused = why_not().expect("veth's peer has neither XDP nor GRO");
    assert!(refused.contains("ndo_xdp_xmit"), "{refused}");
    assert_eq!(topology.generator.xdp_program("g0"), None, "what was tried is gone");
    topology.dut.sh("ethtool -K d0 gro on");
    assert_eq!(why_not(), None);
}

fn thousands_of_different_frames_load_and_the_limits_are_named() {
    let topology = Topology::sink(Options::default());
    topology.dut.sh("ethtool -K d0 gro on");
    let one = udp_program(&topology).streams.remove(0);
    // As from a capture file: every frame another, of any length that fits.
    let many = |frames: usize, longest: usize| {
        let mut stream = one.clone();
        stream.pattern = (0..frames as u16).collect();
        stream.templates = vec![one.templates[0].clone(); frames];
        for (n, template) in stream.templates.iter_mut().enumerate() {
            let mut bytes = template.bytes.to_vec();
            bytes.resize(60 + n % (longest - 59), n as u8);
            template.bytes = bytes.into();
        }
        program(vec![one.clone(), stream])
    };
    inside(&topology.generator, || {
        let port = LivePort::open("g0", ifindex_of("g0")).unwrap();
        let most = many(1000, MAX_BUF_LEN);
        let mut queue = LiveQueue::open(&port, &most, WorkerId(0), 1).unwrap();
        queue.set_end(Instant(u64::MAX));
        let mut expected = Vec::new();
        for index in 0..1010 {
            queue.schedule(1, Instant(0));
            let frame = queue.preview(&vec![0xEE; most.max_buf_len()]).unwrap().expect("a frame is due");
            let at = usize::from(most.streams[1].templates[0].signature.unwrap().offset) + 10;
            let stamp = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
            reference::frame(&most.streams[1], index, stamp, &mut expected);
            assert_eq!(frame, expected, "frame {index}");
        }
        queue.schedule(1, Instant(0));
        queue.run(1, 1).unwrap();
        assert_eq!(queue.transmitted().sent_frames, 1);
        let mut refused = |program: TxProgram| queue.load(&program).unwrap_err().to_string();
        let error = refused(many(2049, 60));
        assert!(error.contains("stream udp") && error.contains("2049 different frames"), "{error}");
        let mut fields = udp_program(&topology);
        fields.streams[0].fields = vec![fields.streams[0].fields[0].clone(); 61];
        let error = refused(fields);
        assert!(error.contains("varies 61 fields"), "{error}");
    });
}
