//! Profiles: what the user asks for, as data. YAML text in, a checked [`Profile`] out; errors name file, line and column.
//!
//! Pure; control plane only. Files are read by the caller's closure (the profile itself, TRex configurations it refers to,
//! capture files). Knows nothing of NICs: MAC addresses, MTU and link speed come in when the program is compiled.

pub mod capture;
mod keys;
mod node;
mod ports;
mod read;
pub mod size;
pub mod stream;
mod streams;
mod trex;
mod values;

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use node::{At, MAX_PROFILE_BYTES};
pub use size::{SizeItem, SizeMix, parse_size_list};
pub use stream::{Every, Header, ModeConfig, StreamConfig, Values, Vary};

use crate::{
    error::{Error, Result},
    units::Rate,
    wire::capture::is_capture,
};

/// Most ports of a profile.
pub const MAX_PORTS: usize = 64;
/// Most workers of a port.
pub const MAX_WORKERS: u16 = 256;
/// Most streams of a profile.
pub const MAX_STREAMS: usize = 4096;

/// How the caller reads a file: never more than [`crate::wire::capture::MAX_CAPTURE_BYTES`] need be returned.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// A checked profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The file's name, for messages.
    pub file: String,
    /// Ports in order; a stream names its port by position.
    pub ports: Vec<PortConfig>,
    /// Streams; never empty once parsed (the default stream stands in).
    pub streams: Vec<StreamConfig>,
    /// How to read and set the DUT.
    pub dut: Option<DutConfig>,
    /// Seed of everything random.
    pub seed: u64,
    /// Load per port, over the streams' own rates and over the recorded times of captures.
    pub rate: Option<Rate>,
    /// How long a trial lasts, in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Exactly so many frames per port.
    pub count: Option<u64>,
    /// Workers per port.
    pub workers: Option<u64>,
    /// Whether every stream also runs from its receiving to its sending port.
    pub bidirectional: bool,
    /// Values of the source L4 port where a stream does not say (64: RSS needs flows).
    pub flows: u64,
}

/// One network interface of the generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// Where it stands in the file.
    pub at: At,
    /// Interface name, without `@peer`.
    pub interface: String,
    /// TRex's placeholder: a port that is not there.
    pub dummy: bool,
    /// Source address.
    pub src_ip: Option<IpAddr>,
    /// Prefix length of its subnet, if given.
    pub prefix_len: Option<u8>,
    /// The gateway (the DUT's address on this link).
    pub default_gw: Option<IpAddr>,
    /// Destination MAC; without it the gateway is resolved.
    pub dest_mac: Option<[u8; 6]>,
    /// Source MAC; without it the NIC's own.
    pub src_mac: Option<[u8; 6]>,
    /// Tags of everything sent here, ARP and ND included, outermost first.
    pub vlans: Vec<VlanTag>,
    /// Link speed to reckon percentages with, in bit/s, where the NIC does not say.
    pub link_bps: Option<u64>,
}

impl PortConfig {
    /// Prefix length, or the usual one of its family (/24, /64).
    pub fn prefix_len_or_usual(&self) -> Option<u8> {
        let usual = self.src_ip.map(|ip| if ip.is_ipv4() { 24 } else { 64 });
        self.prefix_len.or(usual)
    }

    /// Whether `ip` is in the port's subnet.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        let Some(prefix) = self.prefix_len_or_usual() else { return false };
        match (self.src_ip, ip) {
            (Some(IpAddr::V4(own)), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                u32::from(own) & mask == u32::from(ip) & mask
            }
            (Some(IpAddr::V6(own)), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                u128::from(own) & mask == u128::from(ip) & mask
            }
            _ => false,
        }
    }
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100, or 0x88A8 for the outer of two.
    pub tpid: u16,
    /// VLAN, 0…4095.
    pub id: u16,
    /// Priority, 0…7.
    pub pcp: u8,
}

/// How to read (and set) the DUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DutConfig {
    /// Where it stands in the file.
    pub at: At,
    /// `local`, `netns:NAME`, `ssh:USER@HOST`, `command:…`, `vsish:…`, as written.
    pub observe: String,
    /// What else tells about the DUT, read beside it (`vsish:…`, `command:…`).
    pub also_observe: Vec<String>,
    /// The DUT's interface that takes the frames.
    pub interface: Option<String>,
    /// Whether changed settings are put back.
    pub restore: bool,
    /// Command that changes the RX ring where ethtool over the observer does not.
    pub set_ring: Option<String>,
}

impl Profile {
    /// Sends frames of these sizes in every stream that builds its own frames (`--frame-size`).
    pub fn set_frame_size(&mut self, size: &SizeMix) {
        for stream in self.streams.iter_mut().filter(|stream| stream.capture.is_none()) {
            stream.size = size.clone();
        }
    }

    /// Adds to every stream its mirror, from the receiving to the sending port (`--bidirectional`).
    ///
    /// # Errors
    /// A stream that no port receives.
    pub fn set_bidirectional(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.bidirectional, true) {
            return Ok(());
        }
        let mut mirrors = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let failed = || Error::usage("mirror", format!("stream {} of {}", stream.name, self.file));
            if stream.capture.is_some() {
                return Err(failed()
                    .because("a capture file has no other direction")
                    .remedy("write a second stream with the other port and its own rewrite"));
            }
            mirrors.push(mirror(stream, self.streams.len()).ok_or_else(|| {
                failed()
                    .because("no port receives it, so there is no way back")
                    .remedy("name two ports, or do without bidirectional")
            })?);
        }
        if self.streams.len() + mirrors.len() > MAX_STREAMS {
            return Err(Error::usage("mirror", &self.file).because(format!("more than {MAX_STREAMS} streams")));
        }
        self.streams.append(&mut mirrors);
        read::tag_ports(self);
        Ok(())
    }

    /// The port that receives what `port` sends if nobody says: its partner in pairs (0 and 1, 2 and 3, …) of real ports.
    fn partner(&self, port: usize) -> Option<usize> {
        let real: Vec<usize> = self.real_ports().collect();
        let position = real.iter().position(|&other| other == port)?;
        real.get(position ^ 1).or_else(|| real.iter().find(|&&other| other != port)).copied()
    }

    /// Positions of the ports that are really there.
    pub fn real_ports(&self) -> impl Iterator<Item = usize> {
        (0..self.ports.len()).filter(|&port| !self.ports[port].dummy)
    }
}

/// The stream in the other direction: ports and IP and MAC addresses change places, L4 ports stay.
fn mirror(stream: &StreamConfig, streams: usize) -> Option<StreamConfig> {
    let mut back = stream.clone();
    back.port = stream.rx_port?;
    back.rx_port = Some(stream.port);
    back.name = format!("{}-back", stream.name);
    back.next = stream.next.map(|next| next + streams);
    for header in &mut back.headers {
        let (src, dst) = (header.kind.field("src"), header.kind.field("dst"));
        if header.kind.is_l4() {
            continue;
        }
        for (field, _) in &mut header.fields {
            if Some(*field) == src {
                *field = dst?;
            } else if Some(*field) == dst {
                *field = src?;
            }
        }
    }
    Some(back)
}

/// Reads the profile at `path`, and the files it refers to, with `read`.
///
/// # Errors
/// A file that cannot be read, or any error of [`parse`].
pub fn load(path: &Path, read: ReadFile<'_>) -> Result<Profile> {
    let file = path.display().to_string();
    let bytes = read(path).map_err(|error| unreadable(&file, &error))?;
    let text = text_of(&file, &bytes)?;
    parse_with(text, &file, read)
}

/// A profile that cannot be read, and what to name instead.
fn unreadable(file: &str, error: &io::Error) -> Error {
    let failed = Error::usage("read", file).os(error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failed.remedy("make it readable, or run as its owner"),
        _ => failed.remedy("name a profile (YAML) or a TRex configuration; profiles/udp-64.yaml is a small one"),
    }
}

/// The bytes as text.
fn text_of<'b>(file: &str, bytes: &'b [u8]) -> Result<&'b str> {
    if is_capture(bytes) {
        return Err(Error::usage("read", file)
            .because("this is a capture file, not a profile")
            .remedy("name it in a profile: streams: [{pcap: FILE}]"));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        Error::usage("read", format!("{file}:{line}:1")).because("this is not text (UTF-8)")
    })
}

/// Parses a profile or a TRex configuration that refers to no other file.
///
/// # Errors
/// Anything that is not a profile, with file, line, column and what was probably meant.
pub fn parse(text: &str, file: &str) -> Result<Profile> {
    let refuse = |_: &Path| Err(io::Error::new(io::ErrorKind::Unsupported, "no files are read here"));
    parse_with(text, file, &refuse)
}

/// Parses a profile; files it refers to are read with `read`, relative to the profile's own directory.
///
/// # Errors
/// As [`parse`], and what is wrong with those files.
pub fn parse_with(text: &str, file: &str, read: ReadFile<'_>) -> Result<Profile> {
    read::profile(text, file, read)
}

/// `name` relative to the directory of `file`.
fn beside(file: &str, name: &str) -> PathBuf {
    Path::new(file).parent().unwrap_or(Path::new("")).join(name)
}
