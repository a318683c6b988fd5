//! A worker allocates nothing while it sends.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use plimsoll::{
    backend::mem::MemSink,
    clock,
    engine::{BackendChoice, OpenPort, TrialSpec, TxPort},
    ids::QueueId,
    profile,
    program::{PortFacts, compile},
};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROFILE: &str = "
ports:
  - {interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}
  - {interface: g1, src_ip: 10.2.0.2, default_gw: 10.2.0.1}

";

#[test]
fn a_worker_allocates_nothing_between_its_first_and_its_last_frame() {
    let profile = profile::parse(PROFILE, "test.yaml").unwrap();
    let facts = [PortFacts::placeholder(0), PortFacts::placeholder(1)];
    let program = compile(&profile, &facts, 1, 1).unwrap().programs[0].clone();
    for load_fps in [None, Some(1_000), Some(300_000)] {
        let port = OpenPort {
            ifname: "mem".into(),
            ifindex: 0,
            queues: vec![QueueId(0), QueueId(1)],
            cpus: vec![],
            backend: BackendChoice::Mem(MemSink::counting()),
            program: Arc::new(program.clone()),
            mtu: 1500,
        };
        let mut port = TxPort::open(port, Arc::default()).unwrap();
        let spec = TrialSpec { load_fps, duration_ns: 600_000_000, count: None, start: clock::now() };
        port.start(spec).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        // This thread only sleeps, so whatever is allocated in between is a worker's.
        let before = ALLOCATIONS.load(Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        let allocated = ALLOCATIONS.load(Relaxed) - before;
        let report = port.finish().unwrap();
        assert!(report.counts.total().completed_frames > 100, "{load_fps:?}: it did send");
        assert_eq!(allocated, 0, "{load_fps:?}");
    }
}
