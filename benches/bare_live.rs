//! A live redirect that writes nothing: what the kernel's path costs without us. Straight instructions, so that nothing of
//! our backend is measured against itself.

use std::{
    fs::File,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use libbpf_sys as bpf;

/// Generic XDP (`XDP_FLAGS_SKB_MODE`).
const GENERIC: u32 = 1 << 1;

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: just returned by the kernel to nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// `bpf_redirect_map(&devmap, 0, 0)`, held in the XDP dispatcher by an attachment to the `lo` of a namespace of its own.
pub struct BareLive {
    program: OwnedFd,
    ifindex: u32,
    _devmap: OwnedFd,
    _link: OwnedFd,
    _netns: File,
}

impl BareLive {
    /// Redirects to interface `ifindex` of this thread's namespace.
    pub fn open(ifindex: u32) -> BareLive {
        // SAFETY: the name is NUL-terminated and null options are allowed.
        let devmap =
            unsafe { bpf::bpf_map_create(bpf::BPF_MAP_TYPE_DEVMAP, c"bench".as_ptr(), 4, 4, 1, std::ptr::null()) };
        let devmap = owned(devmap);
        let (map, key) = (devmap.as_raw_fd(), 0u32);
        // SAFETY: key and value are the 4 bytes that the map was made for.
        let set = unsafe { bpf::bpf_map_update_elem(map, (&raw const key).cast(), (&raw const ifindex).cast(), 0) };
        assert_eq!(set, 0);
        // r1 = devmap ll; r2 = 0; r3 = 0; call redirect_map; exit
        let insns: [[u32; 2]; 6] = [[0x1118, map as u32], [0, 0], [0x02B7, 0], [0x03B7, 0], [0x85, 51], [0x95, 0]];
        let (kind, name, options) = (bpf::BPF_PROG_TYPE_XDP, c"bench".as_ptr(), std::ptr::null_mut());
        // SAFETY: each pair of words has the layout of bpf_insn; null options are allowed.
        let program =
            owned(unsafe { bpf::bpf_prog_load(kind, name, c"GPL".as_ptr(), insns.as_ptr().cast(), 6, options) });
        let (link, netns) = std::thread::scope(|scope| scope.spawn(|| hold(&program)).join().expect("it is held"));
        BareLive { program, ifindex, _devmap: devmap, _link: link, _netns: netns }
    }

    /// Sends `frames` frames of 60 bytes in one call, in batches of `batch`.
    pub fn send(&self, frames: u32, batch: u32) {
        let frame = [0u8; 60];
        let context = bpf::xdp_md { data_end: 60, ingress_ifindex: self.ifindex, ..Default::default() };
        let mut options = bpf::bpf_test_run_opts {
            sz: size_of::<bpf::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: 60,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of::<bpf::xdp_md>() as u32,
            repeat: frames as i32,
            flags: bpf::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: batch,
            ..Default::default()
        };
        // SAFETY: frame and context outlive the call.
        let sent = unsafe { bpf::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        assert_eq!(sent, 0, "the kernel runs live frames");
    }
}

/// On a thread of its own: a new namespace, and the program on its `lo`.
fn hold(program: &OwnedFd) -> (OwnedFd, File) {
    // SAFETY: only this thread's network namespace changes.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("root unshares");
    let netns = File::open("/proc/thread-self/ns/net").expect("procfs is mounted");
    let options = bpf::bpf_link_create_opts {
        sz: size_of::<bpf::bpf_link_create_opts>() as _,
        flags: GENERIC,
        ..Default::default()
    };
    // SAFETY: the options outlive the call.
    let link = unsafe { bpf::bpf_link_create(program.as_raw_fd(), 1, bpf::BPF_XDP, &options) };
    (owned(link), netns)
}
