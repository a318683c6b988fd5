//! Tests on guests with real NIC drivers under QEMU. They need root and the distribution's packages; else they are skipped and counted.

#[path = "../support/mod.rs"]
mod support;

mod fixture;
mod guest;
mod observe;

use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [guest::tests(), observe::tests()].concat();
    let code = support::harness::main(tests);
    fixture::shut_down();
    code
}
