//! Tests on guests with real NIC drivers under QEMU. They need root and the distribution's packages; else they are skipped and counted.

#[path = "../support/mod.rs"]
mod support;

mod claim;
mod disturb;
mod fixture;
mod guest;
mod modes;
mod observe;
mod offloads;
mod overload;
mod rings;
mod router;
mod softnet;
mod users_case;
mod wire;
mod zero_copy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [
        guest::tests(),
        observe::tests(),
        users_case::tests(),
        rings::tests(),
        router::tests(),
        claim::tests(),
        softnet::tests(),
        offloads::tests(),
        overload::tests(),
        zero_copy::tests(),
        wire::tests(),
        modes::tests(),
        disturb::tests(),
    ]
    .concat();
    let code = support::harness::main(tests);
    fixture::shut_down();
    code
}
