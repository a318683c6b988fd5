//! What a guest's zero-copy backend puts on the wire, byte by byte, as a capture on the host's tap sees it.

use std::{
    fs::File,
    time::{Duration, Instant},
};

use pcap_file::pcap::PcapReader;

use crate::{
    fixture::{self, Machine, RUN, SHORT},
    support::{harness::Test, run::Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![igb_zero_copy_frames_are_byte_exact, virtio_zero_copy_frames_are_byte_exact]
}

/// Frames compared.
const COUNT: usize = 4000;

fn profile(machine: &Machine, nic: usize) -> String {
    // Nobody answers on the tap, so its address is given; it is not the tap's own, so that the host ignores the frames.
    format!(
        "size: [64, 65, 127, 256, 511, 1024, 1025, 1280, 1518]
ports:
  - {{interface: nic{nic}, src_ip: 10.9.0.2, default_gw: 10.9.0.1, dest_mac: '02:00:00:00:00:09', src_mac: '{}'}}
",
        machine.spec().mac(nic)
    )
}

fn frames_are_byte_exact(nic: usize) {
    let machine = fixture::generator();
    let text = profile(&machine, nic);
    let plimsoll = Plimsoll::with_profile(&text);
    let tap = format!("t{nic}");
    let (expected, seen) = (plimsoll.dir.path().join("expected.pcap"), plimsoll.dir.path().join("seen.pcap"));
    let line = format!(
        "{} pcap {} -o {} --count {COUNT}",
        Plimsoll::binary(),
        plimsoll.profile().display(),
        expected.display()
    );
    machine.netns.sh(&line);

    let capture = machine.netns.spawn(&format!(
        "tcpdump -Z root -ni {tap} -B 16384 -U -w {} -c {COUNT} ether dst 02:00:00:00:00:09 and udp",
        seen.display()
    ));
    // tcpdump makes its file once it listens.
    let deadline = Instant::now() + SHORT;
    while !seen.exists() {
        assert!(Instant::now() < deadline, "tcpdump did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let arguments = format!("run PROFILE --backend xsk-zc --rate 5kpps --count {COUNT} --workers 1");
    let outcome = machine.plimsoll(&text, &arguments, RUN).expect_code(0);
    assert_eq!(outcome.json["ports"][0]["mode"], "zero-copy");
    assert_eq!(outcome.count("completed_frames"), COUNT as u64);
    // tcpdump ends by itself once it has them all.
    capture.finish(Duration::from_secs(10));

    let (expected, seen) = (read(&expected), read(&seen));
    assert_eq!((expected.len(), seen.len()), (COUNT, COUNT));
    for (n, (expected, seen)) in expected.iter().zip(&seen).enumerate() {
        assert_eq!(expected, seen, "frame {n}");
    }
}

/// Frames of a capture with what differs between runs (tag, stamp, the checksum over both) set to zero, the checksum being right.
fn read(path: &std::path::Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).expect("a capture")).expect("a pcap file");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let mut frame = packet.expect("a whole packet").data.into_owned();
        assert_eq!(udp_sum(&frame), 0xFFFF, "checksum of frame {}", frames.len());
        for masked in [40..42, 44..46, 52..56] {
            frame[masked].fill(0);
        }
        frames.push(frame);
    }
    frames
}

/// One's complement sum of a UDP/IPv4 frame's pseudo header and datagram: 0xFFFF if its checksum is right.
fn udp_sum(frame: &[u8]) -> u16 {
    let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(&frame[26..34]) + 17 + length as u64 + words(&frame[34..34 + length]);
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

fn igb_zero_copy_frames_are_byte_exact() {
    frames_are_byte_exact(4);
}

fn virtio_zero_copy_frames_are_byte_exact() {
    frames_are_byte_exact(5);
}
