//! What Plimsoll may change on a DUT: the RX ring and the number of queues. Set, settle, read back.
//!
//! Control plane. Drivers round (vmxnet3 makes 96 of 80 and reports success) or refuse, so the value read back is the truth and the exit
//! status only a hint. A change bounces the link on some drivers: setting waits until the carrier is back. Putting the old value back,
//! whatever happens, is the journal's work.

use super::channel::{Output, ProcessChannel, first_line, quoted};
use super::counters::InterfaceFacts;
use super::ethtool;
use super::observer::Observer;
use crate::dut::channel::Channel;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::time::Duration;

/// How long a change may take, the link's return included.
pub(super) const SET_LIMIT: Duration = Duration::from_secs(20);

/// A setting of the DUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Descriptors of the RX ring (`ethtool -G IF rx N`).
    RxRing,
    /// Receive queues (`ethtool -L IF combined N` or `rx N`).
    Queues,
}

impl Kind {
    /// Its name in files and axes: `rx_ring`, `queues`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::RxRing => "rx_ring",
            Kind::Queues => "queues",
        }
    }

    fn of(self, facts: &InterfaceFacts) -> Option<u64> {
        match self {
            Kind::RxRing => facts.rx_ring,
            Kind::Queues => facts.rx_queues,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::RxRing => "RX ring",
            Kind::Queues => "queue count",
        })
    }
}

/// One setting of one interface, and how it is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// What.
    pub kind: Kind,
    /// The DUT's interface.
    pub interface: String,
    /// A command on this host that changes it (the profile's `set_ring:`), with `{interface}` and `{ring}`; `None`: ethtool on the DUT.
    pub command: Option<String>,
}

impl Setting {
    /// The value in use, read from the DUT.
    ///
    /// # Errors
    /// Environment: the DUT does not answer or does not say.
    pub fn value(&self, observer: &Observer) -> Result<u64> {
        let snapshot = observer.observe()?;
        // A hypervisor's port has another name than the guest's interface.
        let facts = snapshot.interfaces.get(&self.interface).or_else(|| snapshot.interfaces.values().next());
        facts.and_then(|facts| self.kind.of(facts)).ok_or_else(|| {
            Error::environment("read", self.subject(observer)).because("the DUT does not say what is set").remedy(
                "a driver without `ethtool -g`/`-l` has nothing to sweep; a command: observer must print rx_ring: N",
            )
        })
    }

    /// Changes it, waits for the link, and returns the value that is then in use.
    ///
    /// `hold` stays open in the process that makes the change (see [`Channel::run`]).
    ///
    /// # Errors
    /// Environment: the DUT does not answer, or refused and kept another value.
    pub fn set(&self, observer: &Observer, value: u64, hold: Option<&File>) -> Result<u64> {
        let (output, now) = match &self.command {
            Some(command) => {
                let line =
                    command.replace("{interface}", &quoted(&self.interface)).replace("{ring}", &value.to_string());
                let output = ProcessChannel::local().run(&line, SET_LIMIT, hold)?;
                let now = self.value(observer)?;
                (output, now)
            }
            None => self.set_by_ethtool(observer, value, hold)?,
        };
        if output.status != 0 && now != value {
            let message = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
            return Err(Error::environment("set", format!("{} to {value}", self.subject(observer)))
                .because(format!("{} (it is {now})", first_line(message)))
                .remedy(match &self.command {
                    Some(command) => format!("try what the profile says: {command}"),
                    None => "choose a value that the driver accepts: `ethtool -g` and `-l` show the maximum".to_owned(),
                }));
        }
        Ok(now)
    }

    fn set_by_ethtool(&self, observer: &Observer, value: u64, hold: Option<&File>) -> Result<(Output, u64)> {
        let channel = observer.channel().ok_or_else(|| {
            Error::usage("set", self.subject(observer))
                .because("this observer only reads")
                .remedy("add `set_ring: COMMAND` to the profile's dut: entry, or observe by netns:, ssh: or vm:")
        })?;
        let output = channel.run(&self.script(value), SET_LIMIT, hold)?;
        let (messages, status, rings, channels) = split(&output.stdout);
        let mut facts = InterfaceFacts::default();
        ethtool::rings(rings, &mut facts);
        ethtool::channels(channels, &mut facts);
        let now = self.kind.of(&facts).ok_or_else(|| {
            let said = if messages.trim().is_empty() { &output.stderr } else { messages };
            Error::environment("set", self.subject(observer))
                .because(first_line(said))
                .remedy("is ethtool on the DUT, and does the driver have this setting?")
        })?;
        Ok((Output { status, stdout: messages.to_string(), stderr: String::new() }, now))
    }

    /// Changes by ethtool, waits up to ten seconds for the carrier, and prints what is set then.
    fn script(&self, value: u64) -> String {
        let name = quoted(&self.interface);
        let change = match self.kind {
            Kind::RxRing => format!("ethtool -G {name} rx {value} 2>&1"),
            // Not every driver has combined queues: the maximum says which kind it has.
            Kind::Queues => format!(
                "kind=combined; ethtool -l {name} 2>/dev/null | {{ while read -r k v; do [ \"$k\" = Combined: ] && break; done; \
                 case $v in ''|0|n/a) exit 1;; esac; }} || kind=rx\nethtool -L {name} $kind {value} 2>&1"
            ),
        };
        format!(
            "LC_ALL=C PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin; export LC_ALL PATH\n\
             {change}\necho \"@@plimsoll $?\"\n\
             n=0; while [ $n -lt 100 ]; do c=0; read -r c </sys/class/net/{name}/carrier 2>/dev/null; [ \"$c\" = 1 ] && break\n\
             n=$((n+1)); sleep 0.1 2>/dev/null || {{ sleep 1; n=$((n+9)); }}; done\n\
             ethtool -g {name} 2>/dev/null\necho '@@plimsoll -'\nethtool -l {name} 2>/dev/null\nexit 0\n"
        )
    }

    /// `RX ring of eth0 by ssh root@dut`, for messages.
    pub fn subject(&self, observer: &Observer) -> String {
        format!("the {} of {} by {}", self.kind, self.interface, observer.label())
    }

    /// The command that a person would use to set it by hand.
    pub fn by_hand(&self, value: u64) -> String {
        match (&self.command, self.kind) {
            (Some(command), _) => command.replace("{interface}", &self.interface).replace("{ring}", &value.to_string()),
            (None, Kind::RxRing) => format!("ethtool -G {} rx {value}", self.interface),
            (None, Kind::Queues) => format!("ethtool -L {} combined {value}", self.interface),
        }
    }
}

/// Messages of the change, its status, and what `ethtool -g` and `-l` printed afterwards.
fn split(text: &str) -> (&str, i32, &str, &str) {
    let (messages, rest) = text.split_once("@@plimsoll ").unwrap_or((text, ""));
    let (status, rest) = rest.split_once('\n').unwrap_or((rest, ""));
    let (rings, channels) = rest.split_once("@@plimsoll -\n").unwrap_or((rest, ""));
    (messages, status.trim().parse().unwrap_or(-1), rings, channels)
}

#[cfg(test)]
mod tests {
    use super::super::observer::Target;
    use super::*;

    #[test]
    fn an_answer_is_split_into_message_status_rings_and_channels() {
        let text = "netlink error: Invalid argument\n@@plimsoll 1\nCurrent hardware settings:\nRX: 64\n@@plimsoll -\nCombined: 1\n";
        assert_eq!(
            split(text),
            ("netlink error: Invalid argument\n", 1, "Current hardware settings:\nRX: 64\n", "Combined: 1\n")
        );
        assert_eq!(split("sh: ethtool: not found\n").1, -1);
    }

    #[test]
    fn an_observer_that_only_reads_asks_for_a_command() {
        let observer = Observer::open(&Target::Command("echo rx_ring: 64".into()), vec!["ge0".into()]).unwrap();
        let setting = Setting { kind: Kind::RxRing, interface: "ge0".into(), command: None };
        assert_eq!(setting.value(&observer).unwrap(), 64);
        assert!(setting.set(&observer, 128, None).unwrap_err().to_string().contains("set_ring"));
    }

    #[test]
    fn a_command_sets_and_the_observer_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ring");
        std::fs::write(&file, "rx_ring: 256\n").unwrap();
        let path = quoted(&file.display().to_string());
        let observer = Observer::open(&Target::Command(format!("cat {path}")), vec!["ge0".into()]).unwrap();
        let set = |command: String| Setting { kind: Kind::RxRing, interface: "ge0".into(), command: Some(command) };
        assert_eq!(set(format!("echo rx_ring: {{ring}} > {path}")).set(&observer, 512, None).unwrap(), 512);
        // A DUT that rounds is believed; one that refuses is not.
        assert_eq!(set(format!("echo rx_ring: 96 > {path}")).set(&observer, 80, None).unwrap(), 96);
        let error = set("echo no >&2; exit 1".into()).set(&observer, 4096, None).unwrap_err().to_string();
        assert!(error.contains("to 4096: no (it is 96)"), "{error}");
    }

    #[test]
    fn a_dut_that_does_not_say_what_is_set_is_an_error() {
        let observer = Observer::open(&Target::Command("echo drops: 64".into()), vec!["ge0".into()]).unwrap();
        let setting = Setting { kind: Kind::RxRing, interface: "ge0".into(), command: Some("true".into()) };
        assert!(setting.value(&observer).unwrap_err().to_string().contains("does not say"));
    }
}
