//! Tests on real interfaces, in network namespaces of their own. They need root; without it they are skipped and counted.

#[path = "../support/mod.rs"]
mod support;

mod datapath;
mod dut;
mod host;
mod live;
mod receive;
mod topology;

use std::process::ExitCode;

fn main() -> ExitCode {
    let tests =
        [datapath::tests(), dut::tests(), host::tests(), receive::tests(), live::tests(), topology::tests()].concat();
    support::harness::main(tests)
}
