//! The guests that stand between commands: `plimsoll lab up --vm` builds one, `lab exec` uses it, `lab down` removes it.
//!
//! Control thread. Invariant: all that a guest is lies in its folder under [`GUESTS`] and in the generator's namespace; `down` leaves
//! neither. Deliberately keeps no list of its own: the folders are the list.

use std::fs;
use std::path::{Path, PathBuf};

use super::fetch::{Packages, failed};
use super::guest::{Guest, GuestSpec, RunningGuest};
use super::nic::{Nic, NicModel};
use crate::dut::vm::GUESTS;
use crate::error::{Error, Result};

/// What a guest's two NICs are connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// To the taps `g0` and `g1` in the generator's namespace: the guest is the DUT (a router, and a sink for what is sent to it).
    Taps,
    /// To each other: the guest is the generator, for backends that need a real driver.
    Loop,
}

/// Boots the guest `name` with two NICs of `model`; its taps, if any, lie in the existing namespace `netns`.
///
/// # Errors
/// Environment: no privilege, or it does not come up; nothing stays then.
pub fn up(packages: &Packages, name: &str, netns: &str, model: NicModel, wiring: Wiring) -> Result<RunningGuest> {
    let mut spec = GuestSpec::new(name, netns, folder(name)?);
    spec.nics = (0..2)
        .map(|n| match wiring {
            Wiring::Taps => Nic::tap(model, format!("g{n}")),
            Wiring::Loop => Nic::hub(model, 0),
        })
        .collect();
    if wiring == Wiring::Loop {
        // A sender and a receiver.
        spec.cpus = 2;
    }
    let this = std::env::current_exe().map_err(|e| failed("find", Path::new("this program"), &e))?;
    spec.programs = vec![this];
    Guest::boot_detached(packages, spec)
}

/// The guest `name`, for its channel.
///
/// # Errors
/// Environment: there is none, or it has ended.
pub fn open(name: &str) -> Result<RunningGuest> {
    let absent = |cause: &str| {
        Error::environment("reach", format!("guest {name}")).because(cause).remedy("start one: `plimsoll lab up --vm`")
    };
    let guest = RunningGuest::open(&folder(name)?).map_err(|_| absent("there is none of this name"))?;
    if guest.is_running() { Ok(guest) } else { Err(absent("it has ended: see `plimsoll lab down`")) }
}

/// All guests that there are, running or ended.
pub fn status() -> Vec<RunningGuest> {
    let entries = fs::read_dir(GUESTS).into_iter().flatten().flatten();
    let mut guests: Vec<RunningGuest> = entries.filter_map(|entry| RunningGuest::open(&entry.path()).ok()).collect();
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    guests
}

/// Removes all guests.
///
/// # Errors
/// Environment: one does not end.
pub fn down() -> Result<()> {
    for guest in status() {
        guest.remove()?;
    }
    // Whatever an interrupted `up` left there; the folder is ours alone.
    match fs::remove_dir_all(GUESTS) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", Path::new(GUESTS), &error)),
        _ => Ok(()),
    }
}

fn folder(name: &str) -> Result<PathBuf> {
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_plain {
        return Ok(Path::new(GUESTS).join(name));
    }
    Err(Error::usage("use", format!("guest name '{name}'"))
        .because("it has other characters than letters, digits, - and _"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_name_cannot_leave_the_folder() {
        assert_eq!(folder("dut").unwrap(), Path::new("/run/plimsoll-vm/dut"));
        for name in ["", "../etc", "a/b", "."] {
            assert!(folder(name).is_err(), "{name}");
        }
    }
}
