//! The guests that the tests share, each booted when a test first needs it and removed at the end.

use std::{
    cell::RefCell,
    ops::Deref,
    rc::Rc,
    time::{Duration, Instant},
};

use plimsoll::lab::vm::{Guest, GuestSpec, Nic, NicModel, Packages};
use tempfile::TempDir;

use crate::support::{
    harness::{needs_root, skip},
    netns::Netns,
};

/// Any short command in a guest, on a machine that is busy with other things.
pub const SHORT: Duration = Duration::from_secs(30);

/// The packages; skips the test where they cannot be had, or without root.
pub fn packages() -> Packages {
    needs_root();
    Packages::get().unwrap_or_else(|error| skip("vm", error.to_string()))
}

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
        eprintln!("{name}: up after {:.1} s", begun.elapsed().as_secs_f64());
        Machine { guest, netns, _dir: dir }
    }

    /// Standard output of a script that must succeed in the guest.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.guest.output(script, SHORT).unwrap_or_else(|error| panic!("{error}")).trim().to_owned()
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

/// Removes the shared guests.
pub fn shut_down() {
    DUT.with(|cell| cell.borrow_mut().take());
}
