//! A small UDP/IPv4 program made by hand, for tests and benches of what carries programs out.

use plimsoll::{
    ids::{PortId, StreamId},
    program::{
        Checksum, Field, Generator, Mode, Schedule, StreamProgram, Template, Term, TermSource, TxProgram, Write, fold,
    },
    units::FrameLen,
    wire::signature::{SignatureKind, SignatureSite},
};

/// Tag of these programs' signatures.
pub const RUN_TAG: u32 = 0x5A17_C0DE;

/// A stepping field of the frame.
#[derive(Clone, Copy)]
pub struct Step {
    /// Where it stands.
    pub offset: u16,
    /// Its bytes.
    pub width: u8,
    /// First value.
    pub start: u64,
    /// Added per frame.
    pub step: u64,
    /// Frames until it repeats.
    pub period: u64,
}

/// The source port, 64 values.
pub const SOURCE_PORT: Step = Step { offset: 34, width: 2, start: 1024, step: 1, period: 64 };

/// Five fields: both addresses, both ports, the identification.
pub const FIVE: [Step; 5] = [
    Step { offset: 26, width: 4, start: 0x0A01_0002, step: 1, period: 250 },
    Step { offset: 30, width: 4, start: 0x0A01_0101, step: 3, period: 201 },
    Step { offset: 34, width: 2, start: 1024, step: 1, period: 60_000 },
    Step { offset: 36, width: 2, start: 9, step: 7, period: 101 },
    Step { offset: 18, width: 2, start: 0, step: 1, period: 65_536 },
];

/// A schedule without anything special.
pub fn continuous(weight: u64) -> Schedule {
    Schedule { weight, start_delay_ns: 0, mode: Mode::Continuous, next: None, self_start: true, loops: 0 }
}

/// A program of these streams.
pub fn program(streams: Vec<StreamProgram>) -> TxProgram {
    TxProgram { port: PortId(0), run_tag: RUN_TAG, streams }
}

/// 64-byte UDP frames 10.1.0.2:* → 10.1.0.1:9 with a full signature and these fields; every checksum is kept right.
pub fn udp_stream(destination: [u8; 6], source: [u8; 6], steps: &[Step]) -> StreamProgram {
    let mut bytes = [destination, source].concat();
    bytes.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1]);
    bytes.extend([4, 0, 0, 9, 0, 26, 0, 0]);
    bytes.extend(SignatureKind::Full.constant(RUN_TAG, 0));
    bytes.resize(60, 0);
    let (mut ip_terms, mut udp_terms) = (vec![], vec![TermSource::Sequence, TermSource::Stamp]);
    let (mut fields, mut writes) = (vec![], vec![]);
    for (n, step) in (0u16..).zip(steps) {
        bytes[usize::from(step.offset)..usize::from(step.offset) + usize::from(step.width)].fill(0);
        let generator = Generator::Step { start: step.start, step: step.step };
        fields.push(Field { name: format!("at {}", step.offset), generator, div: 1, period: step.period });
        let mask = u64::MAX >> (64 - 8 * u32::from(step.width));
        writes.push(Write { field: n, offset: step.offset, width: step.width, shift: 0, mask });
        if (14..34).contains(&step.offset) {
            ip_terms.push(TermSource::Write(n));
        }
        if step.offset >= 26 {
            udp_terms.push(TermSource::Write(n));
        }
    }
    let sum = |bytes: &[u8]| bytes.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u64>();
    let (ip, udp) = (fold(sum(&bytes[14..34])) as u16, fold(sum(&bytes[26..60]) + 17 + 26) as u16);
    let checksum = |offset, base, zero_is_ffff, sources: Vec<TermSource>| {
        let terms = sources.into_iter().map(|source| Term { source, swap: false }).collect();
        Checksum { offset, base, zero_is_ffff, terms }
    };
    let mut checksums = vec![checksum(40, udp, true, udp_terms)];
    if ip_terms.is_empty() {
        bytes[24..26].copy_from_slice(&(!ip).to_be_bytes());
    } else {
        checksums.push(checksum(24, ip, false, ip_terms));
    }
    let template = Template {
        bytes: bytes.into(),
        frame_len: FrameLen::new(64).expect("64 bytes are a frame"),
        writes,
        signature: Some(SignatureSite { offset: 42, kind: SignatureKind::Full }),
        checksums,
    };
    StreamProgram {
        id: StreamId(0),
        name: "udp".into(),
        templates: vec![template],
        pattern: vec![0],
        fields,
        schedule: continuous(1),
        flows: 64,
    }
}
