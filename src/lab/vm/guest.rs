//! A guest under QEMU's software emulation: a real Linux with real NIC drivers, its taps, and the ways to disturb it.
//!
//! Control thread. Invariants: every wait is bounded; a guest that is not detached ends with its owner, also when the owner panics or is
//! killed, and takes its taps and files with it. Deliberately never uses hardware virtualization: modes, counters and conservation are
//! the same everywhere, rates mean nothing anywhere.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::command::Tool;
use super::fetch::{Packages, failed};
use super::initramfs;
use super::nic::{Nic, Plug, mac};
use crate::dut::channel::Output;
use crate::dut::vm::{Deadline, PORT_OTHERS, VmChannel};
use crate::error::{Error, Result};

/// Six seconds on a quiet machine; this much on one that also runs other tests.
const BOOT: Duration = Duration::from_secs(120);
/// One try to reach the agent while the guest boots.
const ATTEMPT: Duration = Duration::from_secs(15);
/// `ip`, `kill`: done in milliseconds.
const TOOL_S: u64 = 20;
/// An answer of QEMU's own monitor.
const MONITOR: Duration = Duration::from_secs(20);
/// A link that is up at its other end; e1000e and igb need some seconds of the guest's time, which a busy machine stretches.
const LINKS: Duration = Duration::from_secs(30);
/// Prints the NICs without a carrier. The file of one that is not up cannot be read, so it is not waited for.
const UNLINKED: &str =
    "for n in /sys/class/net/nic*; do read -r c <$n/carrier && [ $c = 0 ] && echo ${n##*/}; done 2>/dev/null; :";
/// Control ports: for the owner's commands, for long ones beside them, for other programs (observers).
const PORTS: usize = 3;
const PORT_OWNER: usize = 0;
const PORT_BESIDE: usize = 1;

/// What a guest is to be.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Its name, in messages.
    pub name: String,
    /// The existing network namespace its taps lie in.
    pub netns: String,
    /// Its folder: control sockets, console log, pid. Made by the guest and removed with it.
    pub dir: PathBuf,
    /// Its NICs in order: `nic0`, `nic1`, …
    pub nics: Vec<Nic>,
    /// Virtual CPUs.
    pub cpus: u8,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Programs to put into its `/bin`, with their libraries.
    pub programs: Vec<PathBuf>,
    /// The fifth byte of its MAC addresses.
    pub id: u8,
}

impl GuestSpec {
    /// One CPU, 384 MiB, no NICs, no programs.
    pub fn new(name: impl Into<String>, netns: impl Into<String>, dir: impl Into<PathBuf>) -> GuestSpec {
        let (name, netns, dir) = (name.into(), netns.into(), dir.into());
        GuestSpec { name, netns, dir, nics: Vec::new(), cpus: 1, memory_mib: 384, programs: Vec::new(), id: 0 }
    }

    /// The MAC address of `nicINDEX`.
    pub fn mac(&self, index: usize) -> String {
        mac(self.id, index)
    }
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    spec: GuestSpec,
    child: Option<Child>,
}

impl Guest {
    /// Starts a guest and waits until its agent answers.
    ///
    /// # Errors
    /// Environment: see [`Guest::start`] and [`Guest::wait_ready`].
    pub fn boot(packages: &Packages, spec: GuestSpec) -> Result<Guest> {
        let guest = Guest::start(packages, spec)?;
        guest.wait_ready()?;
        Ok(guest)
    }

    /// Makes the taps and starts QEMU, without waiting for the guest.
    ///
    /// The guest dies with the *thread* that called this (that is how Linux defines the parent's death).
    ///
    /// # Errors
    /// Environment: no privilege, no such namespace, no tap device, the files cannot be written.
    pub fn start(packages: &Packages, spec: GuestSpec) -> Result<Guest> {
        Guest::launch(packages, spec, true)
    }

    /// Like [`Guest::boot`], for a guest that outlives this process; [`RunningGuest`] finds it again.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn boot_detached(packages: &Packages, spec: GuestSpec) -> Result<RunningGuest> {
        let mut guest = Guest::launch(packages, spec, false)?;
        guest.wait_ready()?;
        // Dropping a Child does not end it; from here on the files in its folder are its owner.
        guest.child = None;
        let dir = std::mem::take(&mut guest.spec.dir);
        guest.spec.nics.clear();
        RunningGuest::open(&dir)
    }

    fn launch(packages: &Packages, spec: GuestSpec, dies_with_us: bool) -> Result<Guest> {
        fs::create_dir_all(&spec.dir).map_err(|e| failed("create", &spec.dir, &e))?;
        // From here on a failure cleans up by the guest's Drop.
        let mut guest = Guest { spec, child: None };
        let initramfs = guest.spec.dir.join("initramfs");
        initramfs::build(packages, &guest.spec.programs, &initramfs)?;
        for nic in &guest.spec.nics {
            if let Plug::Tap(tap) = &nic.plug {
                add_tap(&guest.spec.netns, tap)?;
            }
        }
        let log = guest.spec.dir.join("qemu.log");
        let stderr = fs::File::create(&log).map_err(|e| failed("create", &log, &e))?;
        let mut command = Command::new("setpriv");
        if dies_with_us {
            command.args(["--pdeathsig", "KILL"]);
        }
        command.args(["ip", "netns", "exec", &guest.spec.netns]).arg(packages.qemu());
        command.args(guest.arguments(packages, &initramfs));
        command.env("LD_LIBRARY_PATH", packages.libraries());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // Ctrl-C on the terminal is for us; we end the guest.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(|e| Error::environment("start", "setpriv").os(&e))?;
        let pid = guest.spec.dir.join("pid");
        fs::write(&pid, child.id().to_string()).map_err(|e| failed("write", &pid, &e))?;
        let identity = guest.spec.dir.join("guest");
        let models: Vec<String> = guest.spec.nics.iter().map(|nic| nic.model.to_string()).collect();
        let taps = guest.taps().join(" ");
        let text = format!("{}\n{}\n{taps}\n{}\n", guest.spec.name, guest.spec.netns, models.join(" "));
        fs::write(&identity, text).map_err(|e| failed("write", &identity, &e))?;
        guest.child = Some(child);
        Ok(guest)
    }

    fn arguments(&self, packages: &Packages, initramfs: &Path) -> Vec<String> {
        let spec = &self.spec;
        let path = |name: &str| spec.dir.join(name).display().to_string();
        let mut arguments: Vec<String> =
            ["-nodefaults", "-no-user-config", "-display", "none"].map(str::to_owned).to_vec();
        let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        add("-machine", "q35".to_owned());
        add("-accel", "tcg,thread=multi".to_owned());
        add("-cpu", "max".to_owned());
        add("-smp", spec.cpus.to_string());
        add("-m", spec.memory_mib.to_string());
        for firmware in packages.firmware() {
            add("-L", firmware.display().to_string());
        }
        add("-kernel", packages.kernel().display().to_string());
        add("-initrd", initramfs.display().to_string());
        // no_timer_check: on a machine too busy to run the guest for a while, the check of the timer would be a panic.
        // panic=0: a crashed guest stays as it is, with its reason on the console; every wait on it is bounded.
        let kernel = "console=ttyS0 quiet loglevel=4 panic=0 net.ifnames=0 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on";
        add("-append", kernel.to_owned());
        add("-serial", format!("file:{}", path("console")));
        add("-qmp", format!("unix:{},server=on,wait=off", path("monitor")));
        add("-device", "virtio-serial-pci".to_owned());
        for port in 0..PORTS {
            add(
                "-chardev",
                format!("socket,id=control{port},path={},server=on,wait=off", path(&format!("control{port}"))),
            );
            add("-device", format!("virtserialport,chardev=control{port},name=plimsoll.{port}"));
        }
        for (index, nic) in spec.nics.iter().enumerate() {
            arguments.extend(nic.arguments(index, spec.id));
        }
        arguments
    }

    /// Waits until the guest's agent answers, at most two minutes, and until its links are up ([`Guest::wait_links`]).
    ///
    /// # Errors
    /// Environment: QEMU ended (its message is the cause) or the guest did not come up in time.
    pub fn wait_ready(&self) -> Result<()> {
        let deadline = Deadline::after(BOOT);
        let socket = self.channel(PORT_OWNER);
        // QEMU makes its sockets one after the other; the monitor is among the first, the last control port the last.
        while !self.spec.dir.join(format!("control{}", PORTS - 1)).exists() {
            if deadline.left().is_zero() || self.has_ended() {
                return Err(self.not_up("QEMU did not start"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // A request that reaches a guest which is just being reset is lost with it, so it is made again.
        loop {
            match socket.run_within("uname -r", ATTEMPT, ATTEMPT.min(deadline.left())) {
                Ok(output) if output.status == 0 => return self.wait_links(),
                Ok(output) => return Err(self.not_up(&output.stderr)),
                Err(error) if deadline.left().is_zero() || self.has_ended() => {
                    return Err(self.not_up(error.cause().unwrap_or_default()));
                }
                Err(_) => {}
            }
        }
    }

    /// Waits until every NIC has a carrier: drivers of the e1000 family claim a speed and carry frames only some seconds after they
    /// came up, or after a change of their rings or queues. At most half a minute.
    ///
    /// # Errors
    /// Environment: a NIC is still without one (its cable may have been taken out), or the guest does not answer.
    pub fn wait_links(&self) -> Result<()> {
        let deadline = Deadline::after(LINKS);
        loop {
            let unlinked = self.output(UNLINKED, ATTEMPT)?;
            if unlinked.is_empty() {
                return Ok(());
            }
            if deadline.left().is_zero() {
                let names = unlinked.split_whitespace().collect::<Vec<_>>().join(", ");
                return Err(self.not_up(&format!("no carrier on {names} after {} s", LINKS.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether QEMU is no more: until we have waited for it, its number is its own.
    fn has_ended(&self) -> bool {
        let Some(child) = &self.child else { return true };
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        // "PID (NAME) STATE …"
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().next())
            .is_none_or(|state| matches!(state, "Z" | "X"))
    }

    fn not_up(&self, cause: &str) -> Error {
        let tail = |name: &str| {
            let text = fs::read(self.spec.dir.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" | ")
        };
        let mut cause = cause.to_owned();
        for (what, text) in [("QEMU", tail("qemu.log")), ("console", tail("console"))] {
            if !text.is_empty() {
                cause += &format!("; {what}: {text}");
            }
        }
        Error::environment("boot", format!("guest {}", self.spec.name)).because(cause)
    }

    /// What it was built from.
    pub fn spec(&self) -> &GuestSpec {
        &self.spec
    }

    /// Runs `script` (busybox sh) in the guest; killed after `limit`.
    ///
    /// # Errors
    /// Environment: the guest is gone or does not answer.
    pub fn run(&self, script: &str, limit: Duration) -> Result<Output> {
        self.channel(PORT_OWNER).run(script, limit)
    }

    /// The standard output of a script that must succeed.
    ///
    /// # Errors
    /// Environment: as [`Guest::run`], or the script failed.
    pub fn output(&self, script: &str, limit: Duration) -> Result<String> {
        let output = self.run(script, limit)?;
        if output.status == 0 {
            return Ok(output.stdout);
        }
        Err(Error::environment("run", format!("`{script}` in guest {}", self.spec.name))
            .because(format!("status {}: {}{}", output.status, output.stdout, output.stderr)))
    }

    /// Writes a file in the guest (small ones: it goes over the control channel).
    ///
    /// # Errors
    /// Environment: as [`Guest::output`].
    pub fn write_file(&self, path: &str, text: &str) -> Result<()> {
        let limit = Duration::from_secs(20);
        self.output(&format!("cat >'{path}' <<'PLIMSOLL-END-OF-FILE'\n{text}\nPLIMSOLL-END-OF-FILE"), limit).map(drop)
    }

    /// The channel for long commands beside [`Guest::run`].
    pub fn beside(&self) -> VmChannel {
        self.channel(PORT_BESIDE)
    }

    /// The channel that other programs use (`lab exec`, observers).
    pub fn for_others(&self) -> VmChannel {
        self.channel(PORT_OTHERS)
    }

    fn channel(&self, port: usize) -> VmChannel {
        VmChannel::new(self.spec.name.clone(), self.spec.dir.join(format!("control{port}")))
    }

    /// Takes the cable out of `nicINDEX` (or plugs it in), seen from the guest.
    ///
    /// # Errors
    /// Environment: QEMU is gone or refuses.
    pub fn set_link(&self, index: usize, is_up: bool) -> Result<()> {
        self.monitor("set_link", &serde_json::json!({"name": format!("nic{index}"), "up": is_up}))
    }

    /// Presses the reset button. The guest boots again; [`Guest::wait_ready`] waits for it.
    ///
    /// # Errors
    /// Environment: QEMU is gone or refuses.
    pub fn reset(&self) -> Result<()> {
        self.monitor("system_reset", &serde_json::json!({}))
    }

    /// Pulls the plug. Its taps stay, without a carrier, until the guest is dropped.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// One command to QEMU's monitor (QMP).
    fn monitor(&self, command: &str, arguments: &serde_json::Value) -> Result<()> {
        let fail = |cause: &dyn std::fmt::Display| {
            Error::environment(command, format!("guest {}", self.spec.name)).because(cause)
        };
        let mut stream = UnixStream::connect(self.spec.dir.join("monitor")).map_err(|e| fail(&e))?;
        stream.set_read_timeout(Some(MONITOR)).map_err(|e| fail(&e))?;
        let mut lines = BufReader::new(stream.try_clone().map_err(|e| fail(&e))?).lines();
        let requests = [
            serde_json::json!({"execute": "qmp_capabilities"}),
            serde_json::json!({"execute": command, "arguments": arguments}),
        ];
        for request in requests {
            writeln!(stream, "{request}").map_err(|e| fail(&e))?;
            // Greetings and events come in between.
            loop {
                let line = lines.next().ok_or_else(|| fail(&"QEMU has ended"))?.map_err(|e| fail(&e))?;
                let answer: serde_json::Value = serde_json::from_str(&line).map_err(|e| fail(&e))?;
                if let Some(error) = answer.get("error") {
                    return Err(fail(error));
                }
                if answer.get("return").is_some() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn taps(&self) -> Vec<&str> {
        let taps = self.spec.nics.iter().filter_map(|nic| match &nic.plug {
            Plug::Tap(tap) => Some(tap.as_str()),
            Plug::Hub(_) => None,
        });
        taps.collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        for tap in self.taps() {
            remove_tap(&self.spec.netns, tap);
        }
        if !self.spec.dir.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.spec.dir);
        }
    }
}

/// A detached guest, found again by its folder.
#[derive(Debug, Clone)]
pub struct RunningGuest {
    /// Its name.
    pub name: String,
    /// The namespace of its taps.
    pub netns: String,
    /// Its taps.
    pub taps: Vec<String>,
    /// The models of its NICs.
    pub models: Vec<String>,
    dir: PathBuf,
}

impl RunningGuest {
    /// The guest whose folder is `dir`, whether or not it still runs.
    ///
    /// # Errors
    /// Environment: there is none.
    pub fn open(dir: &Path) -> Result<RunningGuest> {
        let identity = dir.join("guest");
        let text = fs::read_to_string(&identity).map_err(|e| failed("read", &identity, &e))?;
        let mut lines = text.lines().map(str::to_owned);
        let (name, netns) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let mut words = || lines.next().unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        Ok(RunningGuest { name, netns, taps: words(), models: words(), dir: dir.to_owned() })
    }

    /// Its QEMU's process, if that still runs.
    pub fn pid(&self) -> Option<u32> {
        live_pid(&self.dir)
    }

    /// Whether its QEMU still runs.
    pub fn is_running(&self) -> bool {
        is_alive(&self.dir)
    }

    /// The channel for observers and `lab exec`.
    pub fn channel(&self) -> VmChannel {
        VmChannel::new(self.name.clone(), self.dir.join(format!("control{PORT_OTHERS}")))
    }

    /// Ends it and removes its taps and its folder. Does nothing to what is already gone.
    ///
    /// # Errors
    /// Environment: it does not end.
    pub fn remove(&self) -> Result<()> {
        if let Some(pid) = live_pid(&self.dir) {
            Tool::new("kill", TOOL_S).args(["-KILL", &pid.to_string()]).run("end", &format!("guest {}", self.name))?;
            let deadline = Deadline::after(Duration::from_secs(10));
            while is_alive(&self.dir) {
                if deadline.left().is_zero() {
                    return Err(Error::environment("end", format!("guest {}", self.name)).because("it ignores SIGKILL"));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for tap in &self.taps {
            remove_tap(&self.netns, tap);
        }
        fs::remove_dir_all(&self.dir).map_err(|e| failed("remove", &self.dir, &e))
    }
}

/// The guest's process, if it runs: its number may have gone to another program, so the command line must name the guest's folder.
fn live_pid(dir: &Path) -> Option<u32> {
    let pid: u32 = fs::read_to_string(dir.join("pid")).ok()?.trim().parse().ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let needle = dir.display().to_string();
    command.windows(needle.len()).any(|window| window == needle.as_bytes()).then_some(pid)
}

fn is_alive(dir: &Path) -> bool {
    live_pid(dir).is_some()
}

fn add_tap(netns: &str, tap: &str) -> Result<()> {
    let ip = |args: &[&str]| Tool::new("ip", TOOL_S).args(["-n", netns]).args(args).run("create tap", &tap).map(drop);
    ip(&["tuntap", "add", "dev", tap, "mode", "tap"])?;
    // The kernel's own router solicitations would be counted as frames under test.
    Tool::new("ip", TOOL_S)
        .args(["netns", "exec", netns, "sh", "-c", r#"echo 1 >"/proc/sys/net/ipv6/conf/$0/disable_ipv6""#, tap])
        .run("quieten", &tap)?;
    ip(&["link", "set", tap, "up"])
}

fn remove_tap(netns: &str, tap: &str) {
    let _ = Tool::new("ip", TOOL_S).args(["-n", netns, "link", "del", tap]).run("remove", &tap);
}
