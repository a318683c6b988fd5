//! `make bench`: how fast frames are made and sent, beside other tools, on this machine. See `README.md` for what the
//! claims mean. Arguments choose groups by a part of their name.

mod bare_live;
mod bare_xsk;
mod live;
mod mem;
mod port;
mod rounds;
#[path = "../tests/support/mod.rs"]
mod support;
mod veth;

use std::{path::PathBuf, process::ExitCode};

use rounds::Outcome;

const ROUNDS: usize = 5;

/// Measures so many interleaved rounds.
type Group = fn(usize) -> Outcome;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let groups: [(&str, Group); 7] = [
        ("user-space path", mem::group),
        ("veth, one core", veth::one_core),
        ("veth, two cores", veth::two_cores),
        ("live, one core", live::one_core),
        ("live, two cores", live::two_cores),
        ("live, costs", live::costs),
        ("live, receive", live::receive),
    ];
    let mut outcomes = Vec::new();
    for (name, group) in groups {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            let outcome = group(ROUNDS);
            println!("{}", outcome.text());
            outcomes.push(outcome);
        }
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    let file = target.join("bench.json");
    if let Err(error) = rounds::save(&outcomes, &file) {
        eprintln!("cannot write {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    println!("written to {}", file.display());
    if outcomes.iter().all(Outcome::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
