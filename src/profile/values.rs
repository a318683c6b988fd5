//! Reads a field's values: one, a range, a list, or increment/decrement/random with bounds.
//!
//! Pure. Shapes: `80` · `1024-65535` · `10.0.0.1-10.0.0.9` · `[80, 443]` · `{increment: A-B, step: 2, every: 10}` ·
//! `{decrement: …}` · `{random: A-B, count: 1000}` · `{list: […], every: src_port}` · `{start: A, step: 1, count: 64}`.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    keys,
    node::{Kind, Node, Section, Source, parse_integer},
    stream::{Every, Values, Vary},
};
use crate::{
    error::Result,
    wire::{
        layer::{FieldSpec, TCP_FLAGS, ValueKind},
        mac::Mac,
    },
};

/// Longest list of values of one field.
const MAX_LIST: usize = 65_536;

/// Reads the values of a field of this kind; `what` names it in errors.
pub(super) fn vary(source: &Source<'_>, node: &Node, spec: &FieldSpec, what: &str) -> Result<Vary> {
    let reader = Reader { source: *source, spec, what };
    let (values, every) = match &node.kind {
        Kind::Scalar(text) => (reader.scalar(node, text)?, Every::Frames(1)),
        Kind::List(items) => (reader.list(node, items)?, Every::Frames(1)),
        Kind::Map(_) => reader.mapping(source.section(node, "field", keys::FIELD)?)?,
        Kind::Null => return Err(source.fail(node.at, format!("{what} has no value"))),
    };
    Ok(Vary { at: node.at, values, every })
}

struct Reader<'a> {
    source: Source<'a>,
    spec: &'a FieldSpec,
    what: &'a str,
}

impl Reader<'_> {
    fn max(&self) -> u128 {
        if self.spec.bits >= 128 { u128::MAX } else { (1 << self.spec.bits) - 1 }
    }

    /// One value from its text.
    fn value(&self, node: &Node, text: &str) -> Result<u128> {
        let text = text.trim();
        let (parsed, form) = match self.spec.kind {
            ValueKind::Integer => (parse_integer(text).map(u128::from), "a whole number"),
            ValueKind::Mac => (text.parse::<Mac>().ok().map(mac_value), "a MAC address such as 02:00:00:00:00:01"),
            ValueKind::Ipv4 => (text.parse::<Ipv4Addr>().ok().map(|ip| u128::from(u32::from(ip))), "an IPv4 address"),
            ValueKind::Ipv6 => (text.parse::<Ipv6Addr>().ok().map(u128::from), "an IPv6 address"),
            ValueKind::TcpFlags => (tcp_flags(text), "TCP flags: fin, syn, rst, psh, ack, urg, ece, cwr, joined by +"),
        };
        let value =
            parsed.ok_or_else(|| self.source.fail(node.at, format!("`{text}` is not {form} ({})", self.what)))?;
        if value > self.max() {
            let cause =
                format!("{} is {text}, but has only {} bits: at most {}", self.what, self.spec.bits, self.max());
            return Err(self.source.fail(node.at, cause));
        }
        Ok(value)
    }

    fn one(&self, node: &Node) -> Result<u128> {
        self.value(node, self.source.text(node, self.what)?)
    }

    /// `A` or `A-B`.
    fn bounds(&self, node: &Node, text: &str) -> Result<(u128, u128)> {
        // A MAC may be written with dashes; a range of MACs needs the colon form.
        let range = match self.spec.kind {
            ValueKind::Mac if text.matches('-').count() != 1 => None,
            _ => text.split_once("..").or_else(|| text.split_once('-')),
        };
        match range {
            Some((low, high)) => Ok((self.value(node, low)?, self.value(node, high)?)),
            None => self.value(node, text).map(|value| (value, value)),
        }
    }

    fn scalar(&self, node: &Node, text: &str) -> Result<Values> {
        let (first, last) = self.bounds(node, text)?;
        self.steps(node, first, last, 1)
    }

    /// From `first` to `last` (downwards if it is smaller) by `step`.
    fn steps(&self, node: &Node, first: u128, last: u128, step: u64) -> Result<Values> {
        let distance = first.abs_diff(last);
        if first >> 64 != last >> 64 {
            let cause = format!("{}: a range of IPv6 addresses stays within one /64", self.what);
            return Err(self.source.fail(node.at, cause).remedy("vary the lower 64 bits, or give a list"));
        }
        // Less than 2⁶⁴ apart; the whole range of 2⁶⁴ values is cut by one.
        let count = u64::try_from(distance / u128::from(step) + 1).unwrap_or(u64::MAX);
        let step = if last < first { -i128::from(step) } else { i128::from(step) };
        Ok(if count == 1 { Values::Fixed(first) } else { Values::Step { first, step, count } })
    }

    fn list(&self, node: &Node, items: &[Node]) -> Result<Values> {
        if items.is_empty() || items.len() > MAX_LIST {
            let cause = format!("{}: a list of {} values; 1…{MAX_LIST} are possible", self.what, items.len());
            return Err(self.source.fail(node.at, cause));
        }
        let values = items.iter().map(|item| self.one(item)).collect::<Result<Vec<_>>>()?;
        Ok(if values.len() == 1 { Values::Fixed(values[0]) } else { Values::List(values) })
    }

    fn mapping(&self, map: Section<'_>) -> Result<(Values, Every)> {
        let source = self.source;
        let every = match map.take("every")? {
            None => Every::Frames(1),
            Some(node) => {
                let text = source.text(node, "a number of frames or a field's name")?;
                match parse_integer(text) {
                    Some(0) => return Err(source.fail(node.at, "every 0 frames is never")),
                    Some(frames) => Every::Frames(frames),
                    None => Every::Wrap(text.to_owned()),
                }
            }
        };
        let step_at = map.take("step")?;
        let step = step_at.map_or(Ok(1), |node| source.integer(node, "a step", 1, u64::MAX))?;
        let count = match map.take("count")? {
            None => None,
            Some(node) => Some((node, source.integer(node, "a count of values", 1, 1 << 62)?)),
        };
        let kinds = ["increment", "decrement", "random", "list", "start"];
        let mut found: Option<(usize, &Node)> = None;
        for (kind, name) in kinds.into_iter().enumerate() {
            if let Some(node) = map.take(name)? {
                if found.is_some() {
                    return Err(source.fail(node.at, format!("{} varies in two ways at once", self.what)));
                }
                found = Some((kind, node));
            }
        }
        let Some((kind, node)) = found else {
            let cause = format!("{} does not say how it varies", self.what);
            return Err(source.fail(map.at, cause).remedy("give one of increment, decrement, random, list, start"));
        };
        let ignored = match kind {
            3 => step_at.map(|node| (node, "step")).or(count.map(|(node, _)| (node, "count"))),
            2 => step_at.map(|node| (node, "step")),
            _ => None,
        };
        if let Some((node, key)) = ignored {
            let remedy = format!("leave {key} out, or give increment, decrement or start");
            return Err(source.fail(node.at, format!("{key} has no meaning beside {}", kinds[kind])).remedy(remedy));
        }
        let values = match kind {
            3 => match &node.kind {
                Kind::List(items) => self.list(node, items)?,
                _ => Values::Fixed(self.one(node)?),
            },
            2 => {
                let (low, high) = self.bounds(node, source.text(node, "a range A-B")?)?;
                if high < low {
                    return Err(source.fail(node.at, "a random range goes from the smaller to the larger value"));
                }
                self.steps(node, low, high, 1)?;
                Values::Random { low, high, period: count.map(|(_, count)| count) }
            }
            _ => {
                let (first, last) = self.bounds(node, source.text(node, "a value or a range A-B")?)?;
                // The two ends of a range in either order: `decrement: 1-9` starts at 9.
                let (first, last) = match kind {
                    0 => (first.min(last), first.max(last)),
                    1 => (first.max(last), first.min(last)),
                    _ => (first, last),
                };
                match count {
                    None => self.steps(node, first, last, step)?,
                    Some((node, count)) => {
                        let room = first.abs_diff(last) / u128::from(step) + 1;
                        if first != last && u128::from(count) > room {
                            let cause =
                                format!("{}: {count} values by {step} leave the range, which has {room}", self.what);
                            return Err(source
                                .fail(node.at, cause)
                                .remedy("lower count, or give only the first value"));
                        }
                        self.counted(node, first, step, count, kind == 1)?
                    }
                }
            }
        };
        Ok((values, every))
    }

    /// `count` values from `first`.
    fn counted(&self, node: &Node, first: u128, step: u64, count: u64, down: bool) -> Result<Values> {
        let span = u128::from(step) * u128::from(count - 1);
        let last =
            if down { first.checked_sub(span) } else { first.checked_add(span).filter(|&last| last <= self.max()) };
        let last = last.ok_or_else(|| {
            let cause = format!("{}: {count} values by {step} leave the field's range 0…{}", self.what, self.max());
            self.source.fail(node.at, cause)
        })?;
        self.steps(node, first, last, step)
    }
}

fn mac_value(mac: Mac) -> u128 {
    mac.0.iter().fold(0, |acc, &byte| acc << 8 | u128::from(byte))
}

fn tcp_flags(text: &str) -> Option<u128> {
    if let Some(number) = parse_integer(text) {
        return Some(u128::from(number));
    }
    text.split('+').try_fold(0, |acc, name| {
        let bit = TCP_FLAGS.iter().position(|flag| name.trim().eq_ignore_ascii_case(flag))?;
        Some(acc | 1 << bit)
    })
}
