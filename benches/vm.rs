//! `make bench-vm`: AF_XDP zero-copy against copy mode, sent by the same guest over the same NIC, interleaved.
//!
//! QEMU emulates the guest in software: the ratios are markers against regressions, the rates are those of no NIC.

use std::{
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use plimsoll::{
    error::{Error, Result},
    lab::vm::{Guest, GuestSpec, Nic, NicModel, Packages},
};

/// Rounds; in each, every NIC sends in both modes.
const ROUNDS: usize = 5;
/// One run with its set-up, on a busy machine.
const RUN: Duration = Duration::from_secs(60);

/// A NIC model and the ratio that its zero-copy must exceed.
const CASES: [(&str, NicModel, f64); 2] = [("igb", NicModel::Igb, 2.0), ("virtio", NicModel::VIRTIO_IOMMU, 1.0)];

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            println!("zero-copy is not as fast as it must be");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("bench-vm: {error}");
            ExitCode::from(3)
        }
    }
}

fn measure() -> Result<bool> {
    let packages = Packages::get()?;
    let netns = Netns::new()?;
    let dir = std::env::temp_dir().join(&netns.0);
    let mut spec = GuestSpec::new("bench", &netns.0, &dir);
    spec.cpus = 2;
    spec.programs = vec![env!("CARGO_BIN_EXE_plimsoll").into()];
    spec.nics = CASES.iter().enumerate().map(|(n, (_, model, _))| Nic::tap(*model, format!("t{n}"))).collect();
    let guest = Guest::boot(&packages, spec)?;
    println!("frames/s that left the NIC; {ROUNDS} interleaved rounds of 2 s, one worker, 64-byte frames");
    let mut rates = vec![[Vec::new(), Vec::new()]; CASES.len()];
    for round in 1..=ROUNDS {
        for (nic, rates) in rates.iter_mut().enumerate() {
            for (mode, rates) in ["xsk-zc", "xsk-copy"].iter().zip(rates.iter_mut()) {
                let fps = send(&guest, nic, mode)?;
                println!("round {round}  {:<7} {mode:<9} {fps:>9}", CASES[nic].0);
                rates.push(fps);
            }
        }
    }
    let mut is_fast = true;
    for ((name, _, least), [zero_copy, copy]) in CASES.iter().zip(&rates) {
        // The two of a round ran one after the other: their ratio is free of what the machine did in other rounds.
        let rounds: Vec<f64> = zero_copy.iter().zip(copy.iter()).map(|(zc, copy)| *zc as f64 / *copy as f64).collect();
        let (low, high) = rounds.iter().fold((f64::MAX, 0.0_f64), |(low, high), r| (low.min(*r), high.max(*r)));
        let ratio = median(&rounds);
        println!(
            "{name:<7} zero-copy {}, copy {}; ratio of a round {ratio:.2} ({low:.2} to {high:.2}), must be above {least}",
            spread(zero_copy),
            spread(copy)
        );
        is_fast &= ratio > *least;
    }
    Ok(is_fast)
}

/// Frames/s completed by an unpaced run of two seconds.
fn send(guest: &Guest, nic: usize, backend: &str) -> Result<u64> {
    let mac = guest.spec().mac(nic);
    guest.write_file(
        "/run/profile.yaml",
        &format!(
            "ports:\n  - {{interface: nic{nic}, src_ip: 10.9.0.2, default_gw: 10.9.0.1, dest_mac: '02:00:00:00:00:09', src_mac: '{mac}'}}\n"
        ),
    )?;
    let line = format!(
        "plimsoll -q --json /run/r.json run /run/profile.yaml --backend {backend} --rate max --duration 2s --workers 1 >&2 && cat /run/r.json"
    );
    let text = guest.output(&line, RUN)?;
    let fps =
        serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|json| json["trials"][0]["tx_fps"].as_u64());
    fps.ok_or_else(|| Error::environment("read", "the guest's result file").because(text))
}

fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("rates are numbers"));
    sorted[sorted.len() / 2]
}

/// `median (lowest to highest)`.
fn spread(fps: &[u64]) -> String {
    let (low, high) = (fps.iter().min().copied().unwrap_or(0), fps.iter().max().copied().unwrap_or(0));
    format!("{} ({low} to {high})", median(fps))
}

/// A namespace of our own; gone, with all in it, when dropped.
struct Netns(String);

impl Netns {
    fn new() -> Result<Netns> {
        let name = format!("plimb-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).status().is_ok_and(|status| status.success());
        let missing = || Error::environment("make", "a network namespace").remedy("run as root, with iproute2");
        if made && Path::new("/run/netns").join(&name).exists() { Ok(Netns(name)) } else { Err(missing()) }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}
