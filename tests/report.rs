//! Every renderer against golden files: `tests/golden/report/*.json` are result files, the files beside them what each renderer
//! makes of them. `BLESS=1 cargo test --test report` writes the golden files anew: read the difference.

#[path = "support/schema.rs"]
mod schema;

use std::{fs, path::PathBuf};

use plimsoll::{
    meter::claim::Delivered,
    report::{
        Format, check,
        compare::Named,
        csv, document, html, json, markdown, render,
        result::{Claim, ResultFile},
        text,
    },
    units::{FrameLen, MeanFrame},
};
use serde_json::Value;

const FIXTURES: [&str; 6] = ["run", "odd", "ceiling", "ceiling-b", "sweep", "claim"];

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
        assert_golden(&format!("{name}.txt"), &text::render(&fixture(name), text::Style::default(), name != "sweep"));
    }
}

#[test]
fn text_on_a_narrow_terminal_is_as_golden_and_never_wider() {
    for name in FIXTURES {
        let style = text::Style { color: false, width: Some(80) };
        let rendered = text::render(&fixture(name), style, name != "sweep");
        assert_golden(&format!("{name}.80.txt"), &rendered);
        for line in rendered.lines() {
            assert!(line.chars().count() <= 80, "{name}: too wide: {line}");
        }
    }
}

#[test]
fn what_json_writes_is_what_the_schema_says_and_adds_up() {
    for name in FIXTURES {
        let written: Value = serde_json::from_slice(&json::render(&fixture(name))).expect("JSON");
        assert_eq!(schema::errors(&written), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_schema_refuses_what_the_contract_forbids() {
    let validator = jsonschema::validator_for(&schema::closed()).expect("the schema is a schema");
    let good: Value = serde_json::from_slice(&json::render(&fixture("run"))).expect("JSON");
    for (place, wrong) in [
        ("/schema", Value::from("plimsoll/2")),
        ("/trials/0/completed_frames", Value::from(1.5)),
        ("/trials/0/completed_frames", Value::from(-1)),
        ("/trials/0/completed_frames", Value::Null),
        ("/trials/0/frame_size", Value::from(63)),
        ("/trials/0/verdict/kind", Value::from("dut")),
        ("/trials/0/dut/0/stage", Value::from("ring")),
        ("/started_at", Value::from("yesterday")),
    ] {
        let mut document = good.clone();
        *document.pointer_mut(place).expect("the place exists") = wrong.clone();
        assert!(!validator.is_valid(&document), "{place} = {wrong} passes");
    }
}

#[test]
fn a_result_read_and_written_again_is_the_same() {
    for name in FIXTURES {
        let file = fixture(name);
        let again: ResultFile = serde_json::from_slice(&json::render(&file)).expect("JSON");
        assert_eq!(again, file, "{name}");
    }
}

#[test]
fn a_changed_number_is_found() {
    for (name, place, wrong) in [
        ("run", "/trials/0/tx_fps", Value::from(2)),
        ("run", "/trials/0/received_frames", Value::from(2)),
        ("run", "/trials/0/loss_ratio", Value::from(0.0)),
        ("run", "/trials/0/ports/0/completed_frames", Value::from(2)),
        ("run", "/trials/0/streams/1/lost_frames", Value::from(0)),
        ("ceiling", "/ceilings/0/lower_fps", Value::from(800_000)),
        ("ceiling", "/ceilings/0/upper_fps", Value::Null),
        ("ceiling", "/ceilings/1/throughput_fps", Value::from(801_648)),
        ("ceiling", "/ceilings/1/bps_l1", Value::from(1)),
        ("claim", "/claims/0/ratio", Value::from(1.0)),
        ("claim", "/claims/3/theoretical_fps", Value::from(14_880_952)),
    ] {
        let mut document = serde_json::to_value(fixture(name)).expect("JSON");
        *document.pointer_mut(place).expect("the place exists") = wrong;
        let file: ResultFile = serde_json::from_value(document).expect("still a result");
        assert!(!check::contradictions(&file).is_empty(), "{name}: nobody sees {place}");
    }
}

#[test]
fn trials_that_only_compare_settings_are_behind_no_ceiling() {
    let mut file = fixture("sweep");
    let ceiling =
        file.ceilings.iter().find(|ceiling| ceiling.lower_fps.is_some()).expect("one has a lower bound").clone();
    let load_fps = ceiling.lower_fps;
    let behind = check::trials_behind(&file, &ceiling).find(|trial| trial.load_fps == load_fps);
    let mut lossy = behind.expect("a trial at the bound").clone();
    lossy.received_frames = Some(0);
    lossy.rx_fps = Some(0);
    lossy.lost_frames = i64::try_from(lossy.completed_frames).ok();
    lossy.loss_ratio = Some(1.0);
    lossy.streams.clear();
    // Longer together than the others at this load.
    file.trials.extend(std::iter::repeat_n(lossy, 100));
    let first = file.trials.len() - 100;
    let found = check::contradictions(&file);
    assert!(found.iter().any(|text| text.contains("lower_fps")), "a search's trials count: {found:?}");
    file.trials[first..].iter_mut().for_each(|trial| trial.is_comparison = true);
    assert_eq!(check::contradictions(&file), Vec::<String>::new());
    let again: ResultFile = serde_json::from_slice(&json::render(&file)).expect("JSON");
    assert_eq!(again, file, "the mark is written");
}

#[test]
fn csv_markdown_and_html_are_as_golden() {
    for name in FIXTURES {
        let file = fixture(name);
        let document = document::document(&file, true);
        assert_golden(&format!("{name}.csv"), &String::from_utf8(csv::render(&file)).expect("UTF-8"));
        assert_golden(&format!("{name}.md"), &markdown::render(&document));
        // A page with dozens of charts is too long to read as a difference; these two have one of each kind of block.
        if matches!(name, "run" | "claim") {
            assert_golden(&format!("{name}.html"), &html::render(&document));
        }
    }
}

#[test]
fn the_page_needs_nothing_beside_it_and_holds_every_trial_and_doubt() {
    for name in FIXTURES {
        let file = fixture(name);
        let page = html::render(&document::document(&file, true));
        for word in ["<script", "<link", "<img", "@import", "url(", "src=", "href="] {
            assert!(!page.contains(word), "{name}: {word}");
        }
        let outside = page.replace("http://www.w3.org/2000/svg", "").contains("://");
        assert!(!outside, "{name}: names another host");
        for (index, _) in file.trials.iter().enumerate().filter(|_| !file.ceilings.is_empty()) {
            assert!(page.contains(&format!("<td class=\"number\">{}</td>", index + 1)), "{name}: trial {}", index + 1);
        }
        for caveat in file.caveats.iter().chain(file.trials.iter().flat_map(|trial| &trial.caveats)) {
            let said = page.contains(&caveat.text) || !file.ceilings.is_empty();
            assert!(said, "{name}: {}", caveat.text);
        }
    }
}

#[test]
fn charts_show_what_a_search_found() {
    let page = html::render(&document::document(&fixture("ceiling"), true));
    for chart in ["Ceiling over frame size", "Loss", "Forwarding rate", "Latency"] {
        assert!(page.contains(&format!("<figcaption>{chart}</figcaption>")), "{chart}");
    }
    for mark in ["NDR", "PDR", "MFR", "FRMOL", "line rate at the claim"] {
        assert!(page.contains(mark), "{mark}");
    }
    let sweep = html::render(&document::document(&fixture("sweep"), true));
    assert!(sweep.contains("<figcaption>Ceiling over DUT RX ring</figcaption>"));
}

#[test]
fn names_from_outside_cannot_break_a_page_or_a_table() {
    let mut file = fixture("run");
    file.trials[0].streams[0].name = "<b>|\"x\"&".to_owned();
    let document = document::document(&file, true);
    assert!(html::render(&document).contains("stream &lt;b&gt;|&quot;x&quot;&amp;"));
    assert!(markdown::render(&document).contains(r#"| stream \<b\>\|"x"& |"#));
}

#[test]
fn no_rendering_for_people_steers_a_terminal() {
    let mut file = fixture("run");
    let evil = "x\x1b]0;title\x07\u{9b}31m\x7f";
    file.command.push(evil.to_owned());
    file.host.kernel = evil.to_owned();
    file.trials[0].streams[0].name = evil.to_owned();
    file.trials[0].frame_size = evil.into();
    let document = document::document(&file, true);
    let csv = String::from_utf8(csv::render(&file)).expect("UTF-8");
    let texts = [
        ("text", text::render(&file, text::Style::default(), true)),
        ("csv", csv.replace("\r\n", "\n")),
        ("html", html::render(&document)),
        ("markdown", markdown::render(&document)),
    ];
    for (name, text) in texts {
        assert!(text.contains("0;title"), "{name} shows it");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{name}: {text:?}");
    }
}

#[test]
fn a_comparison_says_which_differences_exceed_the_spread() {
    let (a, b) = (fixture("ceiling"), fixture("ceiling-b"));
    let both = [Named { name: "veth", file: &a }, Named { name: "e1000", file: &b }];
    let text = |results: &[Named<'_>], format| {
        String::from_utf8(render(results, format, false).expect("can be rendered")).expect("UTF-8")
    };
    assert_golden("compare.txt", &text(&both, Format::Text(text::Style::default())));
    assert_golden("compare.csv", &text(&both, Format::Csv));
    assert!(text(&both, Format::Html).contains("<figcaption>Ceiling (ndr) over frame size</figcaption>"));
    let same = [Named { name: "first", file: &a }, Named { name: "again", file: &a }];
    assert!(
        text(&same, Format::Text(text::Style::default())).contains("none of the 10 differences exceeds the spread.")
    );
    let other = fixture("claim");
    let strangers = [Named { name: "ceiling", file: &a }, Named { name: "claim", file: &other }];
    assert!(text(&strangers, Format::Markdown).contains("have no frame size, load and goal in common"));
    assert!(render(&both, Format::Json, false).is_err());
}

#[test]
fn runs_are_compared_by_their_seconds() {
    let a = fixture("run");
    let mut b = a.clone();
    for second in &mut b.trials[0].seconds {
        second.received_frames = second.received_frames.map(|frames| frames / 2);
    }
    b.trials[0].rx_fps = b.trials[0].rx_fps.map(|fps| fps / 2);
    let both = [Named { name: "a", file: &a }, Named { name: "b", file: &b }];
    let text = render(&both, Format::Text(text::Style::default()), false).expect("can be rendered");
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("received at 1,000,000 frames/s: b is 50 % lower than a, more than the spread."), "{text}");
}

#[test]
fn claims_are_built_as_the_fixture_has_them() {
    let file = fixture("claim");
    let delivered: Vec<(Value, Delivered)> = file.claims[..3]
        .iter()
        .map(|claim| {
            let len = FrameLen::new(claim.frame_size.as_u64().expect("a size")).expect("a valid size");
            let frames = format!("{len}-byte frames");
            let (claim_mbps, measured_fps) = (claim.claim_mbps, claim.measured_fps);
            (
                claim.frame_size.clone(),
                Delivered { frames, mean: MeanFrame::of(len), claim_mbps, measured_fps, at_max: false },
            )
        })
        .collect();
    assert_eq!(Claim::of("g0", &delivered), file.claims[..3]);
}

/// Runs `plimsoll report` on fixtures in a scratch folder.
fn report(dir: &std::path::Path, arguments: &[&str]) -> std::process::Output {
    for name in ["run", "ceiling", "ceiling-b"] {
        fs::copy(golden(&format!("{name}.json")), dir.join(format!("{name}.json"))).expect("fixtures can be copied");
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("report").args(arguments).current_dir(dir).output().expect("the binary runs")
}

#[test]
fn the_command_renders_by_format_or_by_the_outputs_name() {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let text = report(dir.path(), &["run.json"]);
    assert_eq!((text.status.code(), text.stdout), (Some(0), fs::read(golden("run.txt")).expect("golden")));
    let csv = report(dir.path(), &["run.json", "--format", "csv"]);
    assert_eq!((csv.status.code(), csv.stdout), (Some(0), fs::read(golden("run.csv")).expect("golden")));
    for (output, begins) in [("a.html", "<!DOCTYPE html>"), ("a.md", "# plimsoll"), ("a.json", "{\n  \"schema\"")] {
        assert_eq!(report(dir.path(), &["ceiling.json", "-o", output]).status.code(), Some(0));
        let written = fs::read_to_string(dir.path().join(output)).expect("it was written");
        assert!(written.starts_with(begins), "{output}: {written}");
    }
    let compared = report(dir.path(), &["ceiling.json", "ceiling-b.json"]);
    assert!(String::from_utf8_lossy(&compared.stdout).contains("ceiling-b is 12.5 % lower than ceiling"));
}

#[test]
fn the_command_refuses_what_is_no_result_and_names_one_that_does_not_add_up() {
    let dir = tempfile::tempdir().expect("a folder for the test");
    fs::write(dir.path().join("other.json"), "{}").expect("it can be written");
    for arguments in
        [vec![], vec!["other.json"], vec!["missing.json"], vec!["run.json", "ceiling.json", "--format", "json"]]
    {
        let refused = report(dir.path(), &arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{arguments:?}");
    }
    let edited =
        fs::read_to_string(golden("run.json")).expect("golden").replace("\"tx_fps\": 1000000", "\"tx_fps\": 7");
    fs::write(dir.path().join("edited.json"), edited).expect("it can be written");
    let said = report(dir.path(), &["edited.json"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("edited does not add up: trial 1: tx_fps is 7"));
}
