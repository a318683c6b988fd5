//! Every renderer against golden files: `tests/golden/report/*.json` are result files, the files beside them what each renderer
//! makes of them. `BLESS=1 cargo test --test report` writes the golden files anew: read the difference.

use std::{fs, path::PathBuf};

use plimsoll::report::{result::ResultFile, text};

const FIXTURES: [&str; 2] = ["run", "odd"];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/report").join(name)
}

fn fixture(name: &str) -> ResultFile {
    let path = golden(&format!("{name}.json"));
    let json = fs::read_to_string(&path).expect("the fixture is there");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares with the golden file, or writes it when blessed.
fn assert_golden(name: &str, actual: &str) {
    let path = golden(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, actual).expect("golden files can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{} differs from what is rendered:\n{actual}", path.display());
}

#[test]
fn text_in_a_pipe_is_as_golden() {
    for name in FIXTURES {
        assert_golden(&format!("{name}.txt"), &text::render(&fixture(name), text::Style::default(), false));
    }
}

#[test]
fn text_on_a_narrow_terminal_is_as_golden_and_never_wider() {
    for name in FIXTURES {
        let style = text::Style { color: false, width: Some(80) };
        let rendered = text::render(&fixture(name), style, false);
        assert_golden(&format!("{name}.80.txt"), &rendered);
        for line in rendered.lines() {
            assert!(line.chars().count() <= 80, "{name}: too wide: {line}");
        }
    }
}
