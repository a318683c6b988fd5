//! The modelled DUT: loads `bpf/model.bpf.c` onto an interface, configures it, reads its counters.
//!
//! Control plane of the lab and of tests. The program stays attached (by netlink) until it is detached or its namespace
//! goes; whoever comes later finds its maps through the program's id, so that nothing has to be pinned.
//!
//! Truth, for a trial of T seconds that starts idle, stages far apart, and a ring of N ≥ 2 × the largest burst:
//! NDR = μ + N / T, and PDR at a loss ratio L is that / (1 − L).

use std::mem::MaybeUninit;

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Xdp, XdpFlags,
    query::{MapInfoIter, ProgInfoIter, ProgInfoQueryOptions},
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    error::{Error, Result},
    units::NS_PER_S,
};

#[allow(missing_docs, clippy::undocumented_unsafe_blocks, clippy::all, reason = "generated")]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/model.skel.rs"));
}

/// Fraction bits of a service time (`FRACTION` in the BPF source).
const FRACTION: u32 = 8;
/// Length of the window that rates are judged over (`WINDOW_NS` in the BPF source).
const WINDOW_NS: u64 = 10_000_000;
/// Counters' place in the state.
const COUNTERS_AT: usize = 80;

/// A ring served at a fixed rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Frames per second served; not 0.
    pub rate_fps: u64,
    /// Frames that may wait.
    pub slots: u64,
}

impl Stage {
    /// What a trial of `trial_ns` that starts idle passes without loss: frames per second, rounded down.
    pub fn ndr_fps(self, trial_ns: u64) -> u64 {
        self.rate_fps + (u128::from(self.slots) * u128::from(NS_PER_S) / u128::from(trial_ns.max(1))) as u64
    }
}

/// How the DUT behaves. The default passes everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelConfig {
    /// The vNIC's ring.
    pub ring: Option<Stage>,
    /// A second stage behind it.
    pub second: Option<Stage>,
    /// Frames lost whatever the load, per 10⁹.
    pub loss_ppb: u64,
    /// Age added to stamped frames beside the stages' queueing delay, ns.
    pub latency_ns: u64,
    /// Load above which it dies, frames/s; 0 = never.
    pub death_fps: u64,
    /// How long it stays dead, ns.
    pub dead_ns: u64,
    /// Loads from the first up to below the second lose one frame in 64, higher ones none: loss inversion.
    pub lossy_fps: Option<(u64, u64)>,
    /// Frames lost after each idle time.
    pub first_frames: u64,
    /// Length of such an idle time, ns.
    pub idle_ns: u64,
    /// Other sizes of the first ring and the rates it then has; at most 8. A size that is not listed keeps the rate.
    pub curve: Vec<Stage>,
    /// Interface that frames leave by.
    pub out_ifindex: u32,
    /// Source MAC they get.
    pub source: [u8; 6],
    /// Destination MAC they get.
    pub destination: [u8; 6],
}

/// What it counted since it was attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Frames seen.
    pub arrived: u64,
    /// Frames sent on.
    pub forwarded: u64,
    /// Lost at the first ring.
    pub ring_full: u64,
    /// Lost at the second stage.
    pub second_full: u64,
    /// Lost by the fixed ratio.
    pub random: u64,
    /// Lost while dead.
    pub dead: u64,
    /// Lost in the lossy band.
    pub band: u64,
    /// Lost as first frames.
    pub first: u64,
}

impl ModelCounters {
    /// Names and values, in the program's order.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("arrived", self.arrived),
            ("forwarded", self.forwarded),
            ("ring_full", self.ring_full),
            ("second_full", self.second_full),
            ("random", self.random),
            ("dead", self.dead),
            ("band", self.band),
            ("first", self.first),
        ]
    }
}

/// The program on an interface of this namespace.
#[derive(Debug)]
pub struct Model {
    config: MapHandle,
    state: MapHandle,
}

impl Model {
    /// Loads and attaches it natively; it stays when this value goes.
    ///
    /// # Errors
    /// Privilege, an old kernel, or another program there.
    pub fn attach(ifindex: u32, config: &ModelConfig) -> Result<Model> {
        let error = |cause: libbpf_rs::Error| Error::environment("attach", "the modelled DUT").because(cause);
        let mut storage = MaybeUninit::uninit();
        let skeleton =
            skeleton::ModelSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load).map_err(error)?;
        let handle = |map: &libbpf_rs::Map<'_>| MapHandle::try_from(map).map_err(error);
        let model = Model { config: handle(&skeleton.maps.model_config)?, state: handle(&skeleton.maps.model_state)? };
        model.configure(config)?;
        let program = std::os::fd::AsFd::as_fd(&skeleton.progs.model);
        let flags = XdpFlags::DRV_MODE | XdpFlags::UPDATE_IF_NOEXIST;
        Xdp::new(program).attach(ifindex as i32, flags).map_err(error)?;
        Ok(model)
    }

    /// Finds it on an interface.
    ///
    /// # Errors
    /// If the interface has no program, or another one.
    pub fn find(ifindex: u32) -> Result<Model> {
        let error = || Error::environment("find", "the modelled DUT").remedy("plimsoll lab up --dut model");
        let none = std::fs::File::open("/dev/null").map_err(|cause| error().os(&cause))?;
        let id = Xdp::new(std::os::fd::AsFd::as_fd(&none))
            .query_id(ifindex as i32, XdpFlags::NONE)
            .map_err(|cause| error().because(cause))?;
        let maps = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
            .find(|program| program.id == id && program.name.to_bytes() == b"model")
            .map(|program| program.map_ids)
            .ok_or_else(|| error().because("no such program is attached"))?;
        let map = |name: &str| {
            MapInfoIter::default()
                .find(|map| maps.contains(&map.id) && map.name.to_bytes() == name.as_bytes())
                .ok_or_else(|| error().because(format!("its map {name} is gone")))
                .and_then(|map| MapHandle::from_map_id(map.id).map_err(|cause| error().because(cause)))
        };
        Ok(Model { config: map("model_config")?, state: map("model_state")? })
    }

    /// Changes how it behaves, from the next frame on.
    ///
    /// # Errors
    /// More than 8 points of the curve, a rate of 0.
    pub fn configure(&self, config: &ModelConfig) -> Result<()> {
        let error = || Error::usage("configure", "the modelled DUT");
        if config.curve.len() > 8
            || config.curve.iter().chain(&config.ring).chain(&config.second).any(|s| s.rate_fps == 0)
        {
            return Err(error().because("a stage serves at least 1 frame/s, and the curve has at most 8 points"));
        }
        self.config.update(&0_u32.to_ne_bytes(), &encode(config), MapFlags::ANY).map_err(|cause| error().because(cause))
    }

    /// How it behaves.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn config(&self) -> Result<ModelConfig> {
        read(&self.config).map(|bytes| decode(&bytes))
    }

    /// Changes the first ring's size, and its rate as the curve says.
    ///
    /// # Errors
    /// If it has no ring.
    pub fn set_ring(&self, slots: u64) -> Result<()> {
        let mut config = self.config()?;
        let ring = config.ring.as_mut().ok_or_else(|| {
            Error::usage("set", "the modelled DUT's ring")
                .because("it has none")
                .remedy("plimsoll lab up --dut model --rate …")
        })?;
        ring.slots = slots;
        if let Some(point) = config.curve.iter().find(|point| point.slots == slots) {
            ring.rate_fps = point.rate_fps;
        }
        self.configure(&config)
    }

    /// What it counted.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn counters(&self) -> Result<ModelCounters> {
        let bytes = read(&self.state)?;
        let [arrived, forwarded, ring_full, second_full, random, dead, band, first] =
            std::array::from_fn(|n| word(&bytes, COUNTERS_AT / 8 + n));
        Ok(ModelCounters { arrived, forwarded, ring_full, second_full, random, dead, band, first })
    }
}

fn read(map: &MapHandle) -> Result<Vec<u8>> {
    let error = || Error::environment("read", "the modelled DUT's map");
    map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|cause| error().because(cause))?
        .ok_or_else(|| error().because("it is empty"))
}

/// The n-th 64-bit word.
fn word(bytes: &[u8], n: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * n + i]))
}

fn service(rate_fps: u64) -> u64 {
    (NS_PER_S << FRACTION) / rate_fps
}

fn rate(service: u64) -> u64 {
    ((NS_PER_S << FRACTION) + service / 2) / service
}

/// `struct model_config`.
fn encode(config: &ModelConfig) -> Vec<u8> {
    let stage = |stage: Option<Stage>| stage.map_or((0, 0), |stage| (service(stage.rate_fps), stage.slots));
    let (ring, second) = (stage(config.ring), stage(config.second));
    let per_window = |fps: u64| (u128::from(fps) * u128::from(WINDOW_NS) / u128::from(NS_PER_S)) as u64;
    let (band_start, band_end) = config.lossy_fps.map_or((0, 0), |(from, to)| (per_window(from), per_window(to)));
    let loss = (u128::from(config.loss_ppb) << 32) / 1_000_000_000;
    let mut words = vec![ring.0, second.0, ring.1, second.1, loss as u64, config.latency_ns];
    words.extend([
        per_window(config.death_fps),
        config.dead_ns,
        band_start,
        band_end,
        config.first_frames,
        config.idle_ns,
    ]);
    for n in 0..8 {
        let (time, slots) = stage(config.curve.get(n).copied());
        words.extend([slots, time]);
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(config.out_ifindex.to_ne_bytes());
    bytes.extend(config.source);
    bytes.extend(config.destination);
    bytes
}

fn decode(bytes: &[u8]) -> ModelConfig {
    let stage = |time: u64, slots: u64| (time > 0).then(|| Stage { rate_fps: rate(time), slots });
    let fps = |window: u64| window * (NS_PER_S / WINDOW_NS);
    let w = |n| word(bytes, n);
    let tail = &bytes[28 * 8..];
    ModelConfig {
        ring: stage(w(0), w(2)),
        second: stage(w(1), w(3)),
        loss_ppb: ((u128::from(w(4)) * 1_000_000_000 + (1 << 31)) >> 32) as u64,
        latency_ns: w(5),
        death_fps: fps(w(6)),
        dead_ns: w(7),
        lossy_fps: (w(8) > 0).then(|| (fps(w(8)), fps(w(9)))),
        first_frames: w(10),
        idle_ns: w(11),
        curve: (0..8).filter_map(|n| stage(w(13 + 2 * n), w(12 + 2 * n))).collect(),
        out_ifindex: u32::from_ne_bytes(std::array::from_fn(|i| tail[i])),
        source: std::array::from_fn(|i| tail[4 + i]),
        destination: std::array::from_fn(|i| tail[10 + i]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_the_map() {
        let config = ModelConfig {
            ring: Some(Stage { rate_fps: 20_000, slots: 256 }),
            second: Some(Stage { rate_fps: 800_000, slots: 64 }),
            loss_ppb: 1_000_000,
            latency_ns: 50_000,
            death_fps: 400_000,
            dead_ns: 7,
            lossy_fps: Some((1000, 5000)),
            first_frames: 3,
            idle_ns: 9,
            curve: vec![Stage { rate_fps: 30_000, slots: 512 }],
            out_ifindex: 4,
            source: [1, 2, 3, 4, 5, 6],
            destination: [6, 5, 4, 3, 2, 1],
        };
        assert_eq!(decode(&encode(&config)), config);
        assert_eq!(decode(&encode(&ModelConfig::default())), ModelConfig::default());
    }

    #[test]
    fn a_second_of_trial_adds_the_ring_to_the_rate() {
        let stage = Stage { rate_fps: 20_000, slots: 256 };
        assert_eq!((stage.ndr_fps(1_000_000_000), stage.ndr_fps(500_000_000)), (20_256, 20_512));
    }
}
