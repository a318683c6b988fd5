//! The machine: kernel, CPUs, clock source, lockdown, interrupts.
//!
//! Control plane; reads /proc and /sys/devices (the same in every network namespace), changes nothing.

use std::{collections::BTreeMap, fs, path::Path};

use super::{
    link::{Device, Link},
    netns,
};
use crate::report::result::Host;

/// The oldest kernel everything here works on: AF_XDP with need_wakeup and bpf_link for XDP.
pub const MINIMUM_KERNEL: (u32, u32) = (5, 9);

/// The `host` object of the result file.
pub fn host() -> Host {
    Host {
        kernel: kernel_release(),
        cpus: online_cpus().len() as u64,
        cpu_model: cpu_model(),
        clocksource: clocksource(),
        netns: netns::current_name(),
    }
}

/// Kernel release, as `uname -r`.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Major and minor version of the running kernel; `None` if its release is unreadable.
pub fn kernel_version() -> Option<(u32, u32)> {
    version_of(&kernel_release())
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The sentence for a kernel older than [`MINIMUM_KERNEL`]; `None` if it is new enough.
pub fn kernel_too_old() -> Option<String> {
    let (major, minor) = MINIMUM_KERNEL;
    let release = kernel_release();
    version_of(&release)
        .filter(|version| *version < MINIMUM_KERNEL)
        .map(|_| format!("kernel {release} < {major}.{minor}"))
}

/// Kernel lockdown mode: "none", "integrity", "confidentiality"; `None` if the kernel has none or hides it.
pub fn lockdown() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    Some(text.split('[').nth(1)?.split(']').next()?.to_owned())
}

/// What to add to an EPERM from bpf(): the lockdown mode, or the switch that forbids unprivileged BPF. `None`: nothing known.
pub fn bpf_refusal_hint() -> Option<String> {
    if let Some(mode) = lockdown().filter(|mode| mode != "none") {
        return Some(format!("kernel lockdown is `{mode}` (/sys/kernel/security/lockdown)"));
    }
    let switch = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").ok()?;
    let switch = switch.trim();
    (switch != "0").then(|| format!("kernel.unprivileged_bpf_disabled is {switch}: CAP_BPF is needed"))
}

/// Numbers of the CPUs that are online.
pub fn online_cpus() -> Vec<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = parse_cpu_list(&list);
    if cpus.is_empty() { (0..std::thread::available_parallelism().map_or(1, usize::from)).collect() } else { cpus }
}

/// CPUs that this thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return online_cpus() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// `0-2,5` as numbers.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?.min(65_535))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// CPU model name.
pub fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The kernel's clock source ("tsc", "kvm-clock", …); "unknown" if hidden.
pub fn clocksource() -> String {
    fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// An interrupt of a NIC and the CPUs that take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irq {
    /// Its number.
    pub number: u32,
    /// Its label in /proc/interrupts ("virtio0-input.0", "ens192-rxtx-0").
    pub label: String,
    /// The CPUs that take it.
    pub cpus: Vec<usize>,
}

/// The interrupts of an interface, found by its PCI device or, failing that, by its name in /proc/interrupts. Empty for
/// virtual devices, which have none.
pub fn irqs(link: &Link, device: &Device) -> Vec<Irq> {
    let labels = fs::read_to_string("/proc/interrupts").map(|text| irq_labels(&text)).unwrap_or_default();
    let of_device: Vec<u32> = device
        .bus_info
        .as_deref()
        .and_then(|bus| fs::read_dir(Path::new("/sys/bus/pci/devices").join(bus).join("msi_irqs")).ok())
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    let is_ours = |number: u32, label: &str| {
        if of_device.is_empty() {
            label.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == link.name)
        } else {
            of_device.contains(&number)
        }
    };
    let ours = labels.into_iter().filter(|(number, label)| is_ours(*number, label));
    ours.map(|(number, label)| Irq { number, label, cpus: irq_cpus(number) }).collect()
}

fn irq_cpus(number: u32) -> Vec<usize> {
    let read = |file: &str| fs::read_to_string(format!("/proc/irq/{number}/{file}")).map(|text| parse_cpu_list(&text));
    match read("effective_affinity_list") {
        Ok(cpus) if !cpus.is_empty() => cpus,
        _ => read("smp_affinity_list").unwrap_or_default(),
    }
}

/// Number → label of the numbered lines of /proc/interrupts: `24: <count per CPU> <chip> <trigger> label`.
fn irq_labels(text: &str) -> BTreeMap<u32, String> {
    let cpus = text.lines().next().map_or(0, |line| line.split_whitespace().count());
    let label = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let label = rest.split_whitespace().skip(cpus).last()?;
        Some((number.trim().parse().ok()?, label.to_owned()))
    };
    text.lines().skip(1).filter_map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(version_of("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version_of("3.10.0-1160.el7.x86_64"), Some((3, 10)));
        assert_eq!(version_of("linux"), None);
    }

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list(""), [0usize; 0]);
    }

    #[test]
    fn interrupts_have_the_last_word_of_their_line_as_label() {
        let text = "           CPU0       CPU1\n 24:  10  20  PCI-MSIX-0000:00:03.0   1-edge      virtio0-input.0\nNMI:  0  0  x\n";
        assert_eq!(irq_labels(text), BTreeMap::from([(24, "virtio0-input.0".to_owned())]));
    }
}
