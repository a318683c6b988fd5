//! What the port's driver really took of the live frames: counted at the tracepoint `xdp_devmap_xmit`, per CPU.
//!
//! Loaded by the control plane, one per port; each worker reads the counters of the CPU it is pinned to. A live frame that
//! the flush drops (receiver's ring full, link down) never completes, and this is the only place that says so per worker.

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use libbpf_rs::{Link, MapCore, ObjectBuilder};

use super::sys::{Atomics, SharedMap};
use crate::error::{Error, Result};

/// CPUs that `bpf/live_xmit.bpf.c` counts.
pub(super) const MAX_CPUS: usize = 1024;

/// The compiled program, aligned as ELF readers like it.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/live_xmit.bpf.o")));

/// `struct xmit_count` of the BPF program.
#[repr(C, align(64))]
struct CpuCount {
    sent_frames: AtomicU64,
    dropped_frames: AtomicU64,
    _pad: [AtomicU64; 6],
}

// SAFETY: nothing but atomics.
unsafe impl Atomics for CpuCount {}

/// Live frames that one CPU handed to the port's driver, since loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XmitCount {
    /// The driver took them.
    pub sent_frames: u64,
    /// It did not, and they were freed.
    pub dropped_frames: u64,
}

/// The attached program; detached when dropped or when the process dies.
#[derive(Debug)]
pub(super) struct XmitCounter {
    _link: Link,
    counts: SharedMap,
}

impl XmitCounter {
    /// Starts counting what goes out through interface `ifindex` of the namespace with inode number `netns`.
    ///
    /// # Errors
    /// Without privilege, or without the kernel's type information (CONFIG_DEBUG_INFO_BTF) or tracepoint.
    pub(super) fn new(ifindex: u32, netns: u32) -> Result<XmitCounter> {
        XmitCounter::attach(ifindex, netns).map_err(|cause| {
            Error::environment("count live frames at", "the tracepoint xdp_devmap_xmit")
                .because(cause)
                .remedy("use --backend xsk, or a kernel with CONFIG_DEBUG_INFO_BTF")
        })
    }

    fn attach(ifindex: u32, netns: u32) -> std::result::Result<XmitCounter, Box<dyn std::error::Error>> {
        let mut object = ObjectBuilder::default().open_memory(&OBJECT.0)?;
        let mut port =
            object.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata")).ok_or("no .rodata")?;
        port.set_initial_value(&[ifindex.to_ne_bytes(), netns.to_ne_bytes()].concat())?;
        let object = object.load()?;
        let counts = object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss")).ok_or("no .bss")?;
        let counts = SharedMap::of(counts.as_fd().try_clone_to_owned()?, MAX_CPUS * size_of::<CpuCount>())?;
        let program = object.progs_mut().next().ok_or("no program")?;
        Ok(XmitCounter { _link: program.attach()?, counts })
    }

    /// What this CPU has handed over so far; zeros beyond [`MAX_CPUS`].
    pub(super) fn on_cpu(&self, cpu: usize) -> XmitCount {
        self.counts.slice::<CpuCount>(0, MAX_CPUS).get(cpu).map_or_else(XmitCount::default, |count| XmitCount {
            sent_frames: count.sent_frames.load(Relaxed),
            dropped_frames: count.dropped_frames.load(Relaxed),
        })
    }
}
