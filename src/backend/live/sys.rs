//! The bpf(2) calls that live frames need, with owned file descriptors and `io::Error`.
//!
//! Any thread. Nothing here knows about frames; libbpf-rs has neither programs from instructions nor the batch size of a
//! live run, so these few calls go to libbpf-sys.

use std::{
    ffi::{CStr, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use libbpf_sys as bpf;

use super::asm::Insn;

const NAME: &CStr = c"plimsoll_live";
/// Where an XDP program runs: `XDP_FLAGS_*` (include/uapi/linux/if_link.h).
#[derive(Debug, Clone, Copy)]
pub(super) enum XdpMode {
    /// In the stack.
    Generic = 1 << 1,
    /// In the driver.
    Native = 1 << 2,
}

/// `lo` is the first interface of every namespace (LOOPBACK_IFINDEX, include/net/flow.h).
pub(super) const LOOPBACK: u32 = 1;
/// Enough of the verifier's log to see why it refused.
const LOG_BYTES: usize = 1 << 20;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

fn owned(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call has just returned this descriptor, which nobody else knows.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An array map with one value.
fn one_value_map(value_bytes: usize, flags: u32) -> io::Result<OwnedFd> {
    let value_bytes = u32::try_from(value_bytes).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let options = bpf::bpf_map_create_opts {
        sz: size_of::<bpf::bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    // SAFETY: the name is NUL-terminated and the options are a whole, initialised struct; both outlive the call.
    owned(unsafe { bpf::bpf_map_create(bpf::BPF_MAP_TYPE_ARRAY, NAME.as_ptr(), 4, value_bytes, 1, &options) })
}

/// A map whose one value holds these bytes.
pub(super) fn constants_map(bytes: &[u8]) -> io::Result<OwnedFd> {
    let map = one_value_map(bytes.len(), 0)?;
    let key = 0u32;
    // SAFETY: key and value have exactly the sizes the map was made with.
    check(unsafe { bpf::bpf_map_update_elem(map.as_raw_fd(), (&raw const key).cast(), bytes.as_ptr().cast(), 0) })?;
    Ok(map)
}

/// A map whose one value is memory that program and user space share.
#[derive(Debug)]
pub(super) struct SharedMap {
    fd: OwnedFd,
    memory: NonNull<c_void>,
    mapped_bytes: usize,
}

// SAFETY: the memory belongs to the map, not to a thread; access is through atomics (see `head` and `slice`).
unsafe impl Send for SharedMap {}
// SAFETY: as above; only shared references to atomics are handed out.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Makes one with this content.
    pub(super) fn new(content: &[u8]) -> io::Result<SharedMap> {
        let mut map = SharedMap::of(one_value_map(content.len(), bpf::BPF_F_MMAPABLE)?, content.len())?;
        map.fill(content);
        Ok(map)
    }

    /// Overwrites the value from its start; no program may be running on it.
    pub(super) fn fill(&mut self, content: &[u8]) {
        assert!(content.len() <= self.mapped_bytes);
        // SAFETY: the mapping is writable and, as just checked, long enough; `&mut self` excludes borrows of it.
        unsafe { ptr::copy_nonoverlapping(content.as_ptr(), self.memory.as_ptr().cast(), content.len()) };
    }

    /// Maps the value of a map made with BPF_F_MMAPABLE; its address is a multiple of the page size.
    pub(super) fn of(fd: OwnedFd, value_bytes: usize) -> io::Result<SharedMap> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let mapped_bytes = value_bytes.next_multiple_of(rustix::param::page_size());
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let memory = unsafe {
            mmap(ptr::null_mut(), mapped_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }?;
        Ok(SharedMap { fd, memory: NonNull::new(memory).expect("mmap returns no null"), mapped_bytes })
    }

    /// Its descriptor, for instructions that address it.
    pub(super) fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// The `len` atomics (or structs of atomics) at byte `offset`.
    pub(super) fn slice<T: Atomics>(&self, offset: usize, len: usize) -> &[T] {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + len * size_of::<T>() <= self.mapped_bytes);
        // SAFETY: in bounds and aligned (checked above; the mapping starts on a page), initialised by the kernel (zeros) or
        // `new`, mapped as long as `self` lives, and changed by others only as atomics (BPF stores aligned words).
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().byte_add(offset).cast(), len) }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made; every borrow of it ended with `self`'s.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr(), self.mapped_bytes) };
    }
}

/// Types that are nothing but atomics, so that memory shared with a BPF program may be seen as them.
///
/// # Safety
/// Every bit pattern is a valid value and every byte is part of an atomic.
pub(super) unsafe trait Atomics {}

// SAFETY: an atomic is itself.
unsafe impl Atomics for std::sync::atomic::AtomicU64 {}
// SAFETY: as above.
unsafe impl Atomics for std::sync::atomic::AtomicU16 {}

/// Loads an XDP program; the error carries the verifier's last words.
pub(super) fn load(insns: &[Insn]) -> io::Result<OwnedFd> {
    let load = |log: &mut [u8]| {
        let mut options = bpf::bpf_prog_load_opts {
            sz: size_of::<bpf::bpf_prog_load_opts>() as _,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { ptr::null_mut() } else { log.as_mut_ptr().cast() },
            ..Default::default()
        };
        // SAFETY: strings are NUL-terminated; `Insn` has the layout of bpf_insn; the options and the log outlive the call.
        owned(unsafe {
            bpf::bpf_prog_load(
                bpf::BPF_PROG_TYPE_XDP,
                NAME.as_ptr(),
                c"GPL".as_ptr(),
                insns.as_ptr().cast(),
                insns.len() as _,
                &mut options,
            )
        })
    };
    // The log is asked for only after a failure: it makes loading slow.
    load(&mut []).or_else(|_| {
        let mut log = vec![0; LOG_BYTES];
        load(&mut log).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => error,
            _ => {
                let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
                let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("processed ")).collect();
                io::Error::new(error.kind(), format!("{error}; {}", lines[lines.len().saturating_sub(2)..].join("; ")))
            }
        })
    })
}

/// Attaches an XDP program to an interface of the calling thread's network namespace; it is detached with the link.
pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let options = bpf::bpf_link_create_opts {
        sz: size_of::<bpf::bpf_link_create_opts>() as _,
        flags: mode as u32,
        ..Default::default()
    };
    // SAFETY: the options are a whole, initialised struct that outlives the call.
    owned(unsafe { bpf::bpf_link_create(program.as_raw_fd(), ifindex as c_int, bpf::BPF_XDP, &options) })
}

/// Runs a program on `slots` live frames of `frame.len()` bytes that seem to arrive from interface `ifindex` of the calling
/// thread's network namespace, in batches of `batch` (≤ 256) between which bottom halves run.
///
/// # Errors
/// EINTR when a signal ended it early; how far it got is in the program's own counters.
pub(super) fn run_live(program: BorrowedFd<'_>, ifindex: u32, frame: &[u8], slots: u32, batch: u32) -> io::Result<()> {
    let context = bpf::xdp_md { data_end: frame.len() as u32, ingress_ifindex: ifindex, ..Default::default() };
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of::<bpf::xdp_md>() as u32,
        repeat: slots as c_int,
        flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: input frame and context outlive the call, which only reads them; there are no outputs.
    check(unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) }).map(drop)
}

/// Runs a program once on a copy of `frame`; returns its verdict and the frame as it left it.
pub(super) fn run_once(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
    let mut out = vec![0; frame.len()];
    let mut options = bpf::bpf_test_run_opts {
        sz: size_of::<bpf::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: input and output buffers have the stated lengths and outlive the call.
    check(unsafe { bpf::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    out.truncate(options.data_size_out as usize);
    Ok((options.retval, out))
}

/// The `NETDEV_XDP_ACT_*` flags of an interface (include/uapi/linux/netdev.h); Linux ≥ 6.3.
pub(super) fn xdp_features(ifindex: u32) -> io::Result<u64> {
    let mut options = bpf::bpf_xdp_query_opts { sz: size_of::<bpf::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: the options are a whole, initialised struct that outlives the call.
    check(unsafe { bpf::bpf_xdp_query(ifindex as c_int, 0, &mut options) })?;
    Ok(options.feature_flags)
}
