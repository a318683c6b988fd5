//! Asking the scheduler to run a thread as soon as it wakes: a burst that is late by a scheduling slice is debt, and beyond
//! 1 ms it is forgiven and missing.
//!
//! Called by a worker for itself; ends with the thread, so that nothing is left behind. Not real-time priority: a spinning
//! real-time worker would starve the soft interrupts that carry its own frames.

use std::io;

/// A slice shorter than other tasks' lets a waking thread preempt them at once (EEVDF, kernel/sched/fair.c PREEMPT_SHORT);
/// 0.1 ms is the shortest that the kernel takes.
const SLICE_NS: u64 = 100_000;
/// The most that nice values go up.
const NICE: i32 = -20;

/// `struct sched_attr` (include/uapi/linux/sched/types.h), first published size and the utilisation clamps.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// Gives the calling thread the highest ordinary priority and the shortest slice (Linux ≥ 6.12; earlier kernels ignore it).
/// A thread that somebody gave another policy (`chrt`) keeps it.
///
/// # Errors
/// Without CAP_SYS_NICE: then pacing is only as good as the machine is idle.
pub fn favour_this_thread() -> io::Result<()> {
    favour(0)
}

/// [`favour_this_thread`] for another thread: a DUT's NAPI thread of the lab.
///
/// # Errors
/// As there; or there is no such thread.
pub fn favour(thread: i32) -> io::Result<()> {
    // SAFETY: sched_getscheduler takes no pointer.
    if unsafe { libc::sched_getscheduler(thread) } != libc::SCHED_OTHER {
        return Ok(());
    }
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: NICE,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
        util_min: 0,
        util_max: 0,
    };
    // SAFETY: sched_setattr reads `size` bytes from the pointer, which is to a live struct of that size; flags are 0 as the
    // system call requires.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_favoured_or_told_that_it_may_not() {
        std::thread::spawn(|| match favour_this_thread() {
            Ok(()) => assert_eq!(rustix::process::getpriority_process(None).unwrap(), NICE),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        })
        .join()
        .unwrap();
    }
}
