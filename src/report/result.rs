//! The result file, `"schema": "plimsoll/1"`: one JSON document, complete on disk after every trial.
//!
//! Names carry units; integers are u64; `null` means "not measured", never 0. `tests/schema/plimsoll-1.json` is the JSON
//! schema. Fields may be added, none may change meaning without a new schema version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::diagnose::{Stage, VerdictKind};
use crate::{
    caveat::{Caveat, Code},
    meter::claim::{self, Compared, Delivered},
    search::{self, TrialInput, TrialOutput},
    units::NS_PER_S,
};

/// The schema's name and version.
pub const SCHEMA: &str = "plimsoll/1";

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Plimsoll's version.
    pub version: String,
    /// The command line, as given.
    pub command: Vec<String>,
    /// Start, RFC 3339 in UTC.
    pub started_at: String,
    /// Seed of everything random.
    pub seed: u64,
    /// The generator's machine.
    pub host: Host,
    /// The generator's ports.
    pub ports: Vec<Port>,
    /// Every trial, in order.
    pub trials: Vec<Trial>,
    /// The searches' answers.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// Claims beside measurements.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// Which value of a DUT's setting is best, for each setting and frame size that was swept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// Doubts about the whole.
    pub caveats: Vec<Caveat>,
}

/// The generator's machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: String,
    /// Online CPUs.
    pub cpus: u64,
    /// CPU model, if known.
    pub cpu_model: Option<String>,
    /// Kernel clock source.
    pub clocksource: String,
    /// Network namespace the run was in, if not the initial one.
    pub netns: Option<String>,
}

/// A port of the generator as it really ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Interface name.
    pub name: String,
    /// Driver (or kind of virtual device).
    pub driver: String,
    /// Link speed that the NIC claims, Mbit/s.
    pub claim_mbps: Option<u64>,
    /// Link speed that the profile gives (`link_speed`), Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mbps: Option<u64>,
    /// `xsk`, `live`, `packet`, or `none` on a port that only receives.
    pub backend: String,
    /// `zero-copy`, `copy`, `live`, `packet` or `none`.
    pub mode: String,
    /// How received frames are counted: `native`, `generic` or `none`.
    pub xdp: String,
    /// Transmit queues in use.
    pub queues: u64,
    /// Workers and the CPUs they were pinned to.
    pub worker_cpus: Vec<u64>,
    /// Own MAC address.
    pub mac: String,
    /// Source address, if the port has one.
    pub src_ip: Option<String>,
    /// Gateway and its MAC as resolved.
    pub gateway: Option<String>,
    /// Destination MAC in use.
    pub dest_mac: Option<String>,
    /// MTU in bytes.
    pub mtu: u64,
    /// Why each faster backend did not run.
    pub why_not: BTreeMap<String, String>,
}

/// One trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Frame length with FCS, or a mix's name ("imix…").
    pub frame_size: Value,
    /// Intended load per port, frames/s; `null` = as fast as possible.
    pub load_fps: Option<u64>,
    /// Frames left when they did in the capture: there is no load in frames/s.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// Duration asked for, seconds; `null` = until the asked count is sent.
    #[serde(default)]
    pub intended_s: Option<f64>,
    /// Measured to compare a DUT's settings at equal loads, outside every search: no ceiling rests on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_comparison: bool,
    /// Real duration of sending, seconds.
    pub duration_s: f64,
    /// Asked for.
    pub intended_frames: u64,
    /// Accepted by the backend.
    pub offered_frames: u64,
    /// Really sent by the device.
    pub completed_frames: u64,
    /// Seen back, or ingested by the DUT's counters.
    pub received_frames: Option<u64>,
    /// completed − received; negative if the DUT duplicates.
    pub lost_frames: Option<i64>,
    /// lost / completed.
    pub loss_ratio: Option<f64>,
    /// L2 bytes sent, FCS in.
    pub tx_bytes: u64,
    /// L2 bytes received, FCS in.
    pub rx_bytes: Option<u64>,
    /// Completed frames/s.
    pub tx_fps: u64,
    /// Received frames/s.
    pub rx_fps: Option<u64>,
    /// L1 bit/s sent.
    pub tx_bps_l1: u64,
    /// L2 bit/s sent.
    pub tx_bps_l2: u64,
    /// Latency over the traffic.
    pub latency_ns: Option<Latency>,
    /// The four counts per port.
    pub ports: Vec<PortTrial>,
    /// Second by second.
    pub seconds: Vec<Second>,
    /// Per stream.
    pub streams: Vec<StreamTrial>,
    /// Frames that are not ours, by kind.
    #[serde(default)]
    pub other: BTreeMap<String, u64>,
    /// What was varied (frame size, ring, workers, backend).
    #[serde(default)]
    pub axes: BTreeMap<String, Value>,
    /// The DUT's counters that moved.
    #[serde(default)]
    pub dut: Vec<DutDelta>,
    /// Who limited, if that could be told.
    pub verdict: Option<Verdict>,
    /// Doubts about this trial.
    pub caveats: Vec<Caveat>,
}

impl Trial {
    /// The trial as a search sees it; `None` for one that proves nothing about a load: without a load or a count of what came back,
    /// with an outage of the link, disturbed, or cut short.
    pub fn as_searched(&self) -> Option<search::Trial> {
        let proves_nothing = |caveat: &Caveat| {
            matches!(caveat.code, Code::LinkOutage | Code::Disturbed | Code::InterfaceRemoved | Code::Interrupted)
        };
        if self.caveats.iter().any(proves_nothing) {
            return None;
        }
        let duration_ns = (self.intended_s.unwrap_or(self.duration_s) * NS_PER_S as f64).round() as u64;
        Some(search::Trial {
            input: TrialInput { load_fps: self.load_fps?, duration_ns },
            output: TrialOutput {
                intended_frames: self.intended_frames,
                offered_frames: self.offered_frames,
                completed_frames: self.left_frames(),
                received_frames: self.received_frames?,
                effective_duration_ns: duration_ns,
                elapsed_ns: duration_ns,
            },
        })
    }

    /// Frames that left the generator: those that the device sent, and those that a ring of the DUT refused, since a virtual link has
    /// no wire to lose them on.
    pub fn left_frames(&self) -> u64 {
        let by_dut = self.verdict.as_ref().filter(|verdict| verdict.kind == VerdictKind::DutLimited);
        match by_dut.and_then(|verdict| verdict.stage) {
            Some(Stage::VnicRing | Stage::Vswitch) => self.offered_frames.max(self.completed_frames),
            _ => self.completed_frames,
        }
    }
}

/// Latency over all frames with a fresh stamp, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Smallest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
    /// Frames measured.
    pub count: u64,
    /// Measured / received.
    pub share: f64,
}

/// A port's part of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PortTrial {
    /// Interface.
    pub name: String,
    /// Asked for.
    pub intended_frames: u64,
    /// Accepted by the backend.
    pub offered_frames: u64,
    /// Really sent by the device.
    pub completed_frames: u64,
    /// Seen back at this port.
    pub received_frames: Option<u64>,
    /// L2 bytes sent, FCS in.
    pub tx_bytes: u64,
    /// L2 bytes received, FCS in.
    pub rx_bytes: Option<u64>,
    /// Received per queue.
    #[serde(default)]
    pub rx_queues: Vec<u64>,
    /// The device's own counters that moved.
    #[serde(default)]
    pub device: BTreeMap<String, i64>,
}

/// One second of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the start of sending, at the end of this one.
    pub at_s: f64,
    /// Frames accepted in this second.
    pub offered_frames: u64,
    /// Frames completed in this second.
    pub completed_frames: u64,
    /// Frames received in this second.
    pub received_frames: Option<u64>,
    /// L2 bytes received in this second, FCS in.
    pub rx_bytes: Option<u64>,
}

/// A stream's part of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamTrial {
    /// Name in the profile.
    pub name: String,
    /// Sending port.
    pub port: String,
    /// Asked for.
    pub intended_frames: u64,
    /// Accepted by the backend.
    pub offered_frames: u64,
    /// Completed.
    pub completed_frames: u64,
    /// Received, with our signature.
    pub received_frames: Option<u64>,
    /// completed − received.
    pub lost_frames: Option<i64>,
    /// Seen twice.
    pub duplicate_frames: Option<u64>,
    /// Seen after a later one of the same flow.
    pub reordered_frames: Option<u64>,
    /// L2 bytes sent.
    pub tx_bytes: u64,
    /// L2 bytes received.
    pub rx_bytes: Option<u64>,
    /// Latency of this stream.
    pub latency_ns: Option<Latency>,
}

/// A DUT counter that moved during a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DutDelta {
    /// Stage it belongs to, if known.
    pub stage: Option<Stage>,
    /// Counter, with its source.
    pub counter: String,
    /// After − before.
    pub delta: i64,
}

/// Who limited, with the evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Who.
    pub kind: VerdictKind,
    /// Where.
    pub stage: Option<Stage>,
    /// Sentences with counters and numbers.
    pub evidence: Vec<String>,
    /// What the user can do.
    pub advice: Vec<String>,
}

/// A search's answer for one goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Frame length or mix.
    pub frame_size: Value,
    /// Where in the sweep's matrix.
    #[serde(default)]
    pub axes: BTreeMap<String, Value>,
    /// The goal.
    pub goal: Goal,
    /// `bounds`, `at_least_max`, `below_min`, `generator_limited` or `undecided`.
    pub outcome: String,
    /// Relevant lower bound, frames/s per port.
    pub lower_fps: Option<u64>,
    /// Relevant upper bound.
    pub upper_fps: Option<u64>,
    /// Conditional throughput (RFC 9971).
    pub throughput_fps: Option<u64>,
    /// Throughput in L1 bit/s.
    pub bps_l1: Option<u64>,
    /// Throughput in L2 bit/s.
    pub bps_l2: Option<u64>,
    /// Who limited.
    pub verdict: Verdict,
    /// Doubts.
    pub caveats: Vec<Caveat>,
}

/// A search goal as reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// `ndr`, `pdr`, …
    pub name: String,
    /// Loss ratio it allows.
    pub loss_ratio: f64,
    /// Exceed ratio.
    pub exceed_ratio: f64,
    /// Duration of a full-length trial, seconds.
    pub final_trial_s: f64,
    /// Sum of durations it asks for, seconds.
    pub duration_sum_s: f64,
    /// Relative width it asks for.
    pub width: f64,
}

/// A claim beside what was delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Frame length or mix.
    pub frame_size: Value,
    /// Generator's port or the DUT's interface.
    pub port: String,
    /// Claimed link speed, Mbit/s.
    pub claim_mbps: Option<u64>,
    /// Frames/s at the claim.
    pub theoretical_fps: Option<u64>,
    /// Frames/s measured.
    pub measured_fps: u64,
    /// L1 bit/s measured.
    pub bps_l1: u64,
    /// L2 bit/s measured.
    pub bps_l2: u64,
    /// Measured / theoretical.
    pub ratio: Option<f64>,
    /// A plain sentence.
    pub sentence: String,
}

impl Claim {
    /// One interface's claim beside what it delivered with each frame size.
    pub fn of(port: &str, delivered: &[(Value, Delivered)]) -> Vec<Claim> {
        let measured: Vec<Delivered> = delivered.iter().map(|(_, one)| one.clone()).collect();
        let compared = claim::compare(&measured).into_iter();
        let claim = |((frame_size, one), compared): (&(Value, Delivered), Compared)| Claim {
            frame_size: frame_size.clone(),
            port: port.to_owned(),
            claim_mbps: one.claim_mbps,
            theoretical_fps: compared.theoretical_fps,
            measured_fps: one.measured_fps,
            bps_l1: compared.bps_l1,
            bps_l2: compared.bps_l2,
            ratio: compared.ratio,
            sentence: compared.sentence,
        };
        delivered.iter().zip(compared).map(claim).collect()
    }
}

/// Values of a setting of the DUT, compared at the same offered load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The axis: `dut_rx_ring` or `dut_queues`.
    pub axis: String,
    /// Frame length or mix.
    pub frame_size: Value,
    /// Where else in the sweep's matrix.
    #[serde(default)]
    pub axes: BTreeMap<String, Value>,
    /// The value that was set before, and was put back.
    pub original: u64,
    /// The best value; `null` if there was no load that every value was offered.
    pub best: Option<u64>,
    /// The load at which all were compared, frames/s over all ports.
    pub load_fps: Option<u64>,
    /// Frames/s that the DUT took at that load, by value.
    pub received_fps: BTreeMap<String, u64>,
    /// The value that a comparison at full speed would have preferred, where it is another one.
    pub misled_to: Option<u64>,
    /// The answer in sentences.
    pub sentences: Vec<String>,
}
