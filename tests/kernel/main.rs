//! Tests on real interfaces, in network namespaces of their own. They need root; without it they are skipped and counted.

#[path = "../support/mod.rs"]
mod support;

mod cases_claim;
mod cases_config;
mod cases_doubts;
mod cases_links;
mod cases_run;
mod cases_search;
mod cases_streams;
mod conformance;
mod control;
mod datapath;
mod dut;
mod host;
mod lab;
mod live;
mod live_port;
mod probe;
mod receive;
mod sink;
mod ssh;
mod sweep;
mod topology;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = sweep::helper() {
        return code;
    }
    // One module a line, so that two branches that add one do not meet.
    let mut tests = Vec::new();
    tests.extend(cases_claim::tests());
    tests.extend(cases_config::tests());
    tests.extend(cases_doubts::tests());
    tests.extend(cases_links::tests());
    tests.extend(cases_run::tests());
    tests.extend(cases_search::tests());
    tests.extend(cases_streams::tests());
    tests.extend(conformance::tests());
    tests.extend(control::tests());
    tests.extend(datapath::tests());
    tests.extend(dut::tests());
    tests.extend(host::tests());
    tests.extend(lab::tests());
    tests.extend(live::tests());
    tests.extend(live_port::tests());
    tests.extend(probe::tests());
    tests.extend(receive::tests());
    tests.extend(sink::tests());
    tests.extend(ssh::tests());
    tests.extend(sweep::tests());
    tests.extend(topology::tests());
    support::harness::main(tests)
}
