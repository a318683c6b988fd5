//! Compiles every `bpf/*.bpf.c` into `OUT_DIR` and generates its skeleton, so that the binary carries its BPF
//! programs and needs no file beside it.

use std::{env, ffi::OsStr, fs, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=bpf");
    // libbpf-sys lays libbpf's headers out; the tests compile BPF fixtures with them.
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys tells where its headers are");
    println!("cargo:rustc-env=PLIMSOLL_BPF_HEADERS={headers}");
    let mut sources: Vec<PathBuf> = fs::read_dir("bpf")
        .expect("bpf/ exists")
        .map(|entry| entry.expect("bpf/ is readable").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    sources.sort();
    for source in sources {
        let name =
            source.file_name().and_then(OsStr::to_str).expect("bpf file names are UTF-8").trim_end_matches(".bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args(["-Ibpf", "-I/usr/include/x86_64-linux-gnu", "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("cannot compile {}: {error:#}: is clang installed?", source.display()));
    }
}
