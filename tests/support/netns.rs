//! Network namespaces and the two topologies of the black-box cases, as guards.

use std::{
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::harness::needs_root;

/// A network namespace with a unique name; deleted, with all that runs in it, when dropped.
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes one. Skips the test without root.
    pub fn new(role: &str) -> Netns {
        needs_root();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("plimt-{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let netns = Netns { name };
        host(&format!("ip netns add {}", netns.name));
        netns.sh("ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        netns
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command to be run inside it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a shell line inside it; panics with its output if it fails. Returns trimmed standard output.
    pub fn sh(&self, line: &str) -> String {
        let output = self.try_sh(line);
        assert!(output.status.success(), "`{line}` in {}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs a shell line inside it, whatever comes of it.
    pub fn try_sh(&self, line: &str) -> Output {
        self.command("sh").args(["-c", line]).output().expect("ip netns exec runs")
    }

    /// Starts a shell line inside it; killed with its children when dropped.
    pub fn spawn(&self, line: &str) -> Running {
        let child = self
            .command("sh")
            .args(["-c", &format!("exec {line}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ip netns exec runs");
        Running { child: Some(child) }
    }

    /// Runs `body` on a thread of its own that is inside it.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            plimsoll::host::netns::enter(&self.name).expect("the namespace can be entered");
            body()
        };
        let result = std::thread::scope(|scope| scope.spawn(inside).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// An interface's counter from its statistics folder, such as `tx_packets`.
    pub fn counter(&self, interface: &str, counter: &str) -> u64 {
        self.sh(&format!("cat /sys/class/net/{interface}/statistics/{counter}")).parse().expect("a counter is a number")
    }

    /// A counter of `nstat -az`, such as `UdpInCsumErrors`.
    pub fn mib(&self, name: &str) -> u64 {
        let text = self.sh(&format!("nstat -az {name}"));
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).expect("nstat prints numbers")
    }

    /// The id of the XDP program on an interface, if any.
    pub fn xdp_program(&self, interface: &str) -> Option<String> {
        let text = self.sh(&format!("ip -j -d link show {interface}"));
        let links: serde_json::Value = serde_json::from_str(&text).expect("ip prints JSON");
        links[0].get("xdp").map(ToString::to_string)
    }

    /// The interface's MAC address.
    pub fn mac(&self, interface: &str) -> String {
        self.sh(&format!("cat /sys/class/net/{interface}/address"))
    }

    /// True if the interface is promiscuous for anybody.
    pub fn is_promiscuous(&self, interface: &str) -> bool {
        self.sh(&format!("ip -d link show {interface}")).contains("promiscuity 1")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Ok(pids) = Command::new("ip").args(["netns", "pids", &self.name]).output() {
            let pids = String::from_utf8_lossy(&pids.stdout).into_owned();
            for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// A command that runs beside the test.
pub struct Running {
    child: Option<Child>,
}

impl Running {
    /// Waits for its end, at most `limit`; kills it and panics past that.
    pub fn finish(mut self, limit: Duration) -> Output {
        let mut child = self.child.take().expect("finish is called once");
        let deadline = Instant::now() + limit;
        loop {
            if child.try_wait().expect("the child can be waited for").is_some() {
                return child.wait_with_output().expect("its output can be read");
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let output = child.wait_with_output().expect("its output can be read");
                panic!("still running after {limit:?}: {}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process id is positive");
        let _ = kill_process(pid, signal);
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Options of a topology.
#[derive(Clone, Copy)]
pub struct Options {
    /// Queues per veth end.
    pub queues: u32,
    /// MTU of all links.
    pub mtu: u32,
    /// Leave IPv6 on.
    pub ipv6: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { queues: 1, mtu: 1500, ipv6: false }
    }
}

/// A generator's namespace (`g0`, `g1`; no kernel addresses) and a DUT's (`d0` 10.1.0.1/24, `d1` 10.2.0.1/24).
pub struct Topology {
    /// The generator's side.
    pub generator: Netns,
    /// The DUT's side.
    pub dut: Netns,
}

impl Topology {
    /// One link; the DUT terminates.
    pub fn sink(options: Options) -> Topology {
        let topology = Topology { generator: Netns::new("g"), dut: Netns::new("d") };
        if options.ipv6 {
            for netns in [&topology.generator, &topology.dut] {
                netns.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0");
            }
        }
        topology.dut.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0");
        topology.link(0, options);
        topology
    }

    /// Two links; the DUT forwards.
    pub fn forward(options: Options) -> Topology {
        let topology = Topology::sink(options);
        topology.link(1, options);
        topology.dut.sh("sysctl -qw net.ipv4.ip_forward=1");
        if options.ipv6 {
            topology.dut.sh("sysctl -qw net.ipv6.conf.all.forwarding=1");
        }
        topology
    }

    fn link(&self, n: u32, options: Options) {
        let (g, d, q) = (self.generator.name(), self.dut.name(), options.queues);
        host(&format!(
            "ip link add g{n} netns {g} numrxqueues {q} numtxqueues {q} type veth \
             peer name d{n} netns {d} numrxqueues {q} numtxqueues {q}"
        ));
        self.generator.sh(&format!("ip link set g{n} mtu {} up", options.mtu));
        let address = n + 1;
        self.dut.sh(&format!("ip link set d{n} mtu {} up; ip addr add 10.{address}.0.1/24 dev d{n}", options.mtu));
        if options.ipv6 {
            self.dut.sh(&format!("ip -6 addr add fd00:{address}::1/64 dev d{n} nodad"));
        }
    }
}

/// Runs a shell line in the namespace of the tests; it may only name namespaces of a test.
fn host(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().expect("sh runs");
    assert!(output.status.success(), "`{line}`: {}", String::from_utf8_lossy(&output.stderr));
}
