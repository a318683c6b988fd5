//! The smallest AF_XDP transmit loop there is, on the same library with the same batch: the yardstick for what the engine
//! adds (accounting, pacing, fields, completion bookkeeping).

use std::{
    num::NonZeroU32,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use plimsoll::engine::tx_worker::KICK_BATCH;
use xsk_rs::{
    FrameDesc, Socket, Umem,
    config::{BindFlags, FrameSize, LibxdpFlags, QueueSize, SocketConfig, UmemConfig},
};

const SLOTS: u32 = 1024;
const SOL_XDP: libc::c_int = 283;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Sends the same 60 bytes on queue 0 of `ifname` until `stop`, in copy mode.
pub fn send(ifname: &str, frame: &[u8], stop: &AtomicBool) -> Result<(), String> {
    let slots = QueueSize::new(SLOTS).expect("a power of two");
    let config = UmemConfig::builder()
        .frame_size(FrameSize::new(2048).expect("a valid chunk"))
        .comp_queue_size(slots)
        .build()
        .expect("the default umem");
    let (umem, mut free) =
        Umem::new(config, NonZeroU32::new(SLOTS).expect("slots"), false).map_err(|error| format!("{error:?}"))?;
    let config = SocketConfig::builder()
        .tx_queue_size(slots)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
        .build();
    let interface = ifname.parse().map_err(|error| format!("{error}"))?;
    let mut attempts = 0;
    let (mut tx, _rx, rings) = loop {
        // SAFETY: the memory area is this socket's alone.
        match unsafe { Socket::new(config, &umem, &interface, 0) } {
            Ok(opened) => break opened,
            // The row before has just closed this queue.
            Err(_) if attempts < 200 => {
                attempts += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(format!("{error:?}")),
        }
    };
    let (_fill, mut completions) = rings.ok_or("no completion ring")?;
    let budget: libc::c_int = 128;
    // SAFETY: the value is a live int and the length is its size. Older kernels refuse the option, which is fine.
    unsafe {
        let value = (&raw const budget).cast();
        libc::setsockopt(tx.fd().as_raw_fd(), SOL_XDP, XDP_MAX_TX_SKB_BUDGET, value, size_of::<libc::c_int>() as u32);
    }
    let mut done = [FrameDesc::default(); KICK_BATCH];
    let mut batch = Vec::with_capacity(KICK_BATCH);
    while !stop.load(Relaxed) {
        loop {
            // SAFETY: ring and descriptors belong to one socket.
            let count = unsafe { completions.consume(&mut done) };
            free.extend_from_slice(&done[..count]);
            if count < KICK_BATCH {
                break;
            }
        }
        for mut desc in free.drain(free.len().saturating_sub(KICK_BATCH)..) {
            // SAFETY: the descriptor came from the memory area or its completion ring: the kernel has no claim on it.
            let mut data = unsafe { umem.data_mut(&mut desc) };
            data.cursor().set_pos(frame.len());
            data.contents_mut().copy_from_slice(frame);
            batch.push(desc);
        }
        // SAFETY: as above; the ring has room for every slot.
        unsafe { tx.produce(&batch) };
        batch.clear();
        if tx.needs_wakeup() {
            tx.wakeup().map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
