//! Builds the guest's initial file system: busybox, ethtool, kernel modules, the init script, and this program.
//!
//! Control thread. Invariant: what the archive holds depends on its inputs alone. Deliberately does not compress: the archive is
//! handed to an emulator on the same machine, which would only unpack it again, slowly.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::command::Tool;
use super::fetch::{Packages, failed};
use crate::error::Result;

const INIT: &str = include_str!("init.sh");
/// ldd and strip are done in moments; the limit only keeps a broken machine from hanging.
const TOOL_S: u64 = 60;

/// Writes the archive to `out`. `programs` are put into the guest's `/bin` with the shared libraries they need.
///
/// # Errors
/// Environment: something cannot be read or written.
pub(super) fn build(packages: &Packages, programs: &[PathBuf], out: &Path) -> Result<()> {
    let mut tree: BTreeMap<String, Entry> = BTreeMap::new();
    for dir in ["bin", "dev", "lib", "lib/x86_64-linux-gnu", "lib64", "modules", "proc", "run", "sys", "tmp"] {
        tree.insert(dir.to_owned(), Entry::Dir);
    }
    // Without it the kernel gives init no standard streams.
    tree.insert("dev/console".to_owned(), Entry::Console);
    tree.insert("init".to_owned(), Entry::Program(INIT.as_bytes().to_vec()));
    let busybox = packages.program("busybox")?;
    tree.insert("bin/busybox".to_owned(), Entry::Program(read(&busybox)?));

    let mut order = String::new();
    for module in packages.modules()? {
        let name = module.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        tree.insert(format!("modules/{name}.ko"), Entry::File(read(&module)?));
        order.push_str(&name);
        order.push('\n');
    }
    tree.insert("modules/order".to_owned(), Entry::File(order.into_bytes()));

    let mut programs = programs.to_vec();
    programs.push(packages.program("ethtool")?);
    for program in &programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tree.insert(format!("bin/{name}"), Entry::Program(stripped(program, out)?));
        for library in libraries(program, packages)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let dir = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
            tree.insert(format!("{dir}/{name}"), Entry::Program(read(&library)?));
        }
    }
    let file = fs::File::create(out).map_err(|e| failed("create", out, &e))?;
    write_newc(BufWriter::new(file), &tree).map_err(|e| failed("write", out, &e))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| failed("read", path, &e))
}

/// The program without its symbols where `strip` is to be had (a debug build is ten times as large as it must be), else as it is.
fn stripped(program: &Path, out: &Path) -> Result<Vec<u8>> {
    let slim = out.with_extension("strip");
    let is_slim = Tool::new("strip", TOOL_S).arg("-o").arg(&slim).arg(program).run("strip", &program.display()).is_ok();
    let content = read(if is_slim { &slim } else { program });
    let _ = fs::remove_file(&slim);
    content
}

/// The shared libraries (and the loader) of a program.
fn libraries(program: &Path, packages: &Packages) -> Result<Vec<PathBuf>> {
    let listing = Tool::new("ldd", TOOL_S)
        .env("LD_LIBRARY_PATH", packages.libraries())
        .arg(program)
        .run("list the libraries of", &program.display());
    match listing {
        Ok(listing) => Ok(library_paths(&listing)),
        // ldd fails on a static program, which is as good.
        Err(error) if error.cause().is_some_and(|cause| cause.contains("not a dynamic executable")) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// `libz.so.1 => /lib/libz.so.1 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`; the vDSO has no file.
fn library_paths(ldd: &str) -> Vec<PathBuf> {
    ldd.lines().flat_map(|line| line.split_whitespace().find(|word| word.starts_with('/'))).map(PathBuf::from).collect()
}

/// One entry of the archive.
enum Entry {
    Dir,
    File(Vec<u8>),
    Program(Vec<u8>),
    Console,
}

/// The "newc" cpio format (Linux Documentation/driver-api/early-userspace/buffer-format.rst): 13 hexadecimal numbers of 8 digits, name
/// and content each padded to 4 bytes.
fn write_newc(mut out: impl Write, tree: &BTreeMap<String, Entry>) -> std::io::Result<()> {
    const PAD: [u8; 4] = [0; 4];
    let mut entry = |ino: usize, mode: u32, rdev: (u32, u32), name: &str, content: &[u8]| -> std::io::Result<()> {
        let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
        let header = format!(
            "070701{ino:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{1:08x}{0:08x}{0:08x}{2:08x}{3:08x}{4:08x}{0:08x}",
            0,
            content.len(),
            rdev.0,
            rdev.1,
            name.len() + 1
        );
        out.write_all(header.as_bytes())?;
        out.write_all(name.as_bytes())?;
        out.write_all(&PAD[..1])?;
        out.write_all(&PAD[..(4 - (header.len() + name.len() + 1) % 4) % 4])?;
        out.write_all(content)?;
        out.write_all(&PAD[..(4 - content.len() % 4) % 4])
    };
    for (ino, (name, what)) in tree.iter().enumerate() {
        match what {
            Entry::Dir => entry(ino + 1, 0o040_755, (0, 0), name, &[])?,
            Entry::File(content) => entry(ino + 1, 0o100_644, (0, 0), name, content)?,
            Entry::Program(content) => entry(ino + 1, 0o100_755, (0, 0), name, content)?,
            Entry::Console => entry(ino + 1, 0o020_600, (5, 1), name, &[])?,
        }
    }
    entry(0, 0, (0, 0), "TRAILER!!!", &[])?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_newc_with_everything_padded_to_four_bytes() {
        let tree = BTreeMap::from([("a".to_owned(), Entry::File(b"hello".to_vec())), ("d".to_owned(), Entry::Dir)]);
        let mut archive = Vec::new();
        write_newc(&mut archive, &tree).unwrap();
        // Header 110 + "a\0" = 112; 5 bytes padded to 8; header + "d\0"; header + "TRAILER!!!\0" = 121, padded to 124.
        assert_eq!(archive.len(), 112 + 8 + 112 + 124);
        assert_eq!(&archive[..14], b"07070100000001");
        assert_eq!(&archive[112..120], b"hello\0\0\0");
    }

    #[test]
    fn library_paths_are_the_files_that_ldd_names() {
        let ldd =
            "\tlinux-vdso.so.1 (0x7ff)\n\tlibz.so.1 => /lib/libz.so.1 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(library_paths(ldd), ["/lib/libz.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
    }
}
