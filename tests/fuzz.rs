//! Mutated profiles, TRex configurations and capture files: nothing makes a parser, the compiler or a preview panic, or
//! allocate without bound.
//!
//! Deterministic: case n of a target is a function of n. `PLIMSOLL_FUZZ_SECONDS` says how long each target runs (2 by default,
//! more in `make accept`), `PLIMSOLL_FUZZ_CASE` runs one case again. A failure prints the case and its input.

#[path = "support/capture_files.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod capture_files;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use capture_files::pcapng;
use plimsoll::{
    profile,
    program::{compile, preview::preview, random_value, reference},
    wire::capture,
};

/// Counts what is allocated, so that a small input that asks for much is found.
struct Counting;

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system allocator with the same arguments; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(CURRENT.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is System's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CURRENT.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most that one case may hold at a time: the largest program of a small profile, with room.
const MAX_CASE_BYTES: usize = 700 << 20;
/// Longest that one case may take in a debug build on a busy machine.
const MAX_CASE_TIME: Duration = Duration::from_secs(20);

/// Random numbers of one case.
struct Random {
    case: u64,
    drawn: u64,
}

impl Random {
    fn below(&mut self, span: usize) -> usize {
        self.drawn += 1;
        random_value(self.case, self.drawn, span.max(1) as u64) as usize
    }
}

const WORDS: &[&str] = &[
    "ports:",
    "streams:",
    "interface: ",
    "src_ip: ",
    "default_gw: ",
    "headers: ",
    "udp",
    "tcp",
    "ipv4: ",
    "ipv6: ",
    "vlan: ",
    "mpls",
    "gre",
    "vxlan",
    "raw: ",
    "ethernet: ",
    "icmpv6",
    "size: ",
    "imix",
    "imix:",
    "share: ",
    "rate: ",
    "max",
    "50%",
    "1mpps",
    "mode: ",
    "multi_burst",
    "frames: ",
    "gap: ",
    "bursts: ",
    "next: ",
    "loops: ",
    "self_start: ",
    "pcap: ",
    "sample.pcap",
    "random: ",
    "increment: ",
    "decrement: ",
    "list: ",
    "every: ",
    "count: ",
    "start: ",
    "step: ",
    "src_port: ",
    "dst_port: ",
    "fd00::1-fd00::ffff",
    "0-18446744073709551615",
    "18446744073709551615",
    "9223372036854775807",
    "4294967295",
    "65535",
    "65536",
    "0",
    "-1",
    "1e400",
    "0x",
    "&a ",
    "*a",
    "<<: *a",
    "!!binary ",
    "? ",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "'",
    "\"",
    "|",
    ">",
    "#",
    "%YAML 1.2\n",
    "---\n",
    "...\n",
    "\t",
    "\n",
    "\u{FEFF}",
    "\u{0}",
    "é",
    "interfaces: ",
    "port_info: ",
    "port_limit: ",
    "9999999h",
    "1ns",
    "dummy",
    "z",
    "type: ",
    "protocol: ",
    "tpid: ",
    "flow_label: ",
    "track: false",
    "bidirectional: true",
    "flows: ",
    "seed: ",
    "start_delay: ",
];

/// A mutation of one of the inputs, a few changes deep.
fn mutate(corpus: &[Vec<u8>], case: u64) -> Vec<u8> {
    let mut random = Random { case, drawn: 0 };
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..1 + random.below(6) {
        let at = random.below(input.len() + 1);
        let len = random.below(1 + (input.len() - at).min(40));
        match random.below(9) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = [0, 0xFF, b' ', b'\n', b':', b'-', 0x7F][random.below(7)],
            2 => drop(input.drain(at..at + len)),
            3 => {
                let copy = input[at..at + len].to_vec();
                let times = 1 + random.below(30);
                input.splice(at..at, std::iter::repeat_n(copy, times).flatten());
            }
            4 | 5 => drop(input.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
            6 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                let len = random.below(other.len() - from + 1);
                input.splice(at..at, other[from..from + len].iter().copied());
            }
            7 => input.truncate(at),
            // A number or a name becomes another word.
            _ => {
                let is_word = |b: &u8| b.is_ascii_alphanumeric();
                let start = input[..at].iter().rposition(|b| !is_word(b)).map_or(0, |i| i + 1);
                let end = at + input[at..].iter().position(|b| !is_word(b)).unwrap_or(input.len() - at);
                input.splice(start..end, WORDS[random.below(WORDS.len())].bytes());
            }
        }
    }
    input.truncate(1 << 16);
    input
}

/// One target at a time, so that the allocation counters are its own.
static ONE: Mutex<()> = Mutex::new(());

fn fuzz(target: &str, corpus: &[Vec<u8>], run: impl Fn(&[u8])) {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("PLIMSOLL_FUZZ_SECONDS").unwrap_or(2));
    let only = number("PLIMSOLL_FUZZ_CASE");
    let begin = Instant::now();
    let mut case = only.unwrap_or(0);
    while begin.elapsed() < time {
        let input = mutate(corpus, case);
        let held = CURRENT.load(Relaxed);
        PEAK.store(held, Relaxed);
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| run(&input)));
        let (took, peak) = (start.elapsed(), PEAK.load(Relaxed) - held);
        let says = || format!("{target}, case {case}: {:?}", String::from_utf8_lossy(&input));
        assert!(result.is_ok(), "panic: {}", says());
        assert!(peak <= MAX_CASE_BYTES, "{peak} bytes: {}", says());
        assert!(took <= MAX_CASE_TIME, "{took:?}: {}", says());
        case += 1;
        if only.is_some() {
            break;
        }
    }
    println!("{target}: {case} cases in {time:?}");
    assert!(case > 20 || only.is_some(), "{target}: only {case} cases in {time:?}");
}

fn files(folder: &str, extension: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("the file is readable")).collect()
}

#[test]
fn no_profile_makes_parser_compiler_or_preview_panic() {
    let mut corpus = files("profiles", "yaml");
    corpus.push(
        b"ports: [{interface: g0, src_ip: 'fd00::2', default_gw: 'fd00::1', vlan: [{id: 5, tpid: 0x9100}, 6], link_speed: 10gbps}]
dut: {observe: 'netns:x', interface: d0, restore: false, set_ring: 'x'}
streams:
- {name: a, headers: [{vlan: {id: 1-9}}, {mpls: 16-20}, {gre: {key: {random: 1-9}}}, {ipv4: {src: [1.1.1.1, 2.2.2.2]}}, {tcp: {flags: syn+ack}}]}
- {name: b, headers: [{udp: {src_port: {increment: 1-9, every: 3}, dst_port: {list: [1, 2], every: src_port}}}, {vxlan: 7}], size: [64, {size: imix, share: 3}]}
- {name: c, mode: multi_burst, frames: 3, gap: 5us, bursts: 2, next: d, loops: 4, start_delay: 1ms}
- {name: d, mode: burst, frames: 9, next: c, headers: {icmp: {seq: 0-65535}}, track: false}
"
        .to_vec(),
    );
    let capture = std::fs::read("profiles/sample.pcap").expect("the capture is there");
    let read = |path: &Path| match path.extension().is_some_and(|extension| extension == "pcap") {
        true => Ok(capture.clone()),
        false => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
    };
    fuzz("profile", &corpus, |input| {
        let text = String::from_utf8_lossy(input);
        let Ok(profile) = profile::parse_with(&text, "fuzzed.yaml", &read) else { return };
        let Ok(compiled) = compile(&profile, &[], 0x9C4B_0001, profile.seed) else { return };
        let mut frame = Vec::new();
        for stream in compiled.programs.iter().flat_map(|program| &program.streams).take(16) {
            for index in [0, 1, 63, u64::from(u32::MAX), u64::MAX >> 1] {
                reference::frame(stream, index, 7, &mut frame);
                assert!(frame.len() >= 60);
            }
        }
        let frames = preview(&compiled, 20);
        assert!(frames.windows(2).all(|pair| pair[0].due_ns <= pair[1].due_ns));
    });
}

#[test]
fn no_capture_file_makes_its_parser_panic() {
    let mut corpus = files("tests/golden/profiles", "pcap");
    corpus.extend(files("profiles", "pcap"));
    for file in &mut corpus {
        file.truncate(3000);
    }
    let frames = capture::parse(&corpus[0]).expect("a golden capture").frames;
    let frames: Vec<_> = frames.into_iter().take(8).map(|frame| frame.bytes).collect();
    corpus.push(pcapng(&frames, None, 1_000));
    corpus.push(pcapng(&frames, Some(9), 1_000_000));
    fuzz("capture", &corpus, |input| {
        let Ok(parsed) = capture::parse(input) else { return };
        assert!(!parsed.frames.is_empty());
        assert!(parsed.frames.iter().all(|frame| frame.len >= frame.bytes.len() && frame.len <= 9212));
        // What was parsed is replayed, rewritten and tracked.
        let text = "ports: [{interface: a, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]
streams: [{pcap: {file: x.pcap, rewrite: {src_ip: 1.2.3.4, dst_ip: 'fd00::1', checksums: true}}, track: true}]";
        let profile = profile::parse_with(text, "fuzzed.yaml", &|_| Ok(input.to_vec())).expect("it parsed before");
        let compiled = compile(&profile, &[], 0x9C4B_0001, 1).expect("a capture that parses compiles");
        let mut frame = Vec::new();
        for index in 0..parsed.frames.len() as u64 {
            reference::frame(&compiled.programs[0].streams[0], index, 7, &mut frame);
        }
        preview(&compiled, 20);
    });
}
