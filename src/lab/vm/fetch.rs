//! Gets QEMU, a guest kernel, busybox and ethtool from the distribution's packages into a cache.
//!
//! Control thread, once. Invariants: the machine's own apt state, packages and files are not touched (private apt state, packages are
//! downloaded and unpacked, never installed); a cache folder that exists is complete (it is renamed into place). Deliberately does not
//! look for software outside the machine's own apt sources, and knows Debian on amd64 only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{Tool, on_path};
use crate::error::{Error, Result};

/// The oldest QEMU that has the igb model and the `iommu_platform` behaviour the lab relies on.
const QEMU_MIN: &str = "1:10.0";
/// The oldest kernel whose igb and virtio-net drivers were seen to do AF_XDP zero-copy.
const KERNEL_MIN: &str = "6.16";
/// Drivers the guests load. Order does not matter: dependencies are read from the modules.
const MODULES: [&str; 10] = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "e1000",
    "e1000e",
    "igb",
    "vmxnet3",
    "veth",
    "xsk_diag",
    "af_packet",
];
/// One download or unpacking may take this long.
const STEP_S: u64 = 300;

/// What a guest is built from: everything lies in the cache (or was on the machine before).
#[derive(Debug, Clone)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// The packages from the cache; fetches them first if they are not there.
    ///
    /// # Errors
    /// Environment: not Debian/amd64, no apt, no network, no suite with QEMU ≥ 10 or Linux ≥ 6.16.
    pub fn get() -> Result<Packages> {
        let cache = cache_dir()?;
        let root = cache.join("packages");
        if !root.join("kernel/order").is_file() {
            fetch(&cache, &root)?;
        }
        let packages = Packages { root };
        if !packages.qemu().is_file() {
            // QEMU was the machine's own when the cache was filled, and has gone since.
            fs::remove_dir_all(&packages.root).map_err(|e| failed("clear", &packages.root, &e))?;
            fetch(&cache, &packages.root)?;
        }
        Ok(packages)
    }

    /// The folder that holds the packages and what is built from them.
    pub fn cache(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    /// The emulator's file.
    pub fn qemu(&self) -> PathBuf {
        let unpacked = self.root.join("usr/bin/qemu-system-x86_64");
        if unpacked.is_file() { unpacked } else { on_path("qemu-system-x86_64").unwrap_or(unpacked) }
    }

    /// Folders for QEMU's `-L`: its firmware.
    pub fn firmware(&self) -> Vec<PathBuf> {
        [self.root.join("usr"), PathBuf::from("/usr")]
            .iter()
            .flat_map(|usr| [usr.join("share/qemu"), usr.join("share/seabios")])
            .filter(|dir| dir.is_dir())
            .collect()
    }

    /// Where the unpacked programs' shared libraries lie, for `LD_LIBRARY_PATH`: releases before the merged `/usr` use both folders.
    pub fn libraries(&self) -> String {
        ["usr/lib", "lib"].map(|dir| self.root.join(dir).join("x86_64-linux-gnu").display().to_string()).join(":")
    }

    /// A program for the guest (`busybox`, `ethtool`), from the packages or from the machine.
    ///
    /// # Errors
    /// Environment: it is in neither.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        ["usr/bin", "usr/sbin", "bin", "sbin"]
            .iter()
            .map(|dir| self.root.join(dir).join(name))
            .find(|path| path.is_file())
            .or_else(|| on_path(name))
            .ok_or_else(|| Error::environment("find", name).because("neither in the packages nor on PATH"))
    }

    /// The guest's kernel image.
    pub fn kernel(&self) -> PathBuf {
        self.root.join("kernel/vmlinuz")
    }

    /// The guest's kernel modules (uncompressed) in the order in which they must be loaded.
    ///
    /// # Errors
    /// Environment: the cache cannot be read.
    pub fn modules(&self) -> Result<Vec<PathBuf>> {
        let order = self.root.join("kernel/order");
        let names = fs::read_to_string(&order).map_err(|e| failed("read", &order, &e))?;
        Ok(names.lines().map(|name| self.root.join("kernel").join(format!("{name}.ko"))).collect())
    }
}

/// `$XDG_CACHE_HOME/plimsoll/vm`, else `~/.cache/plimsoll/vm`.
fn cache_dir() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or_else(|| Error::environment("find", "a cache folder").remedy("set XDG_CACHE_HOME or HOME"))?;
    Ok(base.join("plimsoll/vm"))
}

fn fetch(cache: &Path, root: &Path) -> Result<()> {
    fs::create_dir_all(cache).map_err(|e| failed("create", cache, &e))?;
    // Several processes may fetch at once: each works in its own folder, the first rename wins.
    let work = cache.join(format!("fetch-{}", std::process::id()));
    let _cleanup = RemoveOnDrop(work.clone());
    let new_root = work.join("packages");
    fs::create_dir_all(new_root.join("kernel")).map_err(|e| failed("create", &new_root, &e))?;

    let apt = Apt::private(&work)?;
    apt.download_qemu()?;
    let kernel = apt.download_kernel()?;
    for deb in apt.archives()? {
        if !kernel.contains(&deb) {
            Tool::new("dpkg-deb", STEP_S).arg("-x").arg(&deb).arg(&new_root).run("unpack", &deb.display())?;
        }
    }
    unpack_kernel(&kernel, &new_root.join("kernel"))?;
    match fs::rename(&new_root, root) {
        Ok(()) => Ok(()),
        Err(_) if root.join("kernel/order").is_file() => Ok(()),
        Err(e) => Err(failed("fill", root, &e)),
    }
}

struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// apt with a state of its own; it reads the machine's list of installed packages and writes nothing of the machine's.
struct Apt {
    work: PathBuf,
    config: PathBuf,
    codename: String,
    update_log: String,
}

impl Apt {
    fn private(work: &Path) -> Result<Apt> {
        if std::env::consts::ARCH != "x86_64" || on_path("apt-get").is_none() {
            return Err(Error::environment("fetch", "the VM lab's packages")
                .because("they are known for Debian on amd64 only")
                .remedy("use the network-namespace lab (`plimsoll lab up` without --vm)"));
        }
        let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = os_release
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
            .map(|name| name.trim_matches('"').to_owned())
            .ok_or_else(|| {
                Error::environment("read", "the distribution's codename").because("/etc/os-release has none")
            })?;
        let targets = Tool::new("apt-get", STEP_S)
            .args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
            .run("list", &"apt's sources")?;
        let mirror = main_archive(&targets, &codename).ok_or_else(|| {
            Error::environment("find", format!("the mirror of {codename}"))
                .because("apt's sources have no 'main' of it")
                .remedy("the VM lab's packages are known for Debian; add its archive to apt's sources")
        })?;
        for dir in ["parts", "lists/partial", "archives/partial"] {
            fs::create_dir_all(work.join(dir)).map_err(|e| failed("create", work, &e))?;
        }
        let option = keyring().map(|path| format!("[signed-by={}] ", path.display())).unwrap_or_default();
        // The kernel is only unpacked, so it may be a newer release's; QEMU must match this release's libraries.
        let sources: String = [codename.clone(), format!("{codename}-backports"), "stable-backports".to_owned()]
            .iter()
            .map(|suite| format!("deb {option}{mirror} {suite} main\n"))
            .collect();
        let write = |name: &str, text: String| {
            let path = work.join(name);
            fs::write(&path, text).map_err(|e| failed("write", &path, &e)).map(|()| path)
        };
        write("parts/lab.list", sources)?;
        let config = write("apt.conf", apt_config(work))?;
        let mut apt = Apt { work: work.to_owned(), config, codename, update_log: String::new() };
        // One absent suite fails the whole update, but the others are there: what counts is whether the versions are found.
        if let Err(error) = apt.get(&["update"]) {
            apt.update_log = error.cause().unwrap_or_default().to_owned();
        }
        Ok(apt)
    }

    fn tool(&self, program: &str) -> Tool {
        Tool::new(program, STEP_S)
            .env("APT_CONFIG", &self.config)
            .env("LC_ALL", "C")
            .current_dir(&self.work.join("archives"))
    }

    fn get(&self, args: &[&str]) -> Result<String> {
        self.tool("apt-get").args(["-y", "--no-remove"]).args(args).run("run", &format!("apt-get {}", args.join(" ")))
    }

    /// The newest version of `package` in the suites that `suite` accepts, if it is at least `min`.
    fn version(&self, package: &str, min: &str, suite: impl Fn(&str) -> bool) -> Result<(String, String)> {
        let table = self.tool("apt-cache").args(["madison", package]).run("look up", &package)?;
        newest(&table, min, suite).ok_or_else(|| {
            let cause = match self.update_log.as_str() {
                "" => format!("no version ≥ {min} in {0}, {0}-backports or stable-backports", self.codename),
                log => log.to_owned(),
            };
            Error::environment("fetch", package).because(cause).remedy("the lab without --vm needs no packages")
        })
    }

    fn download_qemu(&self) -> Result<()> {
        let own = [self.codename.clone(), format!("{}-backports", self.codename)];
        let (version, suite) =
            self.version("qemu-system-x86", QEMU_MIN, |suite| own.iter().any(|name| name == suite))?;
        let package = format!("qemu-system-x86={version}");
        self.get(&["install", "--download-only", "--reinstall", "-t", &suite, &package, "ethtool"])?;
        // By itself: it may conflict with an installed package, and it is never installed.
        self.get(&["download", "busybox-static"])?;
        Ok(())
    }

    /// Downloads the kernel's image and modules; returns their files.
    fn download_kernel(&self) -> Result<Vec<PathBuf>> {
        let before = self.archives()?;
        let (version, _) = self.version("linux-image-amd64", KERNEL_MIN, |_| true)?;
        // Debian's meta package names the image; from 7.x the image is itself empty and names the parts.
        let mut wanted = vec![format!("linux-image-amd64={version}")];
        let mut real = Vec::new();
        for _ in 0..3 {
            let mut next = Vec::new();
            for package in wanted.drain(..) {
                let record = self.tool("apt-cache").args(["show", &package]).run("look up", &package)?;
                next.extend(kernel_parts(&record));
            }
            real.extend(next.iter().cloned());
            wanted = next;
        }
        real.sort();
        real.dedup();
        let mut args = vec!["download"];
        args.extend(real.iter().map(String::as_str));
        self.get(&args)?;
        Ok(self.archives()?.into_iter().filter(|deb| !before.contains(deb)).collect())
    }

    fn archives(&self) -> Result<Vec<PathBuf>> {
        let dir = self.work.join("archives");
        let entries = fs::read_dir(&dir).map_err(|e| failed("list", &dir, &e))?;
        Ok(entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "deb"))
            .collect())
    }
}

fn apt_config(work: &Path) -> String {
    let work = work.display();
    format!(
        r#"Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{work}/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "{work}/lists";
Dir::Cache "{work}";
Dir::Cache::archives "{work}/archives";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Debug::NoLocking "true";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Update::Pre-Invoke;
"#
    )
}

/// The URI of the archive that carries `codename` itself, from `apt-get indextargets`.
fn main_archive(targets: &str, codename: &str) -> Option<String> {
    targets.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [uri, release, "main"] if release == codename => Some(uri.to_owned()),
        _ => None,
    })
}

/// The keyring that the machine's own sources name, else the distribution's.
fn keyring() -> Option<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path()));
    let distribution = PathBuf::from("/usr/share/keyrings/debian-archive-keyring.gpg");
    let named: Vec<PathBuf> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|e| e == "list" || e == "sources"))
        .flat_map(|file| signed_by(&fs::read_to_string(file).unwrap_or_default()))
        .collect();
    if named.contains(&distribution) {
        return Some(distribution);
    }
    named.into_iter().chain([distribution]).find(|path| path.is_file())
}

/// Key files in a sources file, in either format.
fn signed_by(sources: &str) -> Vec<PathBuf> {
    sources
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| {
            let lower = line.to_ascii_lowercase();
            let at = lower.find("signed-by")?;
            let value = line[at + "signed-by".len()..].trim_start_matches([':', '=', ' ']);
            value.split([' ', ']', ',']).next().filter(|path| path.starts_with('/')).map(PathBuf::from)
        })
        .collect()
}

/// Newest version ≥ `min` (and its suite) from `apt-cache madison`.
fn newest(madison: &str, min: &str, suite: impl Fn(&str) -> bool) -> Option<(String, String)> {
    madison
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim).skip(1);
            let version = fields.next()?;
            let release = fields.next()?.split_whitespace().nth(1)?.split('/').next()?;
            (suite(release) && is_at_least(version, min)).then(|| (version.to_owned(), release.to_owned()))
        })
        .reduce(|best, next| if is_at_least(&next.0, &best.0) { next } else { best })
}

/// Debian's version order; dpkg itself is asked.
fn is_at_least(version: &str, min: &str) -> bool {
    Command::new("dpkg").args(["--compare-versions", version, "ge", min]).status().is_ok_and(|status| status.success())
}

/// The packages that a kernel package's record depends on and that hold its image, modules or lists.
fn kernel_parts(record: &str) -> Vec<String> {
    record
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|depends| depends.split([',', '|']))
        .filter_map(|item| item.split_whitespace().next())
        .filter(|name| {
            ["linux-image-", "linux-base-", "linux-binary-", "linux-modules-"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .map(str::to_owned)
        .collect()
}

/// Takes the image, and the wanted modules with all they depend on, out of the kernel's packages.
fn unpack_kernel(debs: &[PathBuf], out: &Path) -> Result<()> {
    let unpacked = out.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(|e| failed("create", &unpacked, &e))?;
    let mut wanted: Vec<String> = MODULES.iter().map(|name| (*name).to_owned()).collect();
    let mut first = true;
    // Each pass reads the archive once; dependencies of dependencies are rare, so a few passes close the set.
    for _ in 0..4 {
        let mut patterns: Vec<String> =
            wanted.iter().map(|name| format!("*/{}.ko*", name.replace('_', "[-_]"))).collect();
        if first {
            patterns.extend(["*/vmlinuz*", "*/modules.builtin"].map(str::to_owned));
            first = false;
        }
        for deb in debs {
            // tar exits with 2 when a pattern matches nothing in this one of the packages: what is missing shows below.
            let script = r#"dpkg-deb --fsys-tarfile "$0" | tar -x -C "$1" --wildcards -- "${@:2}" 2>/dev/null || true"#;
            Tool::new("bash", STEP_S)
                .args(["-c", script])
                .arg(deb)
                .arg(&unpacked)
                .args(patterns.iter().map(String::as_str))
                .run("unpack", &deb.display())?;
        }
        let found = Modules::read(&unpacked)?;
        wanted = found.missing();
        if wanted.is_empty() {
            found.store(out)?;
            return fs::remove_dir_all(&unpacked).map_err(|e| failed("clear", &unpacked, &e));
        }
    }
    Err(Error::environment("find", format!("kernel modules {}", wanted.join(", ")))
        .because("not in the kernel's packages"))
}

/// The modules found in an unpacked kernel package: name, content, dependencies.
struct Modules {
    image: PathBuf,
    found: Vec<(String, Vec<u8>, Vec<String>)>,
    builtin: Vec<String>,
}

impl Modules {
    fn read(dir: &Path) -> Result<Modules> {
        let mut modules = Modules { image: PathBuf::new(), found: Vec::new(), builtin: Vec::new() };
        for path in files_below(dir)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with("vmlinuz") {
                modules.image = path;
            } else if name == "modules.builtin" {
                let text = fs::read_to_string(&path).map_err(|e| failed("read", &path, &e))?;
                modules.builtin = text.lines().filter_map(module_name).collect();
            } else if let Some(module) = module_name(name) {
                let content = decompressed(&path)?;
                let depends = depends(&content);
                modules.found.push((module, content, depends));
            }
        }
        Ok(modules)
    }

    fn has(&self, name: &str) -> bool {
        self.builtin.iter().any(|builtin| builtin == name) || self.found.iter().any(|(found, ..)| found == name)
    }

    fn missing(&self) -> Vec<String> {
        let roots = MODULES.iter().map(|name| (*name).to_owned());
        let mut missing: Vec<String> = roots
            .chain(self.found.iter().flat_map(|(_, _, depends)| depends.iter().cloned()))
            .filter(|name| !self.has(name))
            .collect();
        missing.sort();
        missing.dedup();
        missing
    }

    fn store(&self, out: &Path) -> Result<()> {
        if self.image.as_os_str().is_empty() {
            return Err(Error::environment("find", "the kernel's image").because("not in the kernel's packages"));
        }
        let image = out.join("vmlinuz");
        fs::copy(&self.image, &image).map_err(|e| failed("write", &image, &e))?;
        let mut order: Vec<&str> = Vec::new();
        while order.len() < self.found.len() {
            let before = order.len();
            for (name, _, depends) in &self.found {
                let is_ready =
                    |dep: &String| order.contains(&dep.as_str()) || !self.found.iter().any(|(n, ..)| n == dep);
                if !order.contains(&name.as_str()) && depends.iter().all(is_ready) {
                    order.push(name);
                }
            }
            if order.len() == before {
                return Err(
                    Error::environment("order", "the kernel's modules").because("their dependencies form a circle")
                );
            }
        }
        for (name, content, _) in &self.found {
            let path = out.join(format!("{name}.ko"));
            fs::write(&path, content).map_err(|e| failed("write", &path, &e))?;
        }
        let path = out.join("order");
        fs::write(&path, order.join("\n") + "\n").map_err(|e| failed("write", &path, &e))
    }
}

/// `kernel/drivers/net/i2c-algo-bit.ko.xz` → `i2c_algo_bit`.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => Tool::new("xz", STEP_S).arg("-dc").arg(path).bytes("unpack", &path.display()),
        Some("zst") => Tool::new("zstd", STEP_S).arg("-dcq").arg(path).bytes("unpack", &path.display()),
        _ => fs::read(path).map_err(|e| failed("read", path, &e)),
    }
}

/// A module's dependencies, from the `depends=` entry of its `.modinfo` section (NUL-separated strings).
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else { return Vec::new() };
    let value = module[at + key.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| failed("list", &dir, &e))?.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

pub(super) fn failed(operation: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::environment(operation, path.display().to_string()).os(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_that_carries_the_release_itself() {
        let targets = "http://a.example/security/ bookworm-security main\nhttp://b.example/archive/ bookworm main\n";
        assert_eq!(main_archive(targets, "bookworm").as_deref(), Some("http://b.example/archive/"));
        assert_eq!(main_archive(targets, "trixie"), None);
    }

    #[test]
    fn key_files_are_read_in_both_source_formats() {
        let deb822 = "Types: deb\nSigned-By: /usr/share/keyrings/a.gpg\n";
        let one_line =
            "# signed-by=/no\ndeb [arch=amd64 signed-by=/etc/apt/keyrings/b.asc] http://b.example stable main\n";
        assert_eq!(signed_by(deb822), [PathBuf::from("/usr/share/keyrings/a.gpg")]);
        assert_eq!(signed_by(one_line), [PathBuf::from("/etc/apt/keyrings/b.asc")]);
    }

    #[test]
    fn libraries_are_looked_for_in_both_folders_that_packages_use() {
        let packages = Packages { root: PathBuf::from("/p") };
        assert_eq!(packages.libraries(), "/p/usr/lib/x86_64-linux-gnu:/p/lib/x86_64-linux-gnu");
    }

    #[test]
    fn the_newest_version_of_an_accepted_suite_wins() {
        if on_path("dpkg").is_none() {
            return;
        }
        let table = " q | 1:11.1 | http://m stable-backports/main amd64 Packages\n q | 1:10.0.2 | http://m c-backports/main \
                     amd64 Packages\n q | 1:7.2 | http://m c/main amd64 Packages\n";
        let own = |suite: &str| suite == "c" || suite == "c-backports";
        assert_eq!(newest(table, "1:10", own), Some(("1:10.0.2".into(), "c-backports".into())));
        assert_eq!(newest(table, "1:10", |suite| suite == "c"), None);
        assert_eq!(newest(table, "1:10", |_| true).unwrap().1, "stable-backports");
    }

    #[test]
    fn kernel_parts_are_those_of_the_kernel_itself() {
        let record = "Package: linux-image-7.2-amd64\nDepends: dracut | initramfs-tools (>= 0.1), linux-base-7.2 (= 1), \
                      linux-binary-7.2-amd64 (= 1), linux-modules-7.2-amd64 (= 1)\n\nPackage: older\nDepends: linux-image-6\n";
        assert_eq!(kernel_parts(record), ["linux-base-7.2", "linux-binary-7.2-amd64", "linux-modules-7.2-amd64"]);
    }

    #[test]
    fn module_dependencies_are_read_from_modinfo() {
        assert_eq!(depends(b"x\0license=GPL\0depends=dca,i2c-algo-bit\0retpoline=Y\0"), ["dca", "i2c_algo_bit"]);
        assert_eq!(depends(b"\0depends=\0"), Vec::<String>::new());
        assert_eq!(module_name("kernel/drivers/i2c/algos/i2c-algo-bit.ko.xz").as_deref(), Some("i2c_algo_bit"));
    }
}
