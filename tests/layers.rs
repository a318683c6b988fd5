//! The layers of ARCHITECTURE.md as a test: imports go down only, and a few names have one home.

use std::{collections::BTreeMap, fs, path::Path};

/// Modules by layer; a module may import from its own layer's number or below.
const LAYERS: &[(&str, u8)] = &[
    ("caveat", 0),
    ("clock", 0),
    ("error", 0),
    ("human", 0),
    ("ids", 0),
    ("units", 0),
    ("diagnose", 1),
    ("meter", 1),
    ("pacer", 1),
    ("profile", 1),
    ("program", 1),
    ("search", 1),
    ("wire", 1),
    ("backend", 2),
    ("dut", 2),
    ("host", 2),
    ("xdp", 2),
    ("engine", 3),
    ("lab", 4),
    ("session", 4),
    ("cli", 5),
    ("report", 5),
];

/// `report/result.rs` is the shape of the result file: data that `session` fills in. It alone may be used from below.
const SHARED_DATA: &str = "report::result";

/// Words that may stand only in these places.
const HOMES: &[(&str, &[&str])] = &[
    ("xsk_rs", &["src/backend/xsk"]),
    ("libbpf_rs", &["src/xdp", "src/backend/live"]),
    ("libbpf_sys", &["src/xdp", "src/backend/live"]),
    ("clap::", &["src/cli"]),
    ("unsafe ", &["src/backend", "src/xdp", "src/host"]),
    ("println!", &["src/main.rs", "src/report"]),
    ("print!", &["src/main.rs", "src/report"]),
    ("SystemTime::now", &["src/clock.rs"]),
    ("Instant::now", &["src/clock.rs"]),
];

fn sources() -> BTreeMap<String, String> {
    fn walk(dir: &Path, into: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).expect("src is readable").map(|entry| entry.expect("src is readable").path()) {
            if entry.is_dir() {
                walk(&entry, into);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&entry).expect("sources are UTF-8");
                into.insert(entry.display().to_string(), text);
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(Path::new("src"), &mut files);
    files
}

/// Code lines before the file's tests, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
        .map(|(n, line)| (n + 1, line.split("//").next().unwrap_or_default()))
}

fn layer_of(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|&(_, layer)| layer)
}

#[test]
fn imports_go_down_only() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let module = path.trim_start_matches("src/").split(['/', '.']).next().unwrap_or_default().to_owned();
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let Some(own) = layer_of(&module) else {
            wrong.push(format!("{path}: module `{module}` has no layer in tests/layers.rs"));
            continue;
        };
        let whole: String = code(&text).map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        for (other, layer) in LAYERS {
            let used =
                [format!("crate::{other}::"), format!("crate::{other};")].iter().any(|w| whole.contains(w.as_str()))
                    || grouped_imports(&whole).iter().any(|name| name == other);
            let only_data =
                *other == "report" && whole.matches("report::").count() == whole.matches(SHARED_DATA).count();
            if used && *layer > own && !only_data {
                wrong.push(format!("{path} (layer {own}) imports {other} (layer {layer})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// First path segments of the items inside `use crate::{…}`.
fn grouped_imports(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for group in code.split("use crate::{").skip(1) {
        let (mut depth, mut at_item) = (1, true);
        let mut name = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => at_item = true,
                c if depth == 1 && at_item && (c.is_alphanumeric() || c == '_') => name.push(c),
                c if !c.is_whitespace() => at_item = false,
                _ => {}
            }
            if !name.is_empty() && (!at_item || c == ',' || depth == 0) {
                names.push(std::mem::take(&mut name));
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

#[test]
fn names_stay_in_their_homes() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for (n, line) in code(&text) {
            for (word, homes) in HOMES {
                let stands = line.contains(word) && !line.contains(&format!("e{word}"));
                if stands && !homes.iter().any(|home| path.starts_with(home)) {
                    wrong.push(format!("{path}:{n}: `{word}` belongs in {}", homes.join(", ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn grouped_imports_are_seen() {
    assert_eq!(grouped_imports("use crate::{\n  error::Result,\n  units::{A, B},\n ids};"), ["error", "units", "ids"]);
}

#[test]
fn the_tests_that_the_readme_names_exist() {
    let readme = fs::read_to_string("tests/README.md").expect("it is there");
    let named = readme.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::"));
    let mut checked = 0;
    for (place, test) in named {
        let file = if place.ends_with(".rs") { place.to_owned() } else { format!("tests/kernel/{place}.rs") };
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}
