//! Oracles on the DUT's side: a UDP socket that counts what is really delivered, and captures.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufRead, BufReader},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pcap_file::pcap::PcapReader;
use rustix::{
    net::sockopt::set_socket_recv_buffer_size_force,
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tempfile::TempDir;

use super::netns::Netns;

/// What a socket was given.
#[derive(Debug, Default, Clone)]
pub struct Delivered {
    /// Datagrams.
    pub datagrams: u64,
    /// Distinct senders (address and port).
    pub sources: usize,
    /// Datagrams per 100 ms since the first.
    pub per_100ms: Vec<u64>,
}

/// A UDP socket on the DUT that counts until it is stopped.
pub struct UdpSink {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Delivered>>,
}

impl UdpSink {
    /// Binds `address` inside the namespace; ready when this returns.
    pub fn bind(netns: &Netns, address: &str) -> UdpSink {
        let file = File::open(format!("/var/run/netns/{}", netns.name())).expect("the namespace has a name");
        let address: SocketAddr = address.parse().expect("an address with a port");
        let (stop, (ready, is_ready)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
                let socket = UdpSocket::bind(address).expect("the address is free");
                set_socket_recv_buffer_size_force(&socket, 64 << 20).expect("root may force the buffer");
                socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout can be set");
                ready.send(()).expect("the test waits");
                count(&socket, &stop)
            }
        });
        is_ready.recv_timeout(Duration::from_secs(5)).expect("the sink starts");
        UdpSink { stop, thread: Some(thread) }
    }

    /// Stops once nothing has come for 100 ms, and tells what was delivered.
    pub fn finish(mut self) -> Delivered {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("finish is called once").join().expect("the sink does not panic")
    }
}

fn count(socket: &UdpSocket, stop: &AtomicBool) -> Delivered {
    let (mut delivered, mut sources, mut buffer) = (Delivered::default(), HashSet::new(), [0; 65536]);
    let mut first = None;
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => {
                delivered.datagrams += 1;
                sources.insert(from);
                let slot = first.get_or_insert_with(Instant::now).elapsed().as_millis() as usize / 100;
                if delivered.per_100ms.len() <= slot {
                    delivered.per_100ms.resize(slot + 1, 0);
                }
                delivered.per_100ms[slot] += 1;
            }
            Err(_) if stop.load(Ordering::Relaxed) => break,
            Err(_) => {}
        }
    }
    delivered.sources = sources.len();
    delivered
}

impl Drop for UdpSink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A running tcpdump.
pub struct Capture {
    child: Child,
    file: PathBuf,
    _dir: TempDir,
}

/// A captured frame.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Time, nanoseconds.
    pub at_ns: u128,
    /// Bytes.
    pub bytes: Vec<u8>,
}

impl Capture {
    /// Starts capturing what the filter lets through, whole frames; capturing when this returns.
    pub fn start(netns: &Netns, interface: &str, filter: &str) -> Capture {
        let dir = TempDir::new().expect("a scratch folder can be made");
        let file = dir.path().join("capture.pcap");
        let mut command = netns.command("tcpdump");
        // The snap length decides how many frames the buffer holds; no frame is longer.
        command.args([
            "-Z",
            "root",
            "-B",
            "65536",
            "--immediate-mode",
            "-U",
            "-s",
            "9216",
            "-n",
            "-i",
            interface,
            "-w",
        ]);
        command.arg(&file).args(filter.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("tcpdump runs");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let listening = lines.any(|line| line.expect("tcpdump prints text").contains("listening on"));
        assert!(listening, "tcpdump did not start on {interface}");
        std::thread::spawn(move || lines.for_each(drop));
        Capture { child, file, _dir: dir }
    }

    /// Waits until `frames` frames are captured, at most 5 s, then stops and returns them.
    pub fn finish_with(self, frames: usize) -> Vec<Captured> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while count_frames(&self.file) < frames && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.finish()
    }

    /// Stops, and returns what was captured.
    pub fn finish(mut self) -> Vec<Captured> {
        // `ip netns exec` execs, so the child is tcpdump itself; SIGINT makes it write out what it has.
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("tcpdump runs");
        self.child.wait().expect("tcpdump ends");
        let mut reader = PcapReader::new(File::open(&self.file).expect("tcpdump wrote a file")).expect("a pcap file");
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.expect("whole records");
            frames.push(Captured { at_ns: packet.timestamp.as_nanos(), bytes: packet.data.into_owned() });
        }
        frames
    }
}

/// Whole frames in a capture that is still being written.
fn count_frames(file: &Path) -> usize {
    let Ok(mut reader) = File::open(file).map_err(drop).and_then(|file| PcapReader::new(file).map_err(drop)) else {
        return 0;
    };
    std::iter::from_fn(|| reader.next_packet().and_then(Result::ok).map(drop)).count()
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
