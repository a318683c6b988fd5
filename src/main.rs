//! The `plimsoll` binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll::cli::main()
}
