//! BPF fixtures, compiled when a test needs them.

use std::{path::Path, process::Command};

use tempfile::{Builder, NamedTempFile};

/// Compiles `tests/fixtures/{name}.bpf.c`; the object goes when the guard does.
pub fn compile(name: &str) -> NamedTempFile {
    let object = Builder::new().suffix(".o").tempfile().expect("a scratch file can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.bpf.c"));
    let headers = bpf_headers();
    let output = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-I", &headers, "-c"])
        .arg(source)
        .arg("-o")
        .arg(object.path())
        .output()
        .expect("clang is installed by make test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object
}

/// Where the build found `bpf/bpf_helpers.h`: the copy that the build script laid out.
fn bpf_headers() -> String {
    env!("PLIMSOLL_BPF_HEADERS").to_owned()
}
