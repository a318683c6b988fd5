//! A YAML document as a tree whose every node knows its line and column, and a reader that refuses unknown keys.
//!
//! Pure; any thread. `serde-saphyr` parses, finds duplicate keys and bounds depth, nodes and aliases. Scalars keep the text as
//! it was written, because `1e10` may be hexadecimal bytes and `02:00:00:00:00:01` a MAC address: what a scalar means is for
//! its reader to say. Does not know any key of a profile.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Budget, Location, Options, Spanned};

use super::keys::Key;
use crate::error::{Error, Result};

/// Longest profile, in bytes.
pub const MAX_PROFILE_BYTES: usize = 4 << 20;

/// Longest cause of an error, in characters.
const MAX_CAUSE_CHARS: usize = 300;
/// Longest word that a valid one is sought for, in bytes.
const MAX_WORD_BYTES: usize = 40;

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct At {
    /// Line, from 1; 0 = no place in particular.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(String, At, Node)>),
}

/// A node with its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub at: At,
    pub kind: Kind,
}

/// As serde sees it: plain scalars that look like numbers or booleans are `Typed`, and re-read from the text afterwards.
enum Raw {
    Null,
    Text(String),
    Typed,
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        struct RawVisitor;
        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list or a mapping")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Raw, E> {
                Ok(Raw::Typed)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Raw, E> {
                Ok(Raw::Typed)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Raw, E> {
                Ok(Raw::Typed)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
                Ok(Raw::Typed)
            }
            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = seq.next_element()? {
                    list.push(item);
                }
                Ok(Raw::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Raw::Map(entries))
            }
        }
        deserializer.deserialize_any(RawVisitor)
    }
}

fn at(location: Location) -> At {
    At { line: location.line(), column: location.column() }
}

/// Turns serde's view into nodes, with typed scalars as written.
fn node(raw: Spanned<Raw>, lines: &[&str]) -> Node {
    let place = at(raw.defined);
    let kind = match raw.value {
        Raw::Null => Kind::Null,
        Raw::Text(text) => Kind::Scalar(text),
        Raw::Typed => {
            let line = lines.get((place.line as usize).saturating_sub(1)).copied().unwrap_or("");
            let skip = (place.column as usize).saturating_sub(1);
            Kind::Scalar(line.chars().skip(skip).take(raw.defined.span().len()).collect::<String>().trim().to_owned())
        }
        Raw::List(items) => Kind::List(items.into_iter().map(|item| node(item, lines)).collect()),
        Raw::Map(entries) => Kind::Map(
            entries.into_iter().map(|(key, value)| (key.value, at(key.referenced), node(value, lines))).collect(),
        ),
    };
    Node { at: place, kind }
}

/// The file that errors name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub file: &'a str,
}

impl<'a> Source<'a> {
    /// An error at a place of this file.
    pub fn fail(&self, at: At, cause: impl fmt::Display) -> Error {
        let subject = match at.line {
            0 => self.file.to_owned(),
            line => format!("{}:{line}:{}", self.file, at.column),
        };
        // What the file says is repeated only as far as a person reads it.
        let cause = cause.to_string();
        match cause.char_indices().nth(MAX_CAUSE_CHARS) {
            Some((end, _)) => Error::usage("read", subject).because(format!("{}…", &cause[..end])),
            None => Error::usage("read", subject).because(cause),
        }
    }

    /// Parses one YAML document.
    ///
    /// # Errors
    /// Broken YAML, duplicate keys, or more nodes, depth or aliases than any profile needs.
    pub fn parse(&self, text: &str) -> Result<Node> {
        if text.len() > MAX_PROFILE_BYTES {
            return Err(self.fail(At::default(), format!("{} bytes are too many for a profile", text.len())));
        }
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        let budget = Budget {
            max_events: 400_000,
            max_nodes: 200_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_depth: 24,
            max_documents: 2,
            max_total_scalar_bytes: MAX_PROFILE_BYTES,
            max_merge_keys: 1_000,
            ..Budget::default()
        };
        let mut options = Options { budget: Some(budget), with_snippet: false, ..Options::default() };
        options.alias_limits.max_total_replayed_events = 100_000;
        options.alias_limits.max_replay_stack_depth = 8;
        match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
            Ok(raw) => Ok(node(raw, &text.lines().collect::<Vec<_>>())),
            Err(error) => Err(self.yaml_error(text, &error)),
        }
    }

    fn yaml_error(&self, text: &str, error: &serde_saphyr::Error) -> Error {
        let place = error.location().map(at).unwrap_or_default();
        if text.contains("trex_stl_lib") || text.contains("STLStream") {
            return self
                .fail(At { line: 1, column: 1 }, "this is a TRex profile in Python")
                .remedy("profiles are YAML here");
        }
        let is_tabbed = |line: &str| line.trim_start_matches(' ').starts_with('\t') && !line.trim().is_empty();
        if let Some(line) = text.lines().position(|line| is_tabbed(line) && !line.trim_start().starts_with('#')) {
            return self
                .fail(At { line: line as u64 + 1, column: 1 }, "a tab in the indentation; YAML indents with spaces")
                .remedy("replace the tab by spaces");
        }
        // The library appends the place in its own words; we have said it already.
        let mut cause = error.to_string();
        if let Some(end) = cause.rfind(" at line ") {
            cause.truncate(end);
        }
        if cause.contains("multiple YAML documents") {
            return self
                .fail(place, "a second YAML document starts here")
                .remedy("a profile is one document: remove the ---");
        }
        let failed = self.fail(place, &cause);
        match cause.contains("duplicate") {
            true => failed.remedy("each key stands once in its mapping"),
            false => failed.remedy("look at the indentation, brackets and quotes here and in the line above"),
        }
    }

    /// The node as a mapping of these keys (each with its synonyms); `name` says what it is ("port", "stream").
    ///
    /// # Errors
    /// Not a mapping, or a key that is none of these, with the nearest valid one: told before anything that its value would
    /// have been needed for. Keys that begin with `x-` are the user's own (for anchors).
    pub fn section<'n>(&self, node: &'n Node, name: &'static str, keys: &'n [Key]) -> Result<Section<'n>>
    where
        'a: 'n,
    {
        let entries = match &node.kind {
            Kind::Map(entries) => entries.as_slice(),
            Kind::Null => &[],
            other => {
                return Err(
                    self.fail(node.at, format!("a {name} is a mapping of keys to values, not {}", other.label()))
                );
            }
        };
        let is_unknown = |key: &str| !key.starts_with("x-") && !keys.iter().any(|names| names.contains(&key));
        if let Some((key, at, _)) = entries.iter().find(|(key, ..)| is_unknown(key)) {
            let mut valid = keys.concat();
            valid.sort_unstable();
            return Err(self.fail(*at, format!("unknown key `{key}` in this {name}")).remedy(suggest(key, &valid)));
        }
        Ok(Section { source: *self, name, at: node.at, entries, keys })
    }

    /// The scalar's text.
    ///
    /// # Errors
    /// A list, a mapping or nothing.
    pub fn text<'n>(&self, node: &'n Node, what: &str) -> Result<&'n str> {
        match &node.kind {
            Kind::Scalar(text) => Ok(text),
            other => Err(self.fail(node.at, format!("expected {what}, found {}", other.label()))),
        }
    }

    /// The scalar parsed; `what` says what is expected.
    ///
    /// # Errors
    /// Not a scalar, or not a `T`.
    pub fn parse_as<T: FromStr>(&self, node: &Node, what: &str) -> Result<T> {
        let text = self.text(node, what)?;
        text.parse().map_err(|_| self.fail(node.at, format!("`{text}` is not {what}")))
    }

    /// An integer (decimal or 0x…) of `min`…`max`.
    ///
    /// # Errors
    /// Anything else.
    pub fn integer(&self, node: &Node, what: &str, min: u64, max: u64) -> Result<u64> {
        let text = self.text(node, what)?;
        parse_integer(text).filter(|value| (min..=max).contains(value)).ok_or_else(|| {
            let cause = if max == u64::MAX {
                format!("`{text}` is not {what}: a whole number from {min}")
            } else {
                format!("`{text}` is not {what}: a whole number of {min}…{max}")
            };
            self.fail(node.at, cause)
        })
    }

    /// `true` or `false` (also yes/no, on/off).
    ///
    /// # Errors
    /// Anything else.
    pub fn boolean(&self, node: &Node, what: &str) -> Result<bool> {
        match self.text(node, what)?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Ok(true),
            "false" | "no" | "off" => Ok(false),
            other => Err(self.fail(node.at, format!("`{other}` is not {what}: write true or false"))),
        }
    }

    /// A list's items; a single value counts as a list of one.
    pub fn items<'n>(&self, node: &'n Node) -> &'n [Node] {
        match &node.kind {
            Kind::List(items) => items,
            Kind::Null => &[],
            _ => std::slice::from_ref(node),
        }
    }
}

/// A whole number: decimal (underscores allowed between digits) or 0x….
pub(super) fn parse_integer(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return hex.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(hex, 16).ok()).flatten();
    }
    let digits: String = text.chars().filter(|&c| c != '_').collect();
    (text.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

impl Kind {
    /// For error messages.
    pub fn label(&self) -> &'static str {
        match self {
            Kind::Null => "nothing",
            Kind::Scalar(_) => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }
}

/// A mapping all of whose keys are valid.
pub(super) struct Section<'n> {
    source: Source<'n>,
    name: &'static str,
    pub at: At,
    entries: &'n [(String, At, Node)],
    keys: &'n [Key],
}

impl<'n> Section<'n> {
    /// The value under this key or one of its synonyms.
    ///
    /// # Errors
    /// Two synonyms at once.
    ///
    /// # Panics
    /// A key that the section was not opened with.
    pub fn take(&self, name: &str) -> Result<Option<&'n Node>> {
        let names = self.keys.iter().find(|names| names[0] == name).expect("a section is asked for its own keys");
        let mut found = self.entries.iter().filter(|(key, ..)| names.contains(&key.as_str()));
        let Some((first, _, node)) = found.next() else { return Ok(None) };
        if let Some((second, at, _)) = found.next() {
            return Err(self.source.fail(*at, format!("`{second}` and `{first}` say the same thing twice")));
        }
        Ok((!matches!(node.kind, Kind::Null)).then_some(node))
    }

    /// [`Section::take`] for a key that must be there.
    ///
    /// # Errors
    /// It is not.
    pub fn require(&self, name: &str) -> Result<&'n Node> {
        self.take(name)?.ok_or_else(|| self.source.fail(self.at, format!("this {} has no `{name}`", self.name)))
    }
}

/// "did you mean …?" with the nearest of the valid words, or all of them.
pub(super) fn suggest(word: &str, valid: &[&str]) -> String {
    let nearest = valid
        .iter()
        .filter(|_| word.len() <= MAX_WORD_BYTES)
        .map(|candidate| (strsim::damerau_levenshtein(&word.to_ascii_lowercase(), candidate), candidate))
        .min_by_key(|&(distance, _)| distance);
    match nearest {
        Some((distance, candidate)) if distance <= 1 + word.len() / 3 => format!("did you mean `{candidate}`?"),
        _ => format!("valid here: {}", valid.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source<'static> = Source { file: "f.yaml" };

    fn scalar(node: &Node, path: &[&str]) -> (String, At) {
        let mut node = node;
        for step in path {
            node = match &node.kind {
                Kind::Map(entries) => &entries.iter().find(|(key, ..)| key == step).unwrap().2,
                Kind::List(items) => &items[step.parse::<usize>().unwrap()],
                _ => panic!("no {step}"),
            };
        }
        match &node.kind {
            Kind::Scalar(text) => (text.clone(), node.at),
            other => panic!("{}", other.label()),
        }
    }

    #[test]
    fn scalars_keep_their_text_and_know_their_place() {
        let text =
            "é: &x 1e10\nb:\n  - 0x0800\n  - 02:00:00:00:00:01\n  - *x\n  - 'q'\n  - 010 # c\n  - {é: 0.10, f: yes}\n";
        let root = SOURCE.parse(text).unwrap();
        assert_eq!(scalar(&root, &["é"]), ("1e10".into(), At { line: 1, column: 7 }));
        assert_eq!(scalar(&root, &["b", "0"]), ("0x0800".into(), At { line: 3, column: 5 }));
        assert_eq!(scalar(&root, &["b", "1"]).0, "02:00:00:00:00:01");
        assert_eq!(scalar(&root, &["b", "2"]).0, "1e10");
        assert_eq!(scalar(&root, &["b", "3"]).0, "q");
        assert_eq!(scalar(&root, &["b", "4"]).0, "010");
        assert_eq!(scalar(&root, &["b", "5", "é"]), ("0.10".into(), At { line: 8, column: 9 }));
        assert_eq!(scalar(&root, &["b", "5", "f"]).0, "yes");
    }

    #[test]
    fn duplicate_keys_and_tabs_are_named_with_their_line() {
        let error = SOURCE.parse("a: 1\nb: 2\na: 3\n").unwrap_err().to_string();
        assert!(error.contains("f.yaml:3:1") && error.contains("duplicate"), "{error}");
        let error = SOURCE.parse("a:\n\t- b: 1\n").unwrap_err().to_string();
        assert!(error.contains("f.yaml:2:1") && error.contains("tab"), "{error}");
    }

    #[test]
    fn an_endless_key_is_cut_in_the_message() {
        let root = SOURCE.parse(&format!("? {}\n: 1\n", "k".repeat(1 << 20))).unwrap();
        let error = SOURCE.section(&root, "port", &[]).err().unwrap().to_string();
        assert!(error.len() < 500 && error.contains('…'), "{} bytes", error.len());
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let previous = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", [previous.as_str(); 9].join(", "));
        }
        assert!(SOURCE.parse(&text).is_err());
        assert!(SOURCE.parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_valid_one() {
        let root = SOURCE.parse("interface: g0\nsrc_pi: 1\n").unwrap();
        let error = SOURCE.section(&root, "port", &[&["interface"], &["src_ip", "ip"]]).err().unwrap().to_string();
        assert_eq!(error, "cannot read f.yaml:2:1: unknown key `src_pi` in this port: did you mean `src_ip`?");
    }
}
