//! A packet socket for the control plane: ARP, ICMP and ICMPv6 of one interface, VLAN tags included.
//!
//! Used by one thread. The kernel takes the outer tag off a frame before any socket sees it; it is put back here from the
//! auxiliary data. Promiscuity and multicast groups are the socket's memberships: they end with it, even after SIGKILL.
//! A filter in the kernel keeps test traffic away. Not for test traffic: `backend/packet` is.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

use crate::wire::mac::Mac;

/// Longest frame that is kept whole; control frames are far shorter.
const SNAP_BYTES: usize = 2048;

/// The socket.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: u32,
}

impl PacketSocket {
    /// Opens it on the interface with this index.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; ENODEV if the interface is gone.
    pub fn open(index: u32) -> io::Result<PacketSocket> {
        let socket = PacketSocket::filtered(index, &control_filter())?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        Ok(socket)
    }

    /// A socket that gets what the filter lets through, from the interface with this index.
    pub(super) fn filtered(index: u32, filter: &[libc::sock_filter]) -> io::Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Protocol 0: nothing is received before the filter is in place.
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let socket = PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) }, index };
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        socket.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        // Linux ≥ 4.20; without it our own frames come back, and are ours to ignore.
        let _ = socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let address = socket.address(libc::ETH_P_ALL as u16);
        // SAFETY: `address` is a whole sockaddr_ll that lives through the call.
        let result =
            unsafe { libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// Makes the interface promiscuous as long as this socket is open.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn join_promiscuous(&self) -> io::Result<()> {
        self.join(libc::PACKET_MR_PROMISC, None)
    }

    /// Receives frames to a multicast address as long as this socket is open.
    ///
    /// # Errors
    /// The interface is gone, or the limit of groups is reached.
    pub fn join_multicast(&self, group: Mac) -> io::Result<()> {
        self.join(libc::PACKET_MR_MULTICAST, Some(group))
    }

    /// Sends one whole frame (without FCS), tags in their place.
    ///
    /// # Errors
    /// ENETDOWN, ENXIO (interface down or gone), ENOBUFS (its queue is full).
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: `frame` is valid for its length during the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next frame, tags in their place; `None` if there is none now.
    ///
    /// # Errors
    /// ENETDOWN: the interface went down (told once; the socket goes on).
    pub fn receive(&self, frame: &mut Vec<u8>) -> io::Result<Option<()>> {
        frame.resize(SNAP_BYTES, 0);
        let mut vector = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // u64 elements, because control messages are aligned like them.
        let mut control = [0u64; 16];
        // SAFETY: msghdr is plain data; all zeros is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: all buffers that `message` points to live through the call and have the stated lengths.
        let length = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        frame.truncate(length as usize);
        if let Some(tag) = outer_tag(&message).filter(|_| frame.len() >= 12) {
            frame.splice(12..12, tag);
        }
        Ok(Some(()))
    }

    fn join(&self, kind: libc::c_int, group: Option<Mac>) -> io::Result<()> {
        let mut address = [0; 8];
        address[..6].copy_from_slice(&group.unwrap_or(Mac([0; 6])).0);
        let request = libc::packet_mreq {
            mr_ifindex: self.index as libc::c_int,
            mr_type: kind as libc::c_ushort,
            mr_alen: 6,
            mr_address: address,
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    fn address(&self, protocol: u16) -> libc::sockaddr_ll {
        // SAFETY: sockaddr_ll is plain data; all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.index as libc::c_int;
        address
    }

    pub(super) fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is a whole T that lives through the call; each caller passes the type that the option takes.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const *value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of the sockets has a frame, at most `timeout`; tells which.
///
/// # Errors
/// poll failed.
pub fn wait(sockets: &[&PacketSocket], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = sockets
        .iter()
        .map(|socket| libc::pollfd { fd: socket.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let timeout_ms = timeout.as_millis().min(60_000) as libc::c_int;
    // SAFETY: `fds` is an array of that many initialised entries that lives through the call.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        // A signal is as good as a time-out: the caller looks at its stop flag.
        return if error.kind() == io::ErrorKind::Interrupted { Ok(vec![false; fds.len()]) } else { Err(error) };
    }
    Ok(fds.iter().map(|fd| fd.revents != 0).collect())
}

/// The tag that the kernel took off, as the four bytes that stood in the frame.
fn outer_tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: `message` was filled in by recvmsg and its control buffer is still alive.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header within the buffer.
        let header = unsafe { &*control };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            // SAFETY: the kernel puts a whole tpacket_auxdata behind this header; unaligned reads are allowed for.
            let data: libc::tpacket_auxdata =
                unsafe { libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned() };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
                return None;
            }
            let has_type = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let [a, b] = if has_type { data.tp_vlan_tpid.to_be_bytes() } else { [0x81, 0x00] };
            let [c, d] = data.tp_vlan_tci.to_be_bytes();
            return Some([a, b, c, d]);
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    None
}

/// Classic BPF: ARP, ICMP and ICMPv6, behind at most two tags (beside the one that is taken off before).
fn control_filter() -> [libc::sock_filter; 19] {
    const LDX: u16 = (libc::BPF_LDX | libc::BPF_IMM) as u16;
    const LDH: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LDB_X: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_IND) as u16;
    const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    [
        op(LDX, 0, 0, 0),
        op(LDH, 12, 0, 0),
        op(JEQ, 0x8100, 1, 0),
        op(JEQ, 0x88A8, 0, 6),
        op(LDX, 4, 0, 0),
        op(LDH, 16, 0, 0),
        op(JEQ, 0x8100, 1, 0),
        op(JEQ, 0x88A8, 0, 2),
        op(LDX, 8, 0, 0),
        op(LDH, 20, 0, 0),
        op(JEQ, 0x0806, 6, 0),
        op(JEQ, 0x0800, 1, 0),
        op(JEQ, 0x86DD, 2, 5),
        op(LDB_X, 23, 0, 0),
        op(JEQ, 1, 2, 3),
        op(LDB_X, 20, 0, 0),
        op(JEQ, 58, 0, 1),
        op(RET, SNAP_BYTES as u32, 0, 0),
        op(RET, 0, 0, 0),
    ]
}
