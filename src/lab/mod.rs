//! The lab: a generator and a DUT in network namespaces of their own, for `make demo`, `make test` and trying things out.
//!
//! Runs in the control plane. All state is in the two namespaces (the options stand in `d0`'s alias), so `down` leaves
//! nothing, and `up` twice is the same as once. It calls iproute2: what it does can be read and repeated by hand.

pub mod model;
mod shell;
pub mod vm;

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

use crate::{
    error::{Error, Result},
    host::scheduling,
    xdp::model::ModelConfig,
};

pub use shell::{Shell, cpu_count};

/// The generator's namespace.
pub const GENERATOR: &str = "plimsoll-gen";
/// The DUT's namespace.
pub const DUT: &str = "plimsoll-dut";

/// Who works for the DUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DutCpu {
    /// The sender's CPU, in softirq: sender and DUT slow each other, the `coupled` case.
    Coupled,
    /// The last CPU, by threaded NAPI: the DUT has a core of its own.
    Own,
}

impl DutCpu {
    fn name(self) -> &'static str {
        match self {
            DutCpu::Coupled => "coupled",
            DutCpu::Own => "own-cpu",
        }
    }
}

/// What forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DutKind {
    /// A real Linux router.
    Router,
    /// The modelled DUT, whose ceiling is known (its interfaces and MAC addresses are filled in).
    Model(Box<ModelConfig>),
}

/// What to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What forwards.
    pub dut: DutKind,
    /// Who works for the DUT.
    pub cpu: DutCpu,
    /// Queues per link end.
    pub queues: u32,
    /// MTU of the links, bytes.
    pub mtu: u32,
}

impl Options {
    fn alias(&self) -> String {
        let dut = match self.dut {
            DutKind::Router => "router",
            DutKind::Model(_) => "model",
        };
        format!("plimsoll lab: {dut} {} queues {} mtu {}", self.cpu.name(), self.queues, self.mtu)
    }
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Down,
    /// All of it, as its options say.
    Up(String),
    /// A part, left by something that was interrupted.
    Partial,
}

/// Builds the lab; leaves it alone if it is up with the same options.
///
/// Generator `g0` 10.1.0.2 ── `d0` 10.1.0.1, `g1` 10.2.0.2 ── `d1` 10.2.0.1 (and fd00:1::/64, fd00:2::/64); the DUT
/// forwards. The generator's interfaces carry no address: Plimsoll answers for them.
///
/// # Errors
/// Without root or iproute2; another lab is up and something runs in it. Whatever was built is taken down again.
pub fn up(options: &Options) -> Result<Status> {
    let _alone = alone()?;
    if status()? == Status::Up(options.alias()) {
        if let DutKind::Model(config) = &options.dut {
            model::configure(config)?;
        }
        return status();
    }
    make_room()?;
    let built = build(options);
    if built.is_err() {
        let _ = take_down();
    }
    built.and_then(|()| status())
}

/// Builds the lab with a virtual machine: a DUT with two NICs of `nic` behind the generator's `g0` and `g1` (addresses as in [`up`]), or
/// a generator whose two NICs face each other. A lab that was there is taken down first.
///
/// # Errors
/// Without root, iproute2 or the packages; something runs in the lab that is up. Whatever was built is taken down again.
pub fn up_vm(nic: vm::NicModel, wiring: vm::Wiring) -> Result<Status> {
    needs_root("build")?;
    let packages = vm::Packages::get()?;
    let _alone = alone()?;
    make_room()?;
    let built = generator_netns().and_then(|_| {
        let name = if wiring == vm::Wiring::Taps { "dut" } else { "gen" };
        vm::up(&packages, name, GENERATOR, nic, wiring)
    });
    if built.is_err() {
        let _ = take_down();
    }
    built.and_then(|_| status())
}

/// Deletes the namespaces and all in them, what runs there included, and the virtual machine; nothing to do if they are not there.
///
/// # Errors
/// Without root.
pub fn down() -> Result<()> {
    let _alone = alone()?;
    take_down()
}

/// Takes down a lab with other options, unless somebody works in it.
fn make_room() -> Result<()> {
    let machines: Vec<u32> = vm::status().iter().filter_map(vm::RunningGuest::pid).collect();
    for netns in existing()? {
        let pids = Shell::here().run(&format!("ip netns pids {netns}"))?;
        let others = pids.split_whitespace().filter(|pid| pid.parse().is_ok_and(|pid| !machines.contains(&pid)));
        let named = |pid: &str| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} (process {pid})", name.trim())
        };
        if let Some(one) = others.map(named).next() {
            return Err(Error::environment("build", "the lab")
                .because(format!("there is one with other options, and {one} runs in its namespace {netns}"))
                .remedy("wait for its end, or take the lab down with all that runs in it: plimsoll lab down"));
        }
    }
    take_down()
}

fn take_down() -> Result<()> {
    if existing()?.is_empty() && vm::status().is_empty() {
        return Ok(());
    }
    needs_root("take down")?;
    vm::down()?;
    let host = Shell::here();
    for netns in existing()? {
        // What still runs inside would keep the namespace, and its links, alive.
        host.run(&format!("for pid in $(ip netns pids {netns}); do kill -9 $pid; done; ip netns del {netns}"))?;
    }
    Ok(())
}

/// Looks at what is there.
///
/// # Errors
/// Without iproute2; without root, if there is something to look at.
pub fn status() -> Result<Status> {
    if !existing()?.is_empty() {
        needs_root("look at")?;
    }
    if let Some(guest) = vm::status().first() {
        let is_whole = guest.is_running() && existing()? == [GENERATOR];
        let up = || Status::Up(format!("plimsoll lab: vm {} with {}", guest.name, guest.models.join(", ")));
        return Ok(if is_whole { up() } else { Status::Partial });
    }
    match existing()?.len() {
        0 => Ok(Status::Down),
        2 => {
            let alias = Shell::inside(DUT).run("cat /sys/class/net/d0/ifalias && ip link show d1 >/dev/null");
            Ok(alias.ok().filter(|alias| alias.starts_with("plimsoll lab: ")).map_or(Status::Partial, Status::Up))
        }
        _ => Ok(Status::Partial),
    }
}

fn existing() -> Result<Vec<&'static str>> {
    let list = Shell::here().run("ip netns list")?;
    let has = |netns: &&str| list.lines().any(|line| line.split_whitespace().next() == Some(netns));
    Ok([GENERATOR, DUT].into_iter().filter(has).collect())
}

fn needs_root(what: &'static str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::environment(what, "the lab").because("network namespaces need root").remedy("use sudo"))
}

/// Waits until nobody else builds or removes a lab: its names are fixed. The lock is on `/run`, so that no file is left.
fn alone() -> Result<File> {
    let locked = File::open("/run").and_then(|run| {
        flock(&run, FlockOperation::LockExclusive)?;
        Ok(run)
    });
    locked.map_err(|error| Error::environment("lock", "/run, against another `plimsoll lab`").os(&error))
}

/// Makes the generator's namespace.
fn generator_netns() -> Result<Shell> {
    needs_root("build")?;
    Shell::here().run(&format!("ip netns add {GENERATOR}"))?;
    let generator = Shell::inside(GENERATOR);
    // Quiet interfaces: no router solicitations, no duplicate address detection among the counted frames.
    generator.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
    generator.run("ip link set lo up")?;
    Ok(generator)
}

fn build(options: &Options) -> Result<()> {
    let generator = generator_netns()?;
    let (host, dut) = (Shell::here(), Shell::inside(DUT));
    let (queues, mtu) = (options.queues, options.mtu);
    host.run(&format!("ip netns add {DUT}"))?;
    dut.run(
        "sysctl -qw net.ipv6.conf.default.addr_gen_mode=1 net.ipv6.conf.default.accept_dad=0 \
         net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.rp_filter=0 net.ipv4.ip_forward=1 \
         net.ipv6.conf.all.forwarding=1",
    )?;
    for n in 0..2 {
        host.run(&format!(
            "ip link add g{n} netns {GENERATOR} numrxqueues {queues} numtxqueues {queues} type veth \
             peer name d{n} netns {DUT} numrxqueues {queues} numtxqueues {queues}"
        ))?;
        let net = n + 1;
        // GRO switches veth's NAPI on, without which live frames cannot be redirected into it. Without a link-local address a router
        // asks for no neighbour.
        dut.run(&format!(
            "ip link set d{n} mtu {mtu} && ethtool -K d{n} gro on >/dev/null && ip addr add 10.{net}.0.1/24 dev d{n} && \
             ip -6 addr add fd00:{net}::1/64 dev d{n} nodad && ip -6 addr add fe80::1/64 dev d{n} nodad && \
             ip link set d{n} up"
        ))?;
        generator.run(&format!("ip link set g{n} mtu {mtu} up"))?;
    }
    dut.run("ip link set lo up")?;
    if options.cpu == DutCpu::Own {
        own_cpu(&dut)?;
    }
    if let DutKind::Model(config) = &options.dut {
        model::attach(config)?;
    }
    dut.run(&format!("ip link set d0 alias '{}'", options.alias()))?;
    Ok(())
}

/// Gives the DUT's ingress a kernel thread of its own, pinned to the last CPU and favoured as our workers are: any other kernel
/// thread that kept it waiting for 2 ms would overflow veth's ring, and look like the DUT's limit.
fn own_cpu(dut: &Shell) -> Result<()> {
    let cpu = cpu_count().saturating_sub(1);
    dut.run("echo 1 > /sys/class/net/d0/threaded")?;
    // Kernel threads live in the initial PID namespace; those of d0 are named napi/d0-<id>.
    let pinned = Shell::here().run(&format!(
        "for comm in /proc/[0-9]*/comm; do read -r name <$comm 2>/dev/null || continue; \
         case $name in napi/d0-*) pid=${{comm#/proc/}}; taskset -pc {cpu} ${{pid%/comm}} >/dev/null && echo ${{pid%/comm}};; esac; done"
    ))?;
    if pinned.is_empty() {
        return Err(Error::environment("give", "the DUT a CPU of its own")
            .because("no napi/d0 kernel thread appeared")
            .remedy("use --coupled"));
    }
    for thread in pinned.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        scheduling::favour(thread).map_err(|error| {
            Error::environment("favour", format!("the DUT's kernel thread {thread}")).because(error)
        })?;
    }
    Ok(())
}
