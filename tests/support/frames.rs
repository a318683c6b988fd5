//! A plain sender for tests that provoke a loss: UDP frames with one thing wrong, by AF_PACKET, from inside a namespace.
//!
//! It knows nothing of the product's backends, so that what it provokes is an oracle for them too.

use std::{
    fs::File,
    io::Read,
    net::{Ipv4Addr, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    thread,
    time::Duration,
};

use plimsoll::wire::signature::{SignatureKind, run_tag};
use pnet_packet::{
    ip::IpNextHeaderProtocols,
    ipv4::{self, MutableIpv4Packet},
    udp::{self, MutableUdpPacket},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::netns::Netns;

/// Runs `act` on a thread inside a namespace.
pub fn inside<T: Send + 'static>(netns: &Netns, act: impl FnOnce() -> T + Send + 'static) -> T {
    inside_named(netns.name(), act)
}

/// Runs `act` on a thread inside the namespace of this name.
pub fn inside_named<T: Send + 'static>(name: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/var/run/netns/{name}");
    let thread = thread::spawn(move || {
        let file = File::open(path).expect("the namespace is there");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
        act()
    });
    thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload))
}

/// One UDP/IPv4 frame; the defaults are those of the topologies (`g0` to the DUT or through it).
#[derive(Clone)]
pub struct Frame {
    /// Destination MAC, as the kernel prints it.
    pub to_mac: String,
    /// Destination address.
    pub to: Ipv4Addr,
    /// Destination port.
    pub port: u16,
    /// Time to live.
    pub ttl: u8,
    /// What is added to the right IP checksum.
    pub ip_checksum_error: u16,
    /// What is added to the right UDP checksum.
    pub udp_checksum_error: u16,
    /// Length without FCS.
    pub length: usize,
    /// Whether it carries the product's signature.
    pub signed: bool,
    /// The CPU that sends, if it matters.
    pub cpu: Option<usize>,
}

impl Frame {
    /// To port 9 of `to`, through the interface that has `to_mac`.
    pub fn new(to_mac: String, to: [u8; 4]) -> Frame {
        let to = Ipv4Addr::from(to);
        Frame {
            to_mac,
            to,
            port: 9,
            ttl: 64,
            ip_checksum_error: 0,
            udp_checksum_error: 0,
            length: 60,
            signed: false,
            cpu: None,
        }
    }

    /// The same, sent from this CPU.
    pub fn on_cpu(self, cpu: usize) -> Frame {
        Frame { cpu: Some(cpu), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let from = Ipv4Addr::new(10, 1, 0, 2);
        let mut bytes = vec![0; self.length];
        let mac = self.to_mac.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a MAC address"));
        bytes.iter_mut().zip(mac).for_each(|(slot, byte)| *slot = byte);
        bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        if self.signed {
            let signature = SignatureKind::Full.constant(run_tag(7), 0);
            bytes[42..42 + signature.len()].copy_from_slice(&signature);
        }
        let mut datagram = MutableUdpPacket::new(&mut bytes[34..]).expect("it fits");
        datagram.set_source(1024);
        datagram.set_destination(self.port);
        datagram.set_length((self.length - 34) as u16);
        let right = udp::ipv4_checksum(&datagram.to_immutable(), &from, &self.to);
        datagram.set_checksum(right.wrapping_add(self.udp_checksum_error));
        let mut packet = MutableIpv4Packet::new(&mut bytes[14..]).expect("it fits");
        packet.set_version(4);
        packet.set_header_length(5);
        packet.set_total_length((self.length - 14) as u16);
        packet.set_ttl(self.ttl);
        packet.set_next_level_protocol(IpNextHeaderProtocols::Udp);
        packet.set_source(from);
        packet.set_destination(self.to);
        let right = ipv4::checksum(&packet.to_immutable());
        packet.set_checksum(right.wrapping_add(self.ip_checksum_error));
        bytes
    }

    /// Sends it `count` times from an interface of the generator, `burst` at a time with `pause` between; returns how many the kernel took.
    pub fn send(&self, generator: &Netns, interface: &str, count: u64, burst: u64, pause: Duration) -> u64 {
        let (bytes, interface, cpu) = (self.bytes(), interface.to_owned(), self.cpu);
        inside(generator, move || {
            if let Some(cpu) = cpu {
                let mut cpus = rustix::thread::CpuSet::new();
                cpus.set(cpu);
                rustix::thread::sched_setaffinity(None, &cpus).expect("the CPU is there");
            }
            let socket = packet_socket(&interface);
            let mut taken = 0;
            for n in 0..count {
                // SAFETY: the buffer outlives the call and its length is the one given.
                let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
                taken += u64::from(sent == bytes.len() as isize);
                if burst > 0 && (n + 1) % burst == 0 {
                    thread::sleep(pause);
                }
            }
            taken
        })
    }
}

/// A tap of this thread's namespace that only its owner empties. `struct ifreq`: 16 bytes of name, then the flags.
pub fn open_tap(name: &str) -> File {
    let tap = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .expect("tun is there");
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as u16;
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the request is as long as struct ifreq and outlives the call.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, request.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    tap
}

/// Reads what waits in a tap; returns how many IPv4 frames.
pub fn read_tap(mut tap: &File) -> u64 {
    let mut buffer = [0; 9216];
    let frames = std::iter::from_fn(|| tap.read(&mut buffer).ok().map(|_| buffer[12..14] == [8, 0]));
    frames.filter(|is_ipv4| *is_ipv4).count() as u64
}

/// A send-only packet socket on an interface of this thread's namespace.
fn packet_socket(interface: &str) -> OwnedFd {
    let name = std::ffi::CString::new(interface).expect("an interface name");
    // SAFETY: the name is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) as i32 };
    // SAFETY: socket takes no pointer; the descriptor is checked and owned from here on; bind reads the address within its length.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        // A frame counts against its socket until the receiver has dealt with it: a small buffer would throttle the sender.
        let buffer: libc::c_int = 256 << 20;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        let value = std::ptr::from_ref(&buffer).cast();
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, length), 0);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        assert_eq!(
            libc::bind(fd, std::ptr::from_ref(&address).cast(), length),
            0,
            "{}",
            std::io::Error::last_os_error()
        );
        socket
    }
}

/// A socket in the DUT that nobody reads until [`drain`].
pub fn deaf_socket(dut: &Netns, port: u16) -> UdpSocket {
    inside(dut, move || {
        let socket = UdpSocket::bind(("10.1.0.1", port)).expect("the port is free");
        socket.set_nonblocking(true).expect("a socket can be made non-blocking");
        socket
    })
}

/// Reads what a socket holds; returns how many datagrams.
pub fn drain(socket: &UdpSocket) -> u64 {
    let mut buffer = [0; 9216];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count() as u64
}
