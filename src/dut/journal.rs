//! Puts a DUT's setting back, whatever happens: a journal on disk is written before the first change and removed after the last.
//!
//! Control plane. A [`Held`] setting is restored when it is dropped (error, panic, a signal that ends the run in order). After a SIGKILL the
//! journal is still there, and the next run, or `sweep --restore`, puts the old value back.
//!
//! ```text
//! take: lock ── read value ── write journal (temp, fsync, rename, fsync) ─► set … set ─► restore: set old ── read back ── unlink ── unlock
//!                                     └── killed anywhere here: the journal says what to restore ──┘
//! ```
//!
//! The lock file is held by this process and by every child that makes a change. So whoever gets the lock knows that no change is under
//! way any more, not even one by a child that outlived its killed parent: a late `ethtool -G` cannot undo a restore.

use super::observer::Observer;
use super::setting::{SET_LIMIT, Setting};
use crate::clock;
use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often a lock that a child still holds is tried again.
const LOCK_STEP: Duration = Duration::from_millis(20);
/// Extension of a journal while it is written.
const UNFINISHED: &str = "tmp";

/// What has to be put back, and how. One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The profile's `observe:` text.
    pub observe: String,
    /// The DUT's interface.
    pub interface: String,
    /// What was changed.
    pub kind: super::setting::Kind,
    /// The profile's `set_ring:` command, if one is used.
    pub command: Option<String>,
    /// The value to be put back.
    pub original: u64,
    /// Process that changes it, and when it started (clock ticks since boot): a process id alone can be another process by now.
    pub owner: (i32, u64),
}

impl Entry {
    fn setting(&self) -> Setting {
        Setting { kind: self.kind, interface: self.interface.clone(), command: self.command.clone() }
    }

    fn owner_lives(&self) -> bool {
        let (pid, started) = self.owner;
        let exists = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
        exists && started_at(pid) == Some(started)
    }
}

/// Where journals are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// The journal of this user: `$XDG_STATE_HOME/plimsoll`, else `/var/lib/plimsoll` (root) or `~/.local/state/plimsoll`. It outlives
    /// a reboot of this host, as the DUT's setting does.
    pub fn of_this_user() -> Journal {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(|| {
            let is_root = rustix::process::geteuid().is_root();
            if is_root { None } else { std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state")) }
        });
        Journal { folder: state.unwrap_or_else(|| "/var/lib".into()).join("plimsoll") }
    }

    /// A journal in this folder.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Journal {
        Journal { folder: folder.into() }
    }

    /// Takes a setting: from now on it is put back.
    ///
    /// If an earlier run was killed while it held the same setting, its original value is the one that will be put back.
    ///
    /// # Errors
    /// Environment: another run holds it, the DUT does not say what is set, or the journal cannot be written.
    pub fn take(&self, observe: &str, observer: Arc<Observer>, setting: Setting) -> Result<Held> {
        fs::create_dir_all(&self.folder).map_err(|error| self.failed("make", &error))?;
        let name = file_name(&[observe, &setting.interface, setting.kind.name()]);
        let path = self.folder.join(format!("{name}.json"));
        let lock = Lock::wait_for(&self.folder.join(format!("{name}.lock")), SET_LIMIT)?.ok_or_else(|| {
            Error::environment("change", setting.subject(&observer))
                .because("another run of plimsoll is changing it")
                .remedy("wait for that run to end")
        })?;
        let original = match read_entry(&path) {
            Some(left_over) => left_over.original,
            None => setting.value(&observer)?,
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let entry = Entry {
            observe: observe.into(),
            interface: setting.interface.clone(),
            kind: setting.kind,
            command: setting.command.clone(),
            original,
            owner: (pid, started_at(pid).unwrap_or(0)),
        };
        write_entry(&path, &entry).map_err(|error| self.failed("write", &error))?;
        Ok(Held { observer, setting, original, path, lock, done: false })
    }

    /// What killed runs left, and what running ones hold, oldest name first.
    pub fn entries(&self) -> Vec<Entry> {
        self.paths("json").iter().filter_map(|path| read_entry(path)).collect()
    }

    /// Puts back what killed runs left. `open` opens an observer for an entry's `observe` text and interface.
    ///
    /// Returns a sentence for each setting that was put back, and the errors of those that could not be; their entries stay.
    pub fn restore_left_over(&self, open: &dyn Fn(&str, &str) -> Result<Observer>) -> (Vec<String>, Vec<Error>) {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for path in self.paths("json") {
            match restore_one(&path, open) {
                Ok(Some(sentence)) => done.push(sentence),
                Ok(None) => {}
                Err(error) => failed.push(error),
            }
        }
        // Killed before its journal was written, or after it was removed, a run leaves its lock.
        for path in self.paths("lock") {
            drop(Lock::wait_for(&path, Duration::ZERO));
        }
        (done, failed)
    }

    fn paths(&self, extension: &str) -> Vec<PathBuf> {
        let Ok(files) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = files
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|e| e == extension))
            .collect();
        paths.sort();
        paths
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> Error {
        Error::environment(what, format!("the journal in {}", self.folder.display())).os(error).remedy(
            "without it the DUT's setting could stay changed; set XDG_STATE_HOME to a folder that can be written",
        )
    }
}

fn restore_one(path: &Path, open: &dyn Fn(&str, &str) -> Result<Observer>) -> Result<Option<String>> {
    let Some(entry) = read_entry(path) else { return Ok(None) };
    if entry.owner_lives() {
        return Ok(None);
    }
    // The owner is dead; a child of it may still be at work.
    let Some(lock) = Lock::wait_for(&path.with_extension("lock"), SET_LIMIT)? else {
        return Err(Error::environment("restore", format!("the {} of {}", entry.kind, entry.interface))
            .because("a change of a killed run hangs"));
    };
    // Another process may have restored it while we waited.
    let Some(entry) = read_entry(path) else { return Ok(None) };
    let observer = Arc::new(open(&entry.observe, &entry.interface)?);
    let setting = entry.setting();
    let sentence =
        format!("{} was left changed by a killed run; it is {} again", setting.subject(&observer), entry.original);
    Held { observer, setting, original: entry.original, path: path.into(), lock, done: false }.restore()?;
    Ok(Some(sentence))
}

/// A setting that will be put back.
#[must_use = "dropping it puts the setting back"]
pub struct Held {
    observer: Arc<Observer>,
    setting: Setting,
    original: u64,
    path: PathBuf,
    lock: Lock,
    done: bool,
}

impl Held {
    /// The value that will be put back.
    pub fn original(&self) -> u64 {
        self.original
    }

    /// What is held.
    pub fn kind(&self) -> super::setting::Kind {
        self.setting.kind
    }

    /// Forgets the old value: what is set stays set.
    ///
    /// # Errors
    /// Environment: the journal's entry cannot be removed.
    pub fn keep(&mut self) -> Result<()> {
        self.done = true;
        self.forget()
    }

    /// Sets another value and returns the one that is then in use.
    ///
    /// # Errors
    /// As [`Setting::set`].
    pub fn set(&self, value: u64) -> Result<u64> {
        self.setting.set(&self.observer, value, Some(&self.lock.file))
    }

    /// Puts the old value back, and forgets it.
    ///
    /// # Errors
    /// Environment: the DUT does not answer or has another value now; the journal stays, and the error says what to do by hand.
    pub fn restore(mut self) -> Result<()> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<()> {
        self.done = true;
        let by_hand =
            || format!("on the DUT: {}; or later: plimsoll sweep --restore", self.setting.by_hand(self.original));
        let now = self.set(self.original).map_err(|error| error.remedy(by_hand()))?;
        if now != self.original {
            return Err(Error::environment("put back", self.setting.subject(&self.observer))
                .because(format!("it was {} and is {now}", self.original))
                .remedy(by_hand()));
        }
        self.forget()
    }

    fn forget(&self) -> Result<()> {
        fs::remove_file(&self.path)
            .and_then(|()| sync_folder(&self.path))
            .map_err(|error| Error::environment("remove", self.path.display().to_string()).os(&error))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.done
            && let Err(error) = self.put_back()
        {
            tracing::error!("{error}");
        }
    }
}

/// An exclusive lock on a file, shared with children that get the file.
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits at most `limit` for the lock; `None` if somebody kept it.
    fn wait_for(path: &Path, limit: Duration) -> Result<Option<Lock>> {
        let failed = |error: &std::io::Error| Error::environment("lock", path.display().to_string()).os(error);
        let deadline = clock::now().plus_ns(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let file =
                OpenOptions::new().read(true).append(true).create(true).open(path).map_err(|error| failed(&error))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // The one who had it may have removed the file: a lock on a file without a name guards nothing.
                    let same =
                        fs::metadata(path).is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.ino()));
                    if same {
                        return Ok(Some(Lock { file, path: path.into() }));
                    }
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    if clock::now() >= deadline {
                        return Ok(None);
                    }
                    std::thread::sleep(LOCK_STEP);
                }
                Err(error) => return Err(failed(&error.into())),
            }
        }
    }
}

impl Drop for Lock {
    /// Removes the file, still locked, unless there is something left to be put back under it; and a journal of which only a part was written.
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path.with_extension(UNFINISHED));
        if !self.path.with_extension("json").exists() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn read_entry(path: &Path) -> Option<Entry> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_entry(path: &Path, entry: &Entry) -> std::io::Result<()> {
    let temporary = path.with_extension(UNFINISHED);
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(entry)?)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Parts as one file name: what is no letter, digit, `.` or `-` is written as `%XX`.
fn file_name(parts: &[&str]) -> String {
    let mut name = String::new();
    for byte in parts.join(",").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b',' => name.push(char::from(byte)),
            _ => name += &format!("%{byte:02X}"),
        }
    }
    // The kernel refuses names over 255 bytes; a hash keeps cut ones apart.
    if name.len() > 200 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        name.truncate(180);
        name += &format!("%{:016x}", hasher.finish());
    }
    name
}

/// When a process started, in clock ticks since boot (field 22 of `/proc/PID/stat`; the name in field 2 may hold spaces).
fn started_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::channel::quoted;
    use super::super::observer::Target;
    use super::super::setting::Kind;
    use super::*;

    /// A DUT whose ring is a line in a file.
    struct FileDut {
        dir: tempfile::TempDir,
    }

    impl FileDut {
        fn new(ring: u64) -> FileDut {
            let dut = FileDut { dir: tempfile::tempdir().unwrap() };
            fs::write(dut.dir.path().join("ring"), format!("rx_ring: {ring}\n")).unwrap();
            dut
        }

        fn observe(&self) -> String {
            format!("command:cat {}", quoted(&self.dir.path().join("ring").display().to_string()))
        }

        fn observer(&self) -> Observer {
            Observer::open(&Target::parse(&self.observe()).unwrap(), vec!["eth0".into()]).unwrap()
        }

        fn setting(&self) -> Setting {
            let command =
                format!("echo rx_ring: {{ring}} > {}", quoted(&self.dir.path().join("ring").display().to_string()));
            Setting { kind: Kind::RxRing, interface: "eth0".into(), command: Some(command) }
        }

        fn journal(&self) -> Journal {
            Journal::in_folder(self.dir.path().join("state"))
        }

        fn take(&self) -> Held {
            self.journal().take(&self.observe(), Arc::new(self.observer()), self.setting()).unwrap()
        }

        fn ring(&self) -> u64 {
            self.setting().value(&self.observer()).unwrap()
        }

        fn restore(&self) -> (Vec<String>, Vec<Error>) {
            self.journal().restore_left_over(&|observe, interface| {
                Observer::open(&Target::parse(observe)?, vec![interface.into()])
            })
        }

        fn files(&self) -> Vec<String> {
            fs::read_dir(self.dir.path().join("state"))
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect()
        }

        /// Leaves things as a SIGKILL would: journal written, lock released, owner gone.
        fn kill(&self, held: Held) {
            let path = held.path.clone();
            flock(&held.lock.file, FlockOperation::Unlock).unwrap();
            std::mem::forget(held);
            let mut entry = read_entry(&path).unwrap();
            entry.owner.1 += 1;
            write_entry(&path, &entry).unwrap();
        }
    }

    #[test]
    fn a_held_setting_is_put_back_and_nothing_stays_behind() {
        let dut = FileDut::new(256);
        let held = dut.take();
        assert_eq!((held.original(), held.set(4096).unwrap(), dut.ring()), (256, 4096, 4096));
        assert_eq!(dut.journal().entries()[0].original, 256);
        held.restore().unwrap();
        assert_eq!(dut.ring(), 256);
        assert!(dut.files().is_empty(), "{:?}", dut.files());
    }

    #[test]
    fn a_setting_that_is_dropped_by_an_error_or_a_panic_is_put_back() {
        let dut = FileDut::new(256);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let held = dut.take();
            held.set(64).unwrap();
            panic!("in mid-sweep");
        }));
        assert!(caught.is_err());
        assert_eq!(dut.ring(), 256);
        assert!(dut.journal().entries().is_empty());
    }

    #[test]
    fn a_setting_that_is_to_stay_stays() {
        let dut = FileDut::new(256);
        let mut held = dut.take();
        held.keep().unwrap();
        held.set(64).unwrap();
        drop(held);
        assert_eq!(dut.ring(), 64);
        assert!(dut.files().is_empty(), "{:?}", dut.files());
    }

    #[test]
    fn the_next_run_puts_back_what_a_killed_one_left() {
        let dut = FileDut::new(256);
        let held = dut.take();
        held.set(64).unwrap();
        dut.kill(held);
        let (done, failed) = dut.restore();
        assert!(failed.is_empty() && done[0].contains("it is 256 again"), "{done:?} {failed:?}");
        assert_eq!(dut.ring(), 256);
        assert!(dut.files().is_empty(), "{:?}", dut.files());
        assert_eq!(dut.restore().0.len(), 0);
    }

    #[test]
    fn a_setting_that_a_killed_run_left_and_a_new_run_takes_keeps_its_first_value() {
        let dut = FileDut::new(256);
        let held = dut.take();
        held.set(64).unwrap();
        dut.kill(held);
        let held = dut.take();
        assert_eq!(held.original(), 256);
        held.restore().unwrap();
        assert_eq!(dut.ring(), 256);
    }

    #[test]
    fn what_a_run_leaves_that_is_killed_before_its_journal_is_written_is_removed() {
        let dut = FileDut::new(256);
        let held = dut.take();
        fs::write(held.path.with_extension("tmp"), "{").unwrap();
        fs::remove_file(&held.path).unwrap();
        // Another run is between its lock and its journal.
        assert_eq!(dut.restore().0.len(), 0);
        assert_eq!(dut.files().len(), 2, "{:?}", dut.files());
        flock(&held.lock.file, FlockOperation::Unlock).unwrap();
        std::mem::forget(held);
        assert_eq!(dut.restore().0.len(), 0);
        assert!(dut.files().is_empty(), "{:?}", dut.files());
    }

    #[test]
    fn what_a_living_run_holds_is_left_alone() {
        let dut = FileDut::new(256);
        let held = dut.take();
        held.set(64).unwrap();
        assert_eq!(dut.restore().0.len(), 0);
        assert_eq!(dut.ring(), 64);
        drop(held);
        assert_eq!(dut.ring(), 256);
    }

    #[test]
    fn a_change_that_outlived_its_killed_parent_is_waited_for() {
        let dut = FileDut::new(256);
        let mut held = dut.take();
        // The child of a killed run: it has the lock file as its standard error and changes the ring late.
        let late =
            format!("sleep 0.5; echo rx_ring: 64 > {}", quoted(&dut.dir.path().join("ring").display().to_string()));
        let mut child = std::process::Command::new("sh")
            .args(["-c", &late])
            .stderr(held.lock.file.try_clone().unwrap())
            .spawn()
            .unwrap();
        let path = held.path.clone();
        let mut entry = read_entry(&path).unwrap();
        entry.owner.1 += 1;
        write_entry(&path, &entry).unwrap();
        // Our descriptor is closed, as the kernel does at a SIGKILL; the child's is not.
        held.done = true;
        drop(held);
        let (done, failed) = dut.restore();
        child.wait().unwrap();
        assert!(failed.is_empty() && done.len() == 1, "{done:?} {failed:?}");
        assert_eq!(dut.ring(), 256);
    }

    #[test]
    fn a_dut_that_cannot_be_reached_keeps_its_entry() {
        let dut = FileDut::new(256);
        let held = dut.take();
        held.set(64).unwrap();
        dut.kill(held);
        let (done, failed) = dut.journal().restore_left_over(&|_, _| {
            Err(Error::environment("connect to the DUT by", "ssh root@dut").because("no route to host"))
        });
        assert!(done.is_empty() && failed[0].to_string().contains("no route"));
        assert_eq!(dut.journal().entries().len(), 1);
        assert_eq!(dut.restore().0.len(), 1);
        assert_eq!(dut.ring(), 256);
    }

    #[test]
    fn a_setting_that_could_not_be_taken_leaves_nothing() {
        let dut = FileDut::new(256);
        let (observe, observer, setting) = (dut.observe(), Arc::new(dut.observer()), dut.setting());
        fs::remove_file(dut.dir.path().join("ring")).unwrap();
        assert!(dut.journal().take(&observe, observer, setting).is_err());
        assert_eq!(fs::read_dir(dut.dir.path().join("state")).unwrap().count(), 0);
    }

    #[test]
    fn file_names_hold_anything_a_profile_holds() {
        assert_eq!(file_name(&["ssh:root@dut/x y", "eth0", "rx_ring"]), "ssh%3Aroot%40dut%2Fx%20y,eth0,rx_ring");
        let (a, b) = (file_name(&[&"a".repeat(5000)]), file_name(&[&"a".repeat(5001)]));
        assert!(a.len() <= 200 && a != b);
    }
}
