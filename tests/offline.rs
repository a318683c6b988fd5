//! `plimsoll check` and `plimsoll pcap` as an unprivileged user types them: what they print, what they refuse, exit codes.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

/// A folder with the binary and the profiles that any user can read and write.
fn workshop() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder for the test");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("permissions can be set");
    // By another process: a descriptor that writes it, inherited by another test's child, would keep it from being run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_plimsoll")).arg(dir.path().join("plimsoll")).status();
    assert!(copied.is_ok_and(|status| status.success()), "the binary can be copied");
    fs::create_dir(dir.path().join("profiles")).expect("a folder can be made");
    for entry in fs::read_dir("profiles").expect("profiles/ is there") {
        let path = entry.expect("profiles/ is readable").path();
        fs::copy(&path, dir.path().join("profiles").join(path.file_name().expect("a name")))
            .expect("profiles can be copied");
    }
    dir
}

/// Runs the copy; as `nobody` where the test itself is root.
fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir, arguments).output().expect("the binary runs")
}

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(dir.join("plimsoll"));
    command.args(arguments).current_dir(dir).env_remove("PLIMSOLL_LOG");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn check_prints_ports_streams_and_the_program_without_privileges() {
    let dir = workshop();
    let output = run(dir.path(), &["check", "-v", "profiles/vm-dut.yaml"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "g0 → g1",
        "10.1.0.1",
        "by ARP",
        "1,225,490 frames/s",
        "3.50 Gb/s",
        "357.00",
        "udp.src_port",
        "random 1024 … 65535",
        "sequence, stamp at 42–55",
        "ethernet / ipv4 / udp",
        "64 ×7, 580 ×4, 1516",
        "0000  02 50 4c",
        "is good: 2 ports, 1 stream",
    ] {
        assert!(said.contains(part), "{said}\nlacks {part}");
    }
}

#[test]
fn check_names_the_smallest_size_and_exits_with_2() {
    let dir = workshop();
    let output = run(dir.path(), &["check", "profiles/ipv6.yaml", "--frame-size", "64"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("too short") && said.contains("66") && said.contains("80"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_mistake_is_one_line_with_its_place_and_exit_code_2() {
    let dir = workshop();
    fs::write(dir.path().join("bad.yaml"), "ports:\n- interface: g0\n  src_ip: 300.1.1.1\n")
        .expect("a file can be written");
    for arguments in [&["check", "bad.yaml"][..], &["pcap", "bad.yaml", "-o", "x.pcap"]] {
        let output = run(dir.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("bad.yaml:3:11") && said.contains("300.1.1.1"), "{said}");
    }
    assert!(!dir.path().join("x.pcap").exists());
}

#[test]
fn a_capture_or_an_endless_file_is_no_profile() {
    let dir = workshop();
    let output = run(dir.path(), &["check", "profiles/sample.pcap"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("this is a capture file"), "{}", text(&output.stderr));
    let output = run(dir.path(), &["check", "/dev/zero"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn pcap_writes_exactly_the_frames_asked_for() {
    let dir = workshop();
    let output = run(dir.path(), &["pcap", "profiles/imix.yaml", "-o", "out.pcap", "--count", "24", "--bidirectional"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let bytes = fs::read(dir.path().join("out.pcap")).expect("the file is there");
    let capture = plimsoll::wire::capture::parse(&bytes).expect("the file is a capture");
    assert_eq!(capture.frames.len(), 24);
    let mut sizes: Vec<_> = capture.frames.iter().map(|frame| frame.bytes.len()).collect();
    sizes.sort_unstable();
    assert_eq!(
        (sizes[0], sizes[13], sizes[14], sizes[21], sizes[22]),
        (60, 60, 566, 566, 1514),
        "7:4:1 each way, no FCS"
    );
}

#[test]
fn check_wants_an_observer_that_exists() {
    let dir = workshop();
    let profile = "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]\ndut: {observe: 'vsish:host'}\n";
    fs::write(dir.path().join("dut.yaml"), profile).expect("a file can be written");
    let output = run(dir.path(), &["check", "dut.yaml"]);
    assert_eq!(output.status.code(), Some(2), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn a_share_of_the_link_is_reckoned_with_an_assumed_speed_and_said() {
    let dir = workshop();
    let output = run(dir.path(), &["check", "profiles/udp-64.yaml", "--rate", "50%"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("7,440,476 frames/s") && said.contains("reckoned with a link of 10 Gb/s"), "{said}");
}

#[test]
fn check_refuses_what_run_would_refuse_whatever_the_nic() {
    let dir = workshop();
    for (profile, words) in [
        ("ports: [{interface: g0, default_gw: 10.1.0.1}]", "give the port src_ip"),
        ("ports: [{interface: g0, src_ip: 10.1.0.2}, {interface: g1, src_ip: 10.2.0.2}]", "default_gw or dest_mac"),
        (
            "ports: [{interface: g0, src_ip: 10.1.0.2, default_gw: 10.1.0.1}]\ndut: {observe: 'vsish:root@host/x'}",
            "PORTSET/PORT",
        ),
    ] {
        fs::write(dir.path().join("p.yaml"), profile).expect("a file can be written");
        for arguments in [&["check", "p.yaml"][..], &["pcap", "p.yaml", "-o", "x.pcap"]] {
            let output = run(dir.path(), arguments);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{profile}\n{said}{}", text(&output.stdout));
            assert!(said.contains(words), "{profile}\n{said}");
        }
    }
    let run_too = run(dir.path(), &["run", "p.yaml"]);
    assert_eq!(run_too.status.code(), Some(2), "{}", text(&run_too.stderr));
}

#[test]
fn check_writes_json_where_it_is_asked_to() {
    let dir = workshop();
    let output = run(dir.path(), &["check", "profiles/vm-dut.yaml", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON is printed");
    assert_eq!(document["schema"], "plimsoll-check/1");
    let size = &document["checked"][0];
    assert_eq!((&size["ports"][0]["name"], &size["ports"][0]["load_fps"]), (&"g0".into(), &1_225_490.into()));
    assert_eq!((&size["streams"][0]["port"], &size["streams"][0]["rx_port"]), (&"g0".into(), &"g1".into()));
    let output = run(dir.path(), &["check", "profiles/vm-dut.yaml", "--json", "check.json"]);
    assert!(text(&output.stdout).contains("is good"), "{}", text(&output.stderr));
    let refused = run(dir.path(), &["pcap", "profiles/udp-64.yaml", "-o", "x.pcap", "--json", "x.json"]);
    assert_eq!(refused.status.code(), Some(2), "nothing is ignored in silence: {}", text(&refused.stderr));
    let kept = fs::read(dir.path().join("check.json")).expect("the file is there");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&kept).expect("it is JSON"), document);
}

#[test]
fn a_search_does_not_list_what_it_refuses() {
    let dir = workshop();
    for command in ["ceiling", "sweep", "claim"] {
        let help = text(&run(dir.path(), &[command, "--help"]).stdout);
        assert!(help.contains("--frame-size"), "{help}");
        for (flag, value) in [("--rate", "5kpps"), ("--duration", "1s"), ("--count", "5")] {
            assert!(!help.contains(flag), "{command} lists {flag}\n{help}");
            let output = run(dir.path(), &[command, "profiles/udp-64.yaml", flag, value]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            let (_, instead) = said.rsplit_once("use ").expect("a remedy");
            for flag in instead.split_whitespace().filter(|word| word.starts_with("--")) {
                assert!(help.contains(&format!("{flag} <")), "{command} has no {flag}\n{said}");
            }
        }
    }
    assert!(text(&run(dir.path(), &["run", "--help"]).stdout).contains("--rate"));
}

#[test]
fn goals_that_cannot_be_are_refused_before_anything_is_opened() {
    let dir = workshop();
    for (arguments, words) in
        [(&["--width", "200%"][..], "width"), (&["--goal", "a=1%", "--goal", "a=2%"], "two goals are named 'a'")]
    {
        for command in ["ceiling", "sweep"] {
            let output = run(dir.path(), &[&[command, "profiles/udp-64.yaml"], arguments].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(words), "{said}");
        }
    }
}

#[test]
fn a_full_device_is_an_error_and_a_closed_pipe_is_none() {
    let dir = workshop();
    for arguments in [&["check", "profiles/udp-64.yaml"][..], &["check", "profiles/udp-64.yaml", "--json", "-"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
        let output = command(dir.path(), arguments).stdout(full).output().expect("the binary runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("cannot write standard output: No space left on device"), "{said}");
        let (reader, writer) = std::io::pipe().expect("a pipe can be made");
        drop(reader);
        let output = command(dir.path(), arguments).stdout(writer).output().expect("the binary runs");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    }
}

#[test]
fn the_load_of_bursts_in_a_chain_is_that_of_the_fastest() {
    let dir = workshop();
    let said = text(&run(dir.path(), &["check", "profiles/burst.yaml"]).stdout);
    // 1 Mpps bursts, one after the other, above a steady 10 kpps.
    assert!(said.contains("at most 1,010,000 frames/s") && !said.contains("4,010,000"), "{said}");
}

#[test]
fn the_profile_is_never_replaced_by_what_is_written() {
    let dir = workshop();
    let profile = dir.path().join("profiles/udp-64.yaml");
    fs::set_permissions(&profile, fs::Permissions::from_mode(0o666)).expect("permissions can be set");
    std::os::unix::fs::symlink("udp-64.yaml", dir.path().join("profiles/link")).expect("a link can be made");
    let before = fs::read(&profile).expect("the profile is there");
    for arguments in [
        ["pcap", "profiles/udp-64.yaml", "-o", "profiles/udp-64.yaml"],
        ["pcap", "profiles/link", "-o", "profiles/udp-64.yaml"],
        ["check", "profiles/udp-64.yaml", "--json", "profiles/link"],
        ["run", "profiles/udp-64.yaml", "--json", "profiles/udp-64.yaml"],
        ["ceiling", "profiles/udp-64.yaml", "--json", "profiles/udp-64.yaml"],
    ] {
        let output = run(dir.path(), &arguments);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("it is the profile itself"), "{arguments:?}: {said}");
        assert!(fs::read(&profile).expect("it is there") == before, "{arguments:?}");
    }
}

#[test]
fn a_result_is_never_replaced_by_its_report() {
    let dir = workshop();
    let result = dir.path().join("result.json");
    fs::copy("tests/golden/report/ceiling.json", &result).expect("a result can be copied");
    fs::set_permissions(&result, fs::Permissions::from_mode(0o666)).expect("permissions can be set");
    let before = fs::read(&result).expect("it is there");
    let report = |output: &str| run(dir.path(), &["report", "result.json", "-o", output, "--format", "html"]);
    let refused = report("./result.json");
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("it is a result that is read"), "{said}");
    assert!(fs::read(&result).expect("it is there") == before);
    let written = report("result.html");
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
}

#[test]
fn pcap_writes_to_standard_output() {
    let dir = workshop();
    let output = run(dir.path(), &["pcap", "profiles/udp-64.yaml", "-o", "-", "--count", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let capture = plimsoll::wire::capture::parse(&output.stdout).expect("standard output is a capture");
    assert_eq!(capture.frames.len(), 5);
    assert!(!dir.path().join("-").exists());
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_what_to_name_instead() {
    let dir = workshop();
    fs::write(dir.path().join("half.json"), "{\"schema\": \"plimsoll/1\"}").expect("a file can be written");
    for (arguments, words) in [
        (["check", "nothing.yaml"], "name a profile"),
        (["check", "profiles"], "name a profile"),
        (["report", "nothing.json"], "give a result file"),
        (["report", "half.json"], "give a result file"),
    ] {
        let output = run(dir.path(), &arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
