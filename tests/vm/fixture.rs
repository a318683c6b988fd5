//! The guests that the tests share, each booted when a test first needs it and removed at the end.

use std::{
    cell::RefCell,
    ops::Deref,
    rc::Rc,
    time::{Duration, Instant},
};

use plimsoll::lab::vm::{Guest, GuestSpec, Nic, NicModel, Packages};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    harness::{needs_root, skip},
    netns::Netns,
    run::Outcome,
};

/// Any short command in a guest, on a machine that is busy with other things.
pub const SHORT: Duration = Duration::from_secs(30);

/// The packages; skips the test where they cannot be had, or without root.
pub fn packages() -> Packages {
    needs_root();
    Packages::get().unwrap_or_else(|error| skip("vm", error.to_string()))
}

/// A run of a few seconds with its set-up, on such a machine.
pub const RUN: Duration = Duration::from_secs(60);

/// A guest and the namespace of its taps. The guest is removed first.
pub struct Machine {
    guest: Guest,
    /// Where its taps lie.
    pub netns: Netns,
    _dir: TempDir,
}

impl Machine {
    /// Boots a guest with the taps `t0`, `t1`, … (or hubs) in a namespace of its own; our binary is in it.
    pub fn boot(name: &str, cpus: u8, nics: Vec<Nic>) -> Machine {
        let packages = packages();
        let netns = Netns::new(name);
        let dir = tempfile::tempdir().expect("a scratch folder");
        let mut spec = GuestSpec::new(name, netns.name(), dir.path().join("guest"));
        spec.nics = nics;
        spec.cpus = cpus;
        spec.programs = vec![env!("CARGO_BIN_EXE_plimsoll").into()];
        let begun = Instant::now();
        let guest = Guest::boot(&packages, spec).unwrap_or_else(|error| panic!("{error}"));
        // No ICMP errors: nothing but the frames under test (and ARP) may be on the links. No bucket ever fills at this rate.
        guest
            .output("echo 1000000000 >/proc/sys/net/ipv4/icmp_ratelimit", SHORT)
            .unwrap_or_else(|error| panic!("{error}"));
        eprintln!("{name}: up after {:.1} s", begun.elapsed().as_secs_f64());
        Machine { guest, netns, _dir: dir }
    }

    /// Standard output of a script that must succeed in the guest.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.guest.output(script, SHORT).unwrap_or_else(|error| panic!("{error}")).trim().to_owned()
    }

    /// Runs our binary in the guest on this profile (`PROFILE` in the arguments), at most `limit`.
    pub fn plimsoll(&self, profile: &str, arguments: &str, limit: Duration) -> Outcome {
        let started = Instant::now();
        self.write_file("/run/profile.yaml", profile).unwrap_or_else(|error| panic!("{error}"));
        let line = format!(
            "rm -f /run/result.json; plimsoll --json /run/result.json {}",
            arguments.replace("PROFILE", "/run/profile.yaml")
        );
        let output = self.run(&line, limit).unwrap_or_else(|error| panic!("{error}"));
        let result = self.run("cat /run/result.json", SHORT).unwrap_or_else(|error| panic!("{error}"));
        Outcome {
            code: Some(output.status),
            stdout: output.stdout,
            stderr: output.stderr,
            json: serde_json::from_str(&result.stdout).unwrap_or(Value::Null),
            wall: started.elapsed(),
        }
    }

    /// A counter of a NIC in the guest, from its statistics folder.
    #[track_caller]
    pub fn counter(&self, nic: &str, counter: &str) -> u64 {
        let text = self.sh(&format!("cat /sys/class/net/{nic}/statistics/{counter}"));
        text.parse().expect("a counter is a number")
    }

    /// Sum of a counter over the sections of `ethtool -S`.
    #[track_caller]
    pub fn driver_counter(&self, nic: &str, name: &str) -> u64 {
        let text = self.sh(&format!("ethtool -S {nic}"));
        let values = text.lines().filter_map(|line| line.rsplit_once(':')).filter(|(key, _)| key.trim() == name);
        values.map(|(_, value)| value.trim().parse::<u64>().expect("a counter is a number")).sum()
    }

    /// The guest, for what changes it.
    pub fn guest_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl Deref for Machine {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

thread_local! {
    /// The tests run one at a time on the main thread, which the guests are bound to.
    static DUT: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
    static GENERATOR: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
}

/// The NICs of [`dut`], each on the tap of the same number.
pub const DUT_NICS: [NicModel; 6] = [
    NicModel::Vmxnet3,
    NicModel::E1000,
    NicModel::E1000e,
    NicModel::Igb,
    NicModel::VIRTIO,
    NicModel::Virtio { speed_mbps: Some(10_000), iommu: false },
];

/// A DUT with one NIC of each model.
pub fn dut() -> Rc<Machine> {
    DUT.with(|cell| {
        let mut machine = cell.borrow_mut();
        let nics = DUT_NICS.iter().enumerate().map(|(n, model)| Nic::tap(*model, format!("t{n}"))).collect();
        Rc::clone(machine.get_or_insert_with(|| Rc::new(Machine::boot("dut", 1, nics))))
    })
}

/// A generator: `nic0`–`nic1` (igb) and `nic2`–`nic3` (virtio for zero-copy) are back to back, `nic4` (igb), `nic5` (virtio for
/// zero-copy), `nic6` (virtio as it comes) and `nic7` (vmxnet3) are on the tap of the same number.
pub fn generator() -> Rc<Machine> {
    GENERATOR.with(|cell| {
        let mut machine = cell.borrow_mut();
        let nics = vec![
            Nic::hub(NicModel::Igb, 0),
            Nic::hub(NicModel::Igb, 0),
            Nic::hub(NicModel::VIRTIO_IOMMU, 1),
            Nic::hub(NicModel::VIRTIO_IOMMU, 1),
            Nic::tap(NicModel::Igb, "t4"),
            Nic::tap(NicModel::VIRTIO_IOMMU, "t5"),
            Nic::tap(NicModel::VIRTIO, "t6"),
            Nic::tap(NicModel::Vmxnet3, "t7"),
        ];
        let boot = || {
            let machine = Machine::boot("gen", 2, nics);
            // The zero-copy queue is the only one, so that all that arrives goes through it.
            machine.sh("for n in 0 1 4; do ethtool -L nic$n combined 1; done");
            // That took igb's links down.
            machine.wait_links().unwrap_or_else(|error| panic!("{error}"));
            Rc::new(machine)
        };
        Rc::clone(machine.get_or_insert_with(boot))
    })
}

/// Removes the shared guests.
pub fn shut_down() {
    DUT.with(|cell| cell.borrow_mut().take());
    GENERATOR.with(|cell| cell.borrow_mut().take());
}
