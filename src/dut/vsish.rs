//! An ESXi host's port statistics as `vsish` prints them, live or from saved texts.
//!
//! Pure text → counters and sentences. The same text appears one counter a line, or run together on one line as people paste it; both
//! are read. `running out of buffers` and the rings' `# of times … ring is full` are two views of the same frames.

use super::channel::quoted;
use super::counters::{Delta, Snapshot, Source};
use crate::human::count;

/// What marks a hypervisor's port among interfaces: no Linux interface name holds a space.
pub(super) const PORT_PREFIX: &str = "vsish ";

/// Puts every `name:value` of the text into the snapshot; gauges (ring sizes) are kept as counters that never move.
///
/// A name may hold spaces, digits and `#` (`2nd ring size`), so it is whatever stands between the previous value and the colon.
pub fn statistics(text: &str, port: &str, into: &mut Snapshot) {
    for line in text.lines() {
        let mut name_from = 0;
        for (colon, _) in line.match_indices(':') {
            if colon < name_from {
                continue;
            }
            let rest = &line[colon + 1..];
            let padding = rest.len() - rest.trim_start().len();
            let digits = rest[padding..].bytes().take_while(u8::is_ascii_digit).count();
            let after = rest[padding + digits..].chars().next();
            if digits == 0 || after.is_some_and(|c| !c.is_whitespace() && !matches!(c, '}' | ',' | ';')) {
                continue; // `name:enabled`, a MAC address, a heading: the next number's name begins later
            }
            let value = rest[padding..padding + digits].parse();
            let name = last_name(&line[name_from..colon]);
            name_from = colon + 1 + padding + digits;
            if let Ok(value) = value
                && !name.is_empty()
            {
                into.add(Source::Vsish, port, "", name, value);
            }
        }
    }
}

/// The name in the text before a colon: without an opening brace's heading and an earlier word value that was no number.
fn last_name(text: &str) -> &str {
    let text = text.rsplit(['{', '}']).next().unwrap_or(text);
    match text.rsplit_once(':') {
        // `enabled:yes pkts rx ok` – drop the word that belongs to the earlier name.
        Some((_, rest)) => rest.trim().split_once(char::is_whitespace).map_or("", |(_, name)| name.trim()),
        None => text.trim(),
    }
}

/// The nodes that are read for a port.
const NODES: [&str; 2] = ["vmxnet3/rxSummary", "clientStats"];

/// The script that reads a port (`PORTSET/PORT`, as `net-stats -l` lists them) on an ESXi host.
pub fn compose(port: &str) -> String {
    let (portset, port) = port.split_once('/').unwrap_or(("", port));
    NODES
        .iter()
        .map(|node| {
            format!("vsish -e get {} 2>/dev/null\n", quoted(&format!("/net/portsets/{portset}/ports/{port}/{node}")))
        })
        .collect()
}

/// The port's text as a snapshot. The first ring's size stands as the port's RX ring.
///
/// # Errors
/// A sentence, if the text holds no counter.
pub fn read(text: &str, port: &str) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot::default();
    let interface = format!("{PORT_PREFIX}{port}");
    statistics(text, &interface, &mut snapshot);
    if snapshot.counters.is_empty() {
        return Err("the text holds no port statistics".into());
    }
    let ring = snapshot.counters.iter().find(|(c, _)| c.name == "1st ring size").map(|(_, size)| *size);
    snapshot.interfaces.entry(interface).or_default().rx_ring = ring;
    Ok(snapshot)
}

/// The frames and rings of one port between two texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStory {
    /// Frames that the guest received.
    pub received_frames: u64,
    /// Their bytes, if the text has them.
    pub received_bytes: Option<u64>,
    /// Frames lost because the vNIC had no buffer.
    pub no_buffer_frames: u64,
    /// Of those, the first ring's, if the text tells the rings apart.
    pub first_ring_frames: Option<u64>,
    /// And the second ring's.
    pub second_ring_frames: Option<u64>,
    /// First ring's size in descriptors.
    pub first_ring_size: Option<u64>,
    /// Second ring's size.
    pub second_ring_size: Option<u64>,
}

impl PortStory {
    /// What happened at a port; `after` gives the ring sizes.
    pub fn between(before: &Snapshot, after: &Snapshot) -> PortStory {
        let delta = Delta::between(before, after);
        let has = |name: &str| after.counters.keys().any(|c| c.name == name);
        let moved = |name: &str| has(name).then(|| delta.total(Source::Vsish, name));
        let gauge = |name: &str| after.counters.iter().find(|(c, _)| c.name == name).map(|(_, v)| *v);
        let first = moved("# of times the 1st ring is full");
        let second = moved("# of times the 2nd ring is full");
        let rings = first.unwrap_or(0) + second.unwrap_or(0);
        PortStory {
            received_frames: moved("pkts rx ok").or_else(|| moved("pktsRxOK")).unwrap_or(0),
            received_bytes: moved("bytes rx ok").or_else(|| moved("bytesRxOK")),
            no_buffer_frames: moved("running out of buffers").unwrap_or(0).max(rings),
            first_ring_frames: first,
            second_ring_frames: second,
            first_ring_size: gauge("1st ring size"),
            second_ring_size: gauge("2nd ring size"),
        }
    }

    /// Frames offered to the port: received and lost.
    pub fn offered_frames(&self) -> u64 {
        self.received_frames + self.no_buffer_frames
    }

    /// The mean size of the received frames in bytes (without FCS), rounded.
    pub fn mean_frame_bytes(&self) -> Option<u64> {
        let frames = self.received_frames;
        self.received_bytes.filter(|_| frames > 0).map(|bytes| (bytes + frames / 2) / frames)
    }

    /// The story in sentences for a person.
    pub fn sentence(&self) -> String {
        let offered = self.offered_frames();
        if offered == 0 {
            return "no frame reached the port between the two readings".into();
        }
        let mut text = if self.no_buffer_frames == 0 {
            format!("no frame was lost at the vNIC's rings; {} were received", count(self.received_frames))
        } else {
            let percent = permille(self.no_buffer_frames, offered);
            format!(
                "{} frames, {}.{} % of those offered to the port, were lost at {}",
                count(self.no_buffer_frames),
                percent / 10,
                percent % 10,
                self.where_lost()
            )
        };
        if let Some(bytes) = self.mean_frame_bytes() {
            text += &format!(", mean frame {bytes} B");
        }
        text
    }

    fn where_lost(&self) -> String {
        let sized = |ring: &str, size: Option<u64>| match size {
            Some(size) => format!("the vNIC's {ring} ring ({size} descriptors)"),
            None => format!("the vNIC's {ring} ring"),
        };
        match (self.first_ring_frames.unwrap_or(0), self.second_ring_frames.unwrap_or(0)) {
            (0, 0) => "the vNIC's rings (the text does not say which)".into(),
            (_, 0) => sized("first", self.first_ring_size),
            (0, _) => sized("second", self.second_ring_size),
            (first, second) => format!("the vNIC's first ({}) and second ({}) rings", count(first), count(second)),
        }
    }
}

/// Per mille of a share, rounded to nearest.
fn permille(part: u64, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part), u128::from(whole.max(1)));
    u64::try_from((part * 1000 + whole / 2) / whole).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_LINE: &str = "stats of a vmxnet3 vNIC rx queue { LRO pkts rx ok:0 LRO bytes rx ok:0 pkts rx ok:75409132 \
        bytes rx ok:26921060124 unicast pkts rx ok:75409000 running out of buffers:25183929 pkts receive error:0 \
        1st ring size:1024 2nd ring size:256 # of times the 1st ring is full:25183929 # of times the 2nd ring is full:0 \
        fail to map a rx buffer:0 Whether rx burst queuing is enabled:0 }";

    fn parse(text: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        statistics(text, "p", &mut snapshot);
        snapshot
    }

    fn value(snapshot: &Snapshot, name: &str) -> Option<u64> {
        snapshot.counters.iter().find(|(c, _)| c.name == name).map(|(_, v)| *v)
    }

    #[test]
    fn the_known_case_reads_the_same_on_one_line_and_on_many() {
        let many = ONE_LINE
            .replace(" bytes rx ok:2", "\n   bytes rx ok:2")
            .replace(" 1st ring size", "\n   1st ring size")
            .replace(" # of", "\n   # of");
        for text in [ONE_LINE, &many] {
            let s = parse(text);
            assert_eq!(value(&s, "pkts rx ok"), Some(75_409_132));
            assert_eq!(value(&s, "running out of buffers"), Some(25_183_929));
            assert_eq!(value(&s, "1st ring size"), Some(1024));
            assert_eq!(value(&s, "2nd ring size"), Some(256));
            assert_eq!(value(&s, "# of times the 1st ring is full"), Some(25_183_929));
            assert_eq!(value(&s, "LRO pkts rx ok"), Some(0));
        }
    }

    #[test]
    fn the_known_case_is_told_in_one_sentence_and_counted_once() {
        let story = PortStory::between(&Snapshot::default(), &parse(ONE_LINE));
        assert_eq!(story.no_buffer_frames, 25_183_929);
        assert_eq!(story.offered_frames(), 100_593_061);
        assert_eq!(
            story.sentence(),
            "25,183,929 frames, 25.0 % of those offered to the port, were lost at the vNIC's first ring (1024 descriptors), mean frame 357 B"
        );
    }

    #[test]
    fn before_is_taken_from_after() {
        let before =
            parse("pkts rx ok:100 bytes rx ok:6400 running out of buffers:7 # of times the 1st ring is full:7");
        let after =
            parse("pkts rx ok:200 bytes rx ok:16400 running out of buffers:107 # of times the 1st ring is full:107");
        let story = PortStory::between(&before, &after);
        assert_eq!((story.received_frames, story.no_buffer_frames, story.mean_frame_bytes()), (100, 100, Some(100)));
    }

    #[test]
    fn the_second_ring_and_missing_lines_are_told_apart() {
        let second = PortStory::between(
            &Snapshot::default(),
            &parse(
                "pkts rx ok:90\nrunning out of buffers:10\n2nd ring size:32\n# of times the 1st ring is full:0\n# of times the 2nd ring is full:10\n",
            ),
        );
        assert!(
            second.sentence().contains("10.0 %") && second.sentence().contains("second ring (32 descriptors)"),
            "{}",
            second.sentence()
        );

        let only_total = PortStory::between(&Snapshot::default(), &parse("pkts rx ok:50\nrunning out of buffers:50\n"));
        assert!(only_total.sentence().contains("50.0 %") && only_total.sentence().contains("does not say which"));

        let only_ring =
            PortStory::between(&Snapshot::default(), &parse("pkts rx ok:1 # of times the 1st ring is full:3"));
        assert_eq!(only_ring.no_buffer_frames, 3);

        let healthy = PortStory::between(&Snapshot::default(), &parse("pkts rx ok:1000 running out of buffers:0"));
        assert!(healthy.sentence().starts_with("no frame was lost"));
        let nothing = PortStory::between(&Snapshot::default(), &parse(""));
        assert!(nothing.sentence().starts_with("no frame reached"));
    }

    #[test]
    fn values_that_are_no_numbers_do_not_disturb_the_next_name() {
        let s = parse("mac:00:50:56:aa:bb:cc queue state:enabled pkts rx ok:5");
        assert_eq!(value(&s, "pkts rx ok"), Some(5));
        let s = parse("pktsTxOK:3\ndroppedRx:18446744073709551615\ntoo big:99999999999999999999999\n");
        assert_eq!(value(&s, "droppedRx"), Some(u64::MAX));
        assert_eq!(value(&s, "too big"), None);
    }
}
