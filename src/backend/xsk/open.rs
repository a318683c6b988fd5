//! Opens an AF_XDP transmit queue: memory area, rings, bind, and reading back which mode was really bound.
//!
//! Runs once per queue, in its worker's thread. An explicit mode never falls back. A queue that was just closed is busy for
//! some milliseconds, so binding is tried again for up to 2 s; then it has another owner.

use std::{ffi::c_int, io, num::NonZeroU32, os::fd::AsRawFd, time::Duration};

use xsk_rs::{
    CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue as TxRing, Umem,
    config::{BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

use super::{HEADROOM_BYTES, MAX_BUF_LEN, REAP, XskQueue};
use crate::{
    backend::FreeSlots,
    clock,
    error::{Error, Result},
    host::{
        caps,
        link::{Device, Link},
    },
    ids::QueueId,
};

/// Bytes of a chunk as powers of 2; the kernel takes 2048 or one page. In copy mode the smaller one, where frames fit, takes
/// half the memory and fewer cache and TLB misses; in zero-copy mode some drivers (igb) need the page.
const SMALL_CHUNK_SHIFT: u32 = 11;
const PAGE_CHUNK_SHIFT: u32 = 12;
/// Slots of a copy-mode queue: more than a virtual NIC's ring, and at most 4 MB, within a common memlock limit.
const COPY_SLOTS: u32 = 1024;
/// Slots of a zero-copy queue, and chunks for its fill ring: without those the driver receives nothing on that queue, and
/// some (ice, i40e) leak receive buffers.
const ZERO_COPY_SLOTS: u32 = 2048;
const FILL_CHUNKS: u32 = 2048;
/// Fewest slots to try when the kernel is short of memory.
const MIN_SLOTS: u32 = 256;
/// How long a queue that was just closed may still be busy, and the first pause between attempts.
const BUSY_NS: u64 = 2_000_000_000;
const FIRST_PAUSE: Duration = Duration::from_millis(5);

const SOL_XDP: c_int = 283;
const XDP_OPTIONS: c_int = 8;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
/// Linux 6.17: frames that one system call sends in copy mode.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
const TX_SKB_BUDGET: c_int = 128;

/// Which AF_XDP mode is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XskMode {
    /// Zero-copy if the driver has it, else copy.
    Auto,
    /// Zero-copy or nothing.
    ZeroCopy,
    /// Copy.
    Copy,
}

impl XskQueue {
    /// Opens queue `queue` of the interface for frames of up to `max_len` bytes (no FCS). In mode `Auto` also says why not
    /// zero-copy, if it is not.
    ///
    /// # Errors
    /// The mode is not supported, the queue does not exist or is in use, a capability or locked memory is missing, or frames
    /// are longer than a chunk.
    pub fn open(ifname: &str, queue: QueueId, mode: XskMode, max_len: usize) -> Result<(XskQueue, Option<String>)> {
        if max_len > MAX_BUF_LEN {
            return Err(Error::usage("send", format!("frames of {} bytes through AF_XDP on {ifname}", max_len + 4))
                .because(format!("a frame has to fit a page, {} bytes at most", MAX_BUF_LEN + 4))
                .remedy("use a shorter frame size or --backend packet"));
        }
        let why_not = match mode {
            XskMode::Copy => None,
            XskMode::ZeroCopy | XskMode::Auto => match open_as(ifname, queue, true, PAGE_CHUNK_SHIFT) {
                Ok(opened) => return Ok((opened, None)),
                Err(error) if mode == XskMode::Auto && is_unsupported(&error) => {
                    Some(unsupported(error, ifname).to_string())
                }
                Err(error) if is_unsupported(&error) => {
                    return Err(unsupported(error, ifname));
                }
                Err(error) => return Err(error),
            },
        };
        let is_small = max_len <= (1 << SMALL_CHUNK_SHIFT) - HEADROOM_BYTES;
        let chunk_shift = if is_small { SMALL_CHUNK_SHIFT } else { PAGE_CHUNK_SHIFT };
        open_as(ifname, queue, false, chunk_shift).map(|opened| (opened, why_not))
    }
}

/// The driver has no zero-copy, or not with this configuration.
fn is_unsupported(error: &Error) -> bool {
    // ENOTSUPP, the kernel's own number, which libc does not know.
    const ENOTSUPP: i32 = 524;
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | ENOTSUPP))
}

/// Names the driver, and on virtio what the hypervisor has to offer.
fn unsupported(error: Error, ifname: &str) -> Error {
    let driver = Link::find(ifname).ok().and_then(|link| Device::of(&link).driver);
    let name = driver.as_deref().unwrap_or("of this interface");
    let errno = error.errno().map(|errno| format!(" ({})", io::Error::from_raw_os_error(errno))).unwrap_or_default();
    let error = error.because(format!("driver {name} does not support it{errno}"));
    error.remedy(match name {
        // VIRTIO_F_ACCESS_PLATFORM; with QEMU iommu_platform=on,disable-legacy=on.
        "virtio_net" => {
            "use --backend xsk-copy or live, or give the virtual NIC iommu_platform=on (and Linux 6.16 or newer)"
        }
        _ => "use --backend xsk-copy",
    })
}

fn open_as(ifname: &str, queue: QueueId, zero_copy: bool, chunk_shift: u32) -> Result<XskQueue> {
    let subject = || format!("{ifname} {queue} in {} mode", if zero_copy { "zero-copy" } else { "copy" });
    let (mut slots, fill) = if zero_copy { (ZERO_COPY_SLOTS, FILL_CHUNKS) } else { (COPY_SLOTS, 0) };
    let (umem, mut descs) = loop {
        match memory(slots, fill, chunk_shift) {
            Ok(memory) => break memory,
            // The kernel needs contiguous structures that grow with the area: a smaller one may fit.
            Err(cause) if cause.raw_os_error() == Some(libc::ENOMEM) && slots > MIN_SLOTS => {
                slots /= 2;
                tracing::warn!("{}: not enough memory, trying {slots} slots", subject());
            }
            Err(cause) => return Err(memory_error(subject(), &cause, u64::from(slots + fill) << chunk_shift)),
        }
    };
    let (tx, mut rx, mut fill_ring, completions) = bind(ifname, queue, &umem, zero_copy, slots, subject)?;
    let fill_descs = descs.split_off(slots as usize);
    if zero_copy {
        // SAFETY: these chunks belong to this memory area and are used for nothing else.
        unsafe { fill_ring.produce(&fill_descs) };
        // The driver looked for chunks when it was bound, found none, and (igb) looks again only when it is woken for reception;
        // until then its receive queue is dead.
        rx.poll(0).map_err(|cause| Error::environment("start receiving on", subject()).os(&cause))?;
    }
    let options =
        option_u32(&tx, XDP_OPTIONS).map_err(|cause| Error::environment("read the mode of", subject()).os(&cause))?;
    let is_zero_copy = options & XDP_OPTIONS_ZEROCOPY != 0;
    if zero_copy && !is_zero_copy {
        return Err(Error::environment("bind", subject()).because("the kernel bound copy mode"));
    }
    // Older kernels do not know it and send 32 frames a call.
    let _ = set_option(&tx, XDP_MAX_TX_SKB_BUDGET, TX_SKB_BUDGET);
    let starts = descs
        .iter_mut()
        .map(|desc| {
            // SAFETY: the descriptor is of this memory area and the kernel has not got it yet.
            let mut data = unsafe { umem.data_mut(desc) };
            data.cursor().set_pos((1 << chunk_shift) - HEADROOM_BYTES);
            data.contents_mut().as_mut_ptr()
        })
        .collect();
    Ok(XskQueue {
        queue,
        ifname: ifname.to_owned(),
        is_zero_copy,
        chunk_shift,
        tx,
        completions,
        starts,
        free: FreeSlots::all(descs.len()),
        batch: Vec::with_capacity(descs.len()),
        descs: descs.into(),
        done: Box::new([FrameDesc::default(); REAP]),
        in_flight: 0,
        umem,
        _fill: fill_ring,
        _rx: rx,
    })
}

/// A memory area of `slots` chunks to send from and `fill` chunks for the fill ring, in this order.
fn memory(slots: u32, fill: u32, chunk_shift: u32) -> io::Result<(Umem, Vec<FrameDesc>)> {
    let size = |n: u32| QueueSize::new(n.next_power_of_two()).expect("a power of two");
    let config = UmemConfig::builder()
        .frame_size(FrameSize::new(1 << chunk_shift).expect("2048 and a page are valid chunks"))
        .fill_queue_size(size(fill.max(64)))
        .comp_queue_size(size(slots))
        .build()
        .expect("a chunk leaves room for data");
    let chunks = NonZeroU32::new(slots + fill).expect("some slots");
    Umem::new(config, chunks, false).map_err(|error| os_cause(&error))
}

fn memory_error(subject: String, cause: &io::Error, bytes: u64) -> Error {
    let error = Error::environment("make the memory area of", subject).os(cause);
    match cause.raw_os_error() {
        Some(libc::ENOBUFS) => caps::memlock_error(bytes),
        Some(libc::EPERM | libc::EACCES) => error.remedy("missing capability CAP_NET_RAW: run as root or grant it"),
        Some(libc::EAFNOSUPPORT) => {
            error.remedy("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS): use --backend packet")
        }
        _ => error,
    }
}

type Rings = (TxRing, RxQueue, FillQueue, CompQueue);

fn bind(
    ifname: &str,
    queue: QueueId,
    umem: &Umem,
    zero_copy: bool,
    slots: u32,
    subject: impl Fn() -> String,
) -> Result<Rings> {
    let mode = if zero_copy { BindFlags::XDP_ZEROCOPY } else { BindFlags::XDP_COPY };
    let config = SocketConfig::builder()
        .tx_queue_size(QueueSize::new(slots).expect("slots are a power of two"))
        // Nothing is received here; libxdp makes the ring all the same.
        .rx_queue_size(QueueSize::new(64).expect("a power of two"))
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(mode | BindFlags::XDP_USE_NEED_WAKEUP)
        .build();
    let interface: Interface = ifname
        .parse()
        .map_err(|_| Error::usage("open", format!("interface {ifname:?}")).because("the name contains a zero byte"))?;
    let started = clock::now();
    let mut pause = FIRST_PAUSE;
    loop {
        // SAFETY: the memory area is not shared with another socket.
        match unsafe { Socket::new(config, umem, &interface, queue.0) } {
            Ok((tx, rx, Some((fill, completions)))) => return Ok((tx, rx, fill, completions)),
            Ok((_, _, None)) => {
                return Err(Error::environment("bind", subject()).because("libxdp returned no completion ring"));
            }
            Err(error) => {
                let cause = os_cause(&error);
                let is_busy = cause.raw_os_error() == Some(libc::EBUSY);
                if is_busy && clock::now().since_ns(started) < BUSY_NS {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(100));
                    continue;
                }
                return Err(bind_error(
                    ifname,
                    queue,
                    Error::environment("bind", subject()).os(&cause),
                    cause.raw_os_error(),
                ));
            }
        }
    }
}

fn bind_error(ifname: &str, queue: QueueId, error: Error, errno: Option<i32>) -> Error {
    match errno {
        Some(libc::EBUSY) => error
            .because(format!("{queue} of {ifname} is in use by another AF_XDP socket"))
            .remedy("stop its owner (ss --xdp -p shows it) or choose other queues"),
        Some(libc::EPERM | libc::EACCES) => error.remedy("missing capability CAP_NET_RAW: run as root or grant it"),
        Some(libc::EINVAL) => {
            error.remedy(format!("check that {ifname} has {queue} (ethtool -l) and Linux is 5.4 or newer"))
        }
        Some(libc::ENODEV | libc::ENXIO) => {
            error.remedy("the interface is not there (any more), or not in this network namespace")
        }
        _ => error,
    }
}

/// The operating system's error inside one of xsk-rs.
fn os_cause(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let errno = error.source().and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    errno.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

fn option_u32(tx: &TxRing, name: c_int) -> io::Result<u32> {
    let mut value = 0u32;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: value and length are live and the length is the value's size.
    let result = unsafe { libc::getsockopt(tx.fd().as_raw_fd(), SOL_XDP, name, (&raw mut value).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn set_option(tx: &TxRing, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the value is a live int and the length is its size.
    let result = unsafe {
        libc::setsockopt(tx.fd().as_raw_fd(), SOL_XDP, name, (&raw const value).cast(), size_of::<c_int>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
