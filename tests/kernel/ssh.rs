//! The ssh observer against a real OpenSSH server in a namespace: what goes wrong is said, nothing hangs, nothing stays.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use plimsoll::{
    caveat::Code,
    dut::{
        channel::Channel,
        counters::Source,
        journal::Journal,
        observer::{Observer, Target},
        setting::{Kind, Setting},
        ssh::{Destination, Ssh},
        stages::Side,
        story::Story,
    },
    error::Result,
};
use tempfile::TempDir;

use crate::support::{
    frames::inside,
    harness::{Test, skip},
    netns::{Netns, Options, Running, Topology},
};

pub fn tests() -> Vec<Test> {
    crate::tests![
        a_dut_is_read_by_ssh_as_it_is_in_its_namespace,
        an_unknown_host_key_a_changed_one_and_a_refused_key_are_told_apart,
        a_hanging_command_is_ended_on_both_sides,
        a_dut_that_vanishes_in_mid_trial_is_a_caveat_and_is_read_again_when_it_is_back,
        a_setting_is_changed_and_put_back_by_ssh,
        a_dut_that_vanishes_while_its_setting_is_changed_gets_it_back_later,
    ]
}

/// Time within which any single thing must end, come what may.
const BOUND: Duration = Duration::from_secs(20);

/// A DUT with an OpenSSH server, and a client configuration that knows it.
struct Server {
    topology: Topology,
    dir: TempDir,
    daemon: Option<Running>,
}

impl Server {
    fn start() -> Server {
        if !std::path::Path::new("/usr/sbin/sshd").exists() {
            skip("sshd", "needs openssh-server");
        }
        let topology = Topology::sink(Options { queues: 4, ..Options::default() });
        topology.generator.sh("ip addr add 10.1.0.2/24 dev g0");
        let mut server = Server { topology, dir: TempDir::new().expect("a scratch folder can be made"), daemon: None };
        for key in ["host", "other_host", "user", "stranger"] {
            server.sh(&format!("ssh-keygen -q -t ed25519 -N '' -C '' -f {key}"));
        }
        server.sh("cp user.pub authorized_keys");
        let dir = server.dir.path().display().to_string();
        let daemon = format!(
            "ListenAddress 10.1.0.1:22\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized_keys\nStrictModes no\n\
             PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        );
        server.write("sshd_config", &daemon);
        server.configure("host", "user");
        server.listen();
        server
    }

    fn sh(&self, line: &str) -> String {
        self.topology.generator.sh(&format!("cd {} && {line}", self.dir.path().display()))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).expect("the folder can be written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The client knows the DUT by `host_key` and shows it `key`.
    fn configure(&self, host_key: &str, key: &str) {
        let known = if host_key.is_empty() {
            String::new()
        } else {
            format!("10.1.0.1 {}", self.sh(&format!("cat {host_key}.pub")))
        };
        self.write("known_hosts", &known);
        let dir = self.dir.path().display();
        self.write(
            "ssh_config",
            &format!(
                "Host dut\n HostName 10.1.0.1\n User root\n IdentitiesOnly yes\n IdentityAgent none\n IdentityFile {dir}/{key}\n \
                 UserKnownHostsFile {dir}/known_hosts\n GlobalKnownHostsFile /dev/null\n"
            ),
        );
    }

    /// Starts the daemon. Its folder for privilege separation is on a file system of its own, not the host's.
    fn listen(&mut self) {
        let config = self.path("sshd_config").display().to_string();
        let line =
            format!("sh -c 'mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f {config}'");
        self.daemon = Some(self.topology.dut.spawn(&line));
        let begun = Instant::now();
        while !self.topology.dut.sh("ss -Hltn").contains("10.1.0.1:22") {
            assert!(begun.elapsed() < BOUND, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The DUT loses power: no process and no packet says good-bye.
    fn lose_power(&mut self) {
        self.topology.dut.sh("ip link set d0 down");
        self.daemon = None;
        for pid in self.pids() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    fn come_back(&mut self) {
        self.topology.dut.sh("ip link set d0 up");
        self.listen();
    }

    /// Processes inside the DUT.
    fn pids(&self) -> Vec<rustix::process::Pid> {
        let output = std::process::Command::new("ip")
            .args(["netns", "pids", self.topology.dut.name()])
            .output()
            .expect("ip runs");
        let pids = String::from_utf8_lossy(&output.stdout).into_owned();
        pids.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)).collect()
    }

    fn ssh(&self) -> Result<Ssh> {
        let config = self.path("ssh_config");
        within_bound(&self.topology.generator, move || Ssh::open(Destination::parse("dut")?, Some(&config)))
    }

    fn observer(&self) -> Observer {
        Observer::over(Box::new(self.ssh().expect("the DUT can be reached")), vec!["d0".into()])
    }
}

/// Runs `act` inside the generator, where the client is; it must end in time.
fn within_bound<T: Send + 'static>(generator: &Netns, act: impl FnOnce() -> T + Send + 'static) -> T {
    let begun = Instant::now();
    let result = inside(generator, act);
    assert!(begun.elapsed() < BOUND, "took {:?}", begun.elapsed());
    result
}

fn a_dut_is_read_by_ssh_as_it_is_in_its_namespace() {
    let server = Server::start();
    let observer = server.observer();
    let label = observer.label();
    let (by_ssh, observer) = within_bound(&server.topology.generator, move || (observer.observe(), observer));
    let by_ssh = by_ssh.expect("the DUT answers");
    let local = Observer::open(&Target::Netns(server.topology.dut.name().into()), vec!["d0".into()]);
    let local = local.and_then(|observer| observer.observe()).expect("the namespace can be read");
    assert_eq!(label, "ssh dut");
    assert!(by_ssh.doubts.is_empty(), "{:?}", by_ssh.doubts);
    assert_eq!(by_ssh.interfaces["d0"].driver.as_deref(), Some("veth"));
    let names = |snapshot: &plimsoll::dut::counters::Snapshot| {
        let of_interest = |source| matches!(source, Source::Link | Source::Mib | Source::Ethtool);
        snapshot.counters.keys().filter(|c| of_interest(c.source)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&by_ssh), names(&local));
    let folders = || {
        let own = format!("plimsoll-ssh-{}-", std::process::id());
        let entries = std::fs::read_dir(std::env::temp_dir()).expect("it can be read");
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
    };
    assert_eq!(folders(), 1);
    within_bound(&server.topology.generator, move || drop(observer));
    assert_eq!(folders(), 0, "the connection's folder is gone");
    let left = std::process::Command::new("ip")
        .args(["netns", "pids", server.topology.generator.name()])
        .output()
        .expect("ip runs");
    assert!(left.stdout.is_empty(), "the shared connection has ended: {}", String::from_utf8_lossy(&left.stdout));
}

fn an_unknown_host_key_a_changed_one_and_a_refused_key_are_told_apart() {
    let server = Server::start();
    for (host_key, key, said) in [
        ("", "user", "its host key is unknown: connect once by hand and check the key: ssh dut"),
        ("other_host", "user", "its host key is not the one that is known"),
        ("host", "stranger", "it refused our key (only keys are used): ssh-copy-id dut"),
    ] {
        server.configure(host_key, key);
        let error = server.ssh().expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
        assert!(error.starts_with("cannot connect to the DUT by ssh dut"), "{error}");
    }
    server.configure("host", "user");
    server.ssh().expect("with the right keys it connects");
}

fn a_hanging_command_is_ended_on_both_sides() {
    let server = Server::start();
    let ssh = server.ssh().expect("the DUT can be reached");
    let (error, ssh) =
        within_bound(&server.topology.generator, move || (ssh.run("sleep 987654", Duration::from_secs(1), None), ssh));
    let error = error.expect_err("it hangs").to_string();
    assert!(error.contains("nothing came within 1 s"), "{error}");
    let begun = Instant::now();
    let hangs = || server.topology.dut.sh("ps -eo pid,args").contains("sleep 987654");
    while hangs() {
        assert!(begun.elapsed() < BOUND, "it still hangs on the DUT");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (again, ssh) =
        within_bound(&server.topology.generator, move || (ssh.run("echo on", Duration::from_secs(5), None), ssh));
    assert_eq!(again.expect("the next script runs").stdout, "on\n");
    within_bound(&server.topology.generator, move || drop(ssh));
}

fn a_dut_that_vanishes_in_mid_trial_is_a_caveat_and_is_read_again_when_it_is_back() {
    let mut server = Server::start();
    let observer = server.observer().with_limit(Duration::from_secs(4));
    let (before, observer) = within_bound(&server.topology.generator, move || (observer.observe(), observer));
    server.lose_power();
    let (after, observer) = within_bound(&server.topology.generator, move || (observer.observe(), observer));
    assert!(before.is_ok() && after.is_err());
    let story = Story::of(before, after, &["d0".into()], Side::Dut);
    assert_eq!((story.moved.len(), story.caveats.len()), (0, 1));
    assert_eq!(story.caveats[0].code, Code::ObserverFailed);
    assert!(story.caveats[0].text.contains("ssh dut"), "{:?}", story.caveats);

    server.come_back();
    // The first connections may meet what the kernel still believes of the neighbour that was away.
    let (begun, mut observer) = (Instant::now(), observer);
    let again = loop {
        let (again, same) = within_bound(&server.topology.generator, move || (observer.observe(), observer));
        observer = same;
        match again {
            Ok(again) => break again,
            Err(error) => assert!(begun.elapsed() < BOUND, "the DUT is back, and yet: {error}"),
        }
    };
    assert!(again.doubts.is_empty());
    within_bound(&server.topology.generator, move || drop(observer));
}

fn queues(server: &Server) -> (Setting, Journal) {
    let setting = Setting { kind: Kind::Queues, interface: "d0".into(), command: None };
    (setting, Journal::in_folder(server.path("state")))
}

fn a_setting_is_changed_and_put_back_by_ssh() {
    let server = Server::start();
    let (setting, journal) = queues(&server);
    let observer = Arc::new(server.observer());
    let entries = journal.clone();
    let seen = within_bound(&server.topology.generator, move || {
        let held = journal.take("ssh:dut", observer, setting)?;
        let changed = held.set(2)?;
        let refused = held.set(100).map_err(|error| error.to_string());
        let original = held.original();
        held.restore().map(|()| (original, changed, refused))
    });
    let (original, changed, refused) = seen.expect("the DUT obeys");
    assert_eq!(changed, 2);
    assert!(refused.expect_err("it has four queues").contains("the queue count of d0 by ssh dut to 100"));
    assert!(entries.entries().is_empty());
    let now = Setting { kind: Kind::Queues, interface: "d0".into(), command: None };
    let local =
        Observer::open(&Target::Netns(server.topology.dut.name().into()), vec!["d0".into()]).expect("it is there");
    assert_eq!(now.value(&local).expect("it says"), original);
}

fn a_dut_that_vanishes_while_its_setting_is_changed_gets_it_back_later() {
    let mut server = Server::start();
    let (setting, journal) = queues(&server);
    let local =
        Observer::open(&Target::Netns(server.topology.dut.name().into()), vec!["d0".into()]).expect("it is there");
    let original = setting.value(&local).expect("it says");
    let observer = Arc::new(server.observer());
    let (held, changing) = (journal.clone(), setting.clone());
    let held = within_bound(&server.topology.generator, move || held.take("ssh:dut", observer, changing))
        .expect("the DUT answers");
    assert_eq!(held.set(2).expect("it obeys"), 2);
    server.lose_power();
    let begun = Instant::now();
    let error = inside(&server.topology.generator, move || held.restore()).expect_err("the DUT is gone").to_string();
    assert!(begun.elapsed() < Duration::from_secs(60) && error.contains("ethtool -L d0 combined"), "{error}");
    assert_eq!(journal.entries().len(), 1, "what is to be put back is not forgotten");

    server.come_back();
    // This process lives, so the entry is not taken for a killed run's: the next to take the setting puts it back.
    let observer = Arc::new(server.observer());
    let taker = journal.clone();
    let done = within_bound(&server.topology.generator, move || taker.take("ssh:dut", observer, setting)?.restore());
    done.expect("the DUT is back");
    let now = Setting { kind: Kind::Queues, interface: "d0".into(), command: None };
    assert_eq!(now.value(&local).expect("it says"), original);
    assert!(journal.entries().is_empty());
}
