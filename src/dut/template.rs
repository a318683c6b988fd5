//! What a `command:` observer prints: one JSON object, or `name: value` lines.
//!
//! Pure text → counters. `rx_ring`, `rx_ring_max`, `rx_queues` and `claim_mbps` are facts of the interface; `received` is how many frames
//! the DUT ingested. A counter can say its stage by itself: JSON `{"vnic_ring": {"no buffer": 5}}` or a line
//! `vnic_ring/no buffer: 5`; then its section is the stage's name. Text that holds no number at all is an error, not a zero.

use super::counters::{InterfaceFacts, Snapshot, Source};
use crate::diagnose::Stage;
use serde_json::Value;

/// Reads a command's output into the snapshot and returns how many counters it held.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn counters(text: &str, interface: &str, into: &mut Snapshot) -> Result<usize, String> {
    let before = into.counters.len();
    if text.trim_start().starts_with('{') {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("its output is not the JSON it begins as: {error}"))?;
        json("", &value, into);
    } else {
        text.lines().for_each(|line| lines(line, into));
    }
    // What a DUT has set is a fact, not a count.
    let fact =
        |name: &str| into.counters.iter().find(|(c, _)| c.source == Source::Command && c.name == name).map(|(_, v)| *v);
    let (rx_ring, rx_ring_max, claim_mbps, rx_queues) =
        (fact("rx_ring"), fact("rx_ring_max"), fact("claim_mbps"), fact("rx_queues"));
    let facts = InterfaceFacts { rx_ring, rx_ring_max, claim_mbps, rx_queues, ..InterfaceFacts::default() };
    if facts != InterfaceFacts::default() {
        into.interfaces.insert(interface.to_string(), facts);
    }
    match into.counters.len() - before {
        0 => Err("its output holds no `name: value` line and no JSON number".into()),
        count => Ok(count),
    }
}

fn json(path: &str, value: &Value, into: &mut Snapshot) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let path = if path.is_empty() { key.clone() } else { format!("{path}/{key}") };
                json(&path, member, into);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                json(&format!("{path}/{index}"), item, into);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_u64() {
                add(path, number, into);
            }
        }
        Value::String(text) => {
            if let Some(number) = number(text) {
                add(path, number, into);
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}

fn lines(line: &str, into: &mut Snapshot) {
    let Some((name, value)) = line.rsplit_once([':', '=']) else { return };
    // Routers print `Input packets : 1,234   56 pps`: the first number is the counter.
    if let Some(value) = value.split_whitespace().next().and_then(number) {
        add(name.trim(), value, into);
    }
}

/// An integer, with `,` or `_` between thousands allowed.
fn number(text: &str) -> Option<u64> {
    let plain: String = text.trim().chars().filter(|c| !matches!(c, ',' | '_')).collect();
    if plain.bytes().all(|b| b.is_ascii_digit()) { plain.parse().ok() } else { None }
}

fn add(path: &str, value: u64, into: &mut Snapshot) {
    match path.split_once('/') {
        Some((stage, name)) if Stage::from_name(stage).is_some() => into.add(Source::Command, "", stage, name, value),
        _ => into.add(Source::Command, "", "", path, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, String, u64)>, String> {
        let mut s = Snapshot::default();
        counters(text, "eth0", &mut s)?;
        Ok(s.counters.into_iter().map(|(c, v)| (c.section, c.name, v)).collect())
    }

    #[test]
    fn lines_of_a_router_are_read() {
        let text = "Physical interface: ge-0/0/0, Enabled\n  Input packets : 1,234   56 pps\n  Input errors = 7\nno number: here\n";
        assert_eq!(
            read(text).unwrap(),
            [(String::new(), "Input errors".into(), 7), (String::new(), "Input packets".into(), 1234)]
        );
    }

    #[test]
    fn a_stage_can_be_named_in_json_and_in_lines() {
        let expected = [("vnic_ring".to_string(), "no buffer".to_string(), 5)];
        assert_eq!(read(r#"{"vnic_ring": {"no buffer": "5"}}"#).unwrap(), expected);
        assert_eq!(read("vnic_ring/no buffer: 5").unwrap(), expected);
    }

    #[test]
    fn nested_json_keeps_its_path_and_skips_what_is_no_counter() {
        let found = read(r#"{"if": [{"in": 9, "up": true, "rate": 1.5, "loss": -1}], "name": "x"}"#).unwrap();
        assert_eq!(found, [(String::new(), "if/0/in".into(), 9)]);
    }

    #[test]
    fn ring_and_claim_are_facts() {
        let mut s = Snapshot::default();
        counters("rx_ring: 512\nclaim_mbps: 10000\n", "ge0", &mut s).unwrap();
        assert_eq!((s.interfaces["ge0"].rx_ring, s.interfaces["ge0"].claim_mbps), (Some(512), Some(10_000)));
    }

    #[test]
    fn text_without_a_number_is_an_error() {
        assert!(read("permission denied").unwrap_err().contains("no `name: value`"));
        assert!(read("{ broken").unwrap_err().contains("JSON"));
        assert!(read("").is_err());
    }
}
