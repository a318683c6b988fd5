//! Doubt as data: a typed caveat travels with every result it concerns.
//!
//! Any thread; pure values. A caveat never changes a number; a serious one makes a verdict inconclusive.

use serde::{Deserialize, Serialize};

/// What the doubt is about. The names (snake case) are part of the result file: they may grow, never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The backend that runs is slower than the best one this kind of NIC can have.
    BackendFallback,
    /// XDP runs in generic mode, or not at all.
    XdpFallback,
    /// Received frames are not counted on a port (a foreign XDP program, a missing privilege, …).
    ReceiveNotCounted,
    /// More frames came back than were sent: the DUT duplicates, or a counter is wrong.
    ReceivedMoreThanCompleted,
    /// Our counters and the device's differ by more than 0.1 %.
    CountersDisagree,
    /// Frames completed that the device did not send (no carrier, too long, refused).
    CompletedNotSent,
    /// The asked rate was not reached: the generator is the limit.
    RateNotReached,
    /// Frames were still unsent or uncompleted at the end of the trial.
    Unsent,
    /// The pacer forgave debt: the host took the CPU away for longer than the pacer repays.
    PacingForgiven,
    /// Frames that are not ours arrived (ICMP errors, strays); they are never counted as received.
    OtherFrames,
    /// The DUT answered with ICMP "port unreachable".
    PortClosed,
    /// The link went down during the trial.
    LinkOutage,
    /// The interface was removed during the trial.
    InterfaceRemoved,
    /// Sending ended before its time by an error.
    SendFailed,
    /// The gateway is outside the source address's subnet.
    GatewayOffSubnet,
    /// A source MAC that is not the NIC's own: a virtual switch may drop such frames silently.
    ForgedSourceMac,
    /// All frames are one flow: one DUT queue and core is measured.
    SingleFlow,
    /// The receive queues got very unequal shares.
    LopsidedQueues,
    /// Latency is not available or only for part of the traffic.
    LatencyPartial,
    /// Workers share CPUs with each other or with the DUT.
    SharedCpu,
    /// Frames carry no signature (too short, or replayed as they are): they are not recognised when they come back.
    NoSignature,
    /// Frames of a capture file were cut, padded or left out.
    CaptureIncomplete,
    /// The link retrained when the XDP program was attached.
    LinkRetrained,
    /// Attaching changed the NIC's rings, channels or offloads.
    NicChanged,
    /// The user stopped the run.
    Interrupted,
    /// Duplicates or reordering were seen.
    Reordered,
    /// The host kept the generator from sending a load that it can send easily; the trial does not count and is repeated.
    Disturbed,
    /// A lower load lost frames where a higher one did not.
    LossInversion,
    /// The DUT observer failed or is incomplete.
    ObserverFailed,
    /// A remedy of an earlier, killed run was applied first.
    CleanedUp,
    /// Anything else worth saying; the text says it.
    Note,
}

impl Code {
    /// A verdict built on a trial with this caveat is at best inconclusive.
    pub fn is_serious(self) -> bool {
        matches!(
            self,
            Code::CountersDisagree
                | Code::ReceivedMoreThanCompleted
                | Code::LinkOutage
                | Code::InterfaceRemoved
                | Code::SendFailed
                | Code::Interrupted
                | Code::CompletedNotSent
        )
    }
}

/// One doubt: its code and a sentence that a person can act on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caveat {
    /// What it is about.
    pub code: Code,
    /// One sentence, with numbers and units.
    pub text: String,
}

impl Caveat {
    /// A caveat.
    pub fn new(code: Code, text: impl Into<String>) -> Caveat {
        Caveat { code, text: text.into() }
    }
}
