//! Counts our frames on an interface inside the kernel, on any kernel since 3.2: a packet socket whose filter knows the signature.
//!
//! One thread. No frame is copied to us: the filter sorts, and `PACKET_STATISTICS` says how many it let through, those that found the
//! (tiny) buffer full included. So it counts at whatever rate the kernel delivers, and leaves the frames to the rest of the DUT. It knows
//! no run: any full signature counts, also one of another generator. Short signatures (frames with too little room) are not
//! recognised; `xdp/tally` counts those, where there is XDP.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use super::packet::PacketSocket;
use crate::wire::signature::{RUN_MAGIC, SignatureKind};

/// The counting socket.
#[derive(Debug)]
pub struct Tally {
    socket: PacketSocket,
    frames: u64,
}

impl Tally {
    /// Opens it on the interface with this index; counts from now on.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; ENODEV if the interface is gone.
    pub fn open(index: u32) -> io::Result<Tally> {
        let socket = PacketSocket::filtered(index, &filter())?;
        // As small as the kernel allows: what does not fit is counted all the same.
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32)?;
        Ok(Tally { socket, frames: 0 })
    }

    /// Our frames since it was opened. Call it at least once a minute: the kernel's own count has 32 bits and restarts when read.
    ///
    /// # Errors
    /// The socket is unusable.
    pub fn frames(&mut self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let fd = self.socket.as_fd().as_raw_fd();
        // SAFETY: `statistics` is a whole tpacket_stats, `length` says so, and both live through the call.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // tp_packets holds tp_drops already (net/packet/af_packet.c, packet_getsockopt).
        self.frames += u64::from(statistics.tp_packets);
        Ok(self.frames)
    }
}

/// Classic BPF: incoming frames with our magic at the start of the UDP, TCP or ICMP payload, or where a full signature ends the frame.
///
/// VLAN tags are off by the time a packet socket sees a frame. A load beyond the frame's end lets nothing through.
fn filter() -> Vec<libc::sock_filter> {
    const LD_ABS: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LDH_ABS: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LDB_ABS: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const LDH_IND: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
    const LDX_IHL: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    const LD_LEN: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
    const SUB: u16 = (libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K) as u16;
    const TAX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
    const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// `SKF_AD_OFF + SKF_AD_PKTTYPE` (linux/filter.h).
    const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
    const ETH_IPV4: u32 = 0x0800;
    const ETH_IPV6: u32 = 0x86DD;
    let magic = u32::from(RUN_MAGIC);
    let full = SignatureKind::Full.len() as u32;
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    vec![
        op(LD_ABS, PACKET_TYPE, 0, 0),
        op(JEQ, u32::from(libc::PACKET_OUTGOING), 23, 0), // → not
        op(LDH_ABS, 12, 0, 0),
        op(JEQ, ETH_IPV4, 1, 0),  // 3 → 5
        op(JEQ, ETH_IPV6, 9, 15), // 4 → 14 or the tail
        op(LDX_IHL, 14, 0, 0),    // 5: IPv4
        op(LDB_ABS, 23, 0, 0),
        op(JEQ, 17, 2, 0), // UDP → 10
        op(JEQ, 1, 1, 0),  // ICMP → 10
        op(JEQ, 6, 2, 10), // TCP → 12, else the tail
        op(LDH_IND, 14 + 8, 0, 0),
        op(JEQ, magic, 14, 8),
        op(LDH_IND, 14 + 20, 0, 0),
        op(JEQ, magic, 12, 6),
        op(LDB_ABS, 20, 0, 0), // 14: IPv6
        op(JEQ, 6, 2, 0),      // TCP → 18
        op(LDH_ABS, 14 + 40 + 8, 0, 0),
        op(JEQ, magic, 8, 2),
        op(LDH_ABS, 14 + 40 + 20, 0, 0),
        op(JEQ, magic, 6, 0),
        op(LD_LEN, 0, 0, 0), // 20: the tail
        op(SUB, full, 0, 0),
        op(TAX, 0, 0, 0),
        op(LDH_IND, 0, 0, 0),
        op(JEQ, magic, 1, 0),
        op(RET, 0, 0, 0), // 25: not ours
        op(RET, 1, 0, 0), // 26: ours
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the filter as the kernel does: 0 = not ours.
    fn passes(frame: &[u8], outgoing: bool) -> bool {
        let program = filter();
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
        loop {
            let op = &program[at];
            at += 1;
            let load = |from: u32, bytes: usize| -> Option<u32> {
                let part = frame.get(from as usize..from as usize + bytes)?;
                Some(part.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
            };
            let code = u32::from(op.code);
            let loaded = match code {
                c if c == libc::BPF_RET | libc::BPF_K => return op.k > 0,
                c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => Some(if outgoing { 4 } else { 0 }),
                c if c == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS => load(op.k, 2),
                c if c == libc::BPF_LD | libc::BPF_B | libc::BPF_ABS => load(op.k, 1),
                c if c == libc::BPF_LD | libc::BPF_H | libc::BPF_IND => load(x.wrapping_add(op.k), 2),
                c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_LEN => Some(frame.len() as u32),
                c if c == libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH => {
                    let Some(byte) = load(op.k, 1) else { return false };
                    x = 4 * (byte & 0xF);
                    continue;
                }
                c if c == libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K => Some(a.wrapping_sub(op.k)),
                c if c == libc::BPF_MISC | libc::BPF_TAX => {
                    x = a;
                    continue;
                }
                c if c == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if a == op.k { op.jt } else { op.jf });
                    continue;
                }
                other => panic!("an instruction that this test does not know: {other}"),
            };
            match loaded {
                Some(value) => a = value,
                None => return false,
            }
        }
    }

    /// A frame of `length` with these EtherType, first IP bytes and protocol, and a full signature at `at`.
    fn frame(ether: u16, protocol_at: usize, protocol: u8, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[12..14].copy_from_slice(&ether.to_be_bytes());
        bytes[14] = if ether == 0x0800 { 0x45 } else { 0x60 };
        bytes[protocol_at] = protocol;
        let signature = SignatureKind::Full.constant(u32::from(RUN_MAGIC) << 16 | 7, 3);
        bytes[at..at + signature.len()].copy_from_slice(&signature);
        bytes
    }

    #[test]
    fn our_frames_pass_wherever_the_signature_stands() {
        for (what, bytes) in [
            ("UDP", frame(0x0800, 23, 17, 42, 60)),
            ("ICMP", frame(0x0800, 23, 1, 42, 60)),
            ("TCP", frame(0x0800, 23, 6, 54, 90)),
            ("UDP over IPv6", frame(0x86DD, 20, 17, 62, 90)),
            ("TCP over IPv6", frame(0x86DD, 20, 6, 74, 100)),
            ("the tail of GRE", frame(0x0800, 23, 47, 86, 100)),
            ("the tail of an unknown type", frame(0x88B5, 23, 0, 46, 60)),
            ("the tail of UDP", frame(0x0800, 23, 17, 86, 100)),
            ("the tail of UDP over IPv6", frame(0x86DD, 20, 17, 86, 100)),
        ] {
            assert!(passes(&bytes, false), "{what}");
            assert!(!passes(&bytes, true), "{what}, on its way out");
        }
        let mut options = frame(0x0800, 23, 17, 46, 100);
        options[14] = 0x46;
        assert!(passes(&options, false), "IP options move the payload");
    }

    #[test]
    fn frames_of_others_do_not_pass() {
        let mut bytes = frame(0x0800, 23, 17, 42, 100);
        bytes[42] ^= 1;
        assert!(!passes(&bytes, false));
        assert!(!passes(&bytes[..20], false));
        assert!(!passes(&[], false));
        assert!(!passes(&frame(0x0806, 23, 0, 30, 60), false));
    }
}
