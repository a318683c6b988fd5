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
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), dir.path().join("plimsoll")).expect("the binary can be copied");
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
    let mut command = Command::new(dir.join("plimsoll"));
    command.args(arguments).current_dir(dir).env_remove("PLIMSOLL_LOG");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command.output().expect("the binary runs")
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
