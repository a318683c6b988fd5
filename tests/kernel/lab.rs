//! The namespace lab as a user builds it.

use std::process::{Command, Stdio};

use crate::support::{
    harness::{Test, skip},
    run::{Outcome, Plimsoll},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        the_lab_carries_ipv6_and_is_not_rebuilt_under_what_runs_in_it,
        how_a_model_behaves_is_refused_without_one,
    ]
}

fn lab(arguments: &[&str]) -> Outcome {
    Plimsoll::run_here(&[&["lab"], arguments].concat())
}

/// Takes the lab down, also on a panic.
struct Down;

impl Drop for Down {
    fn drop(&mut self) {
        lab(&["down"]);
    }
}

fn the_lab_carries_ipv6_and_is_not_rebuilt_under_what_runs_in_it() {
    // It has fixed names, so that there is one on a machine; somebody's is not ours to remove.
    if !lab(&["status"]).expect_code(0).stdout.contains("the lab is down") {
        skip("idle", "a lab is up on this machine");
    }
    let down = Down;
    lab(&["up"]).expect_code(0);
    let arguments = [
        "--netns",
        "plimsoll-gen",
        "run",
        "profiles/ipv6.yaml",
        "--rate",
        "2kpps",
        "--count",
        "500",
        "--max-loss",
        "0",
    ];
    Plimsoll::run_here(&arguments).expect_code(0);

    let mut sleeper = Command::new("ip")
        .args(["netns", "exec", "plimsoll-gen", "sleep", "60"])
        .stdout(Stdio::null())
        .spawn()
        .expect("iproute2 is there");
    let pid = sleeper.id().to_string();
    let inside = || Command::new("ip").args(["netns", "pids", "plimsoll-gen"]).output().expect("it runs").stdout;
    while !String::from_utf8_lossy(&inside()).contains(&pid) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let same = lab(&["up"]).expect_code(0);
    let other = lab(&["up", "--mtu", "9000"]).expect_code(3);
    assert!(sleeper.try_wait().expect("it can be asked").is_none(), "the sleeper was killed\n{}", other.text());
    for word in ["sleep", &pid, "plimsoll-gen", "lab down"] {
        assert!(other.stderr.contains(word), "{word}\n{}", other.text());
    }
    assert!(same.stdout.contains(": up"), "{}", same.text());
    // A copy where anybody can run it.
    let folder = tempfile::tempdir().expect("a scratch folder");
    let copy = format!("chmod 755 {0} && cp {1} {0}/plimsoll", folder.path().display(), Plimsoll::binary());
    assert!(Command::new("sh").args(["-c", &copy]).status().is_ok_and(|status| status.success()), "{copy}");
    let nobody = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(folder.path().join("plimsoll"))
        .args(["lab", "status"])
        .output()
        .expect("setpriv is there");
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(nobody.status.code() == Some(3) && said.contains("need root"), "{said}");
    drop(down);
    sleeper.wait().expect("it was ended with the lab");
    assert!(lab(&["status"]).expect_code(0).stdout.contains("the lab is down"));
}

fn how_a_model_behaves_is_refused_without_one() {
    for (arguments, word) in [
        (&["--serve", "20kpps"][..], "--dut model"),
        (&["--loss", "1"], "--dut model"),
        (&["--vm", "--latency", "1ms"], "--dut model"),
        (&["--dut", "model", "--loss", "150"], "0 to 100"),
        (&["--dut", "model", "--lossy", "10kpps..5kpps"], "less than"),
    ] {
        let refused = lab(&[&["up"], arguments].concat()).expect_code(2);
        assert!(refused.stderr.contains(word), "{arguments:?}: {}", refused.text());
    }
}
