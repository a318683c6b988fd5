//! Watches interfaces: carrier lost and back, renamed, removed.
//!
//! Runs one thread of its own with a netlink subscription; it ends within 100 ms of the [`LinkWatch`] being dropped. Readers
//! look at an atomic, so a worker may ask [`LinkWatch::is_up`] as often as it likes.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use futures::StreamExt;
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkFlags, LinkMessage},
    },
};

use super::{link::Link, netlink};
use crate::{
    clock::{self, Instant},
    error::{Error, Result},
};

/// Something that happened to a watched interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEvent {
    /// When we heard of it.
    pub at: Instant,
    /// Which interface.
    pub index: u32,
    /// What.
    pub change: LinkChange,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkChange {
    /// Carrier lost, or set down.
    Down,
    /// Up with carrier again.
    Up,
    /// It has a new name; the run goes on.
    Renamed(String),
    /// It was deleted or moved to another namespace.
    Removed,
}

#[derive(Debug)]
struct Watched {
    is_up: AtomicBool,
    is_removed: AtomicBool,
    name: Mutex<String>,
}

#[derive(Debug, Default)]
struct Shared {
    links: BTreeMap<u32, Watched>,
    events: Mutex<Vec<LinkEvent>>,
    stop: AtomicBool,
}

/// The watch over some interfaces of the namespace of the thread that started it.
#[derive(Debug)]
pub struct LinkWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Starts watching. The state at this moment is known when it returns; nothing after it is missed.
    ///
    /// # Errors
    /// Netlink or the thread could not be started; an interface is already gone.
    pub fn start(indexes: &[u32]) -> Result<LinkWatch> {
        let failed = |error: &io::Error| Error::environment("watch", "the links").os(error);
        let mut shared = Shared::default();
        for &index in indexes {
            let watched = Watched { is_up: false.into(), is_removed: false.into(), name: Mutex::new(String::new()) };
            shared.links.insert(index, watched);
        }
        let shared = Arc::new(shared);
        let runtime = netlink::runtime().map_err(|error| failed(&error))?;
        // Subscribe first, then read the state: a change in between is heard.
        let subscription = {
            let _inside = runtime.enter();
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link]).map_err(|error| failed(&error))?
        };
        for (&index, watched) in &shared.links {
            let link = Link::by_index(index)?;
            watched.is_up.store(link.has_carrier, Ordering::Relaxed);
            *watched.name.lock().expect("nobody panics with it held") = link.name;
        }
        let thread = std::thread::Builder::new()
            .name("link-watch".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || {
                    runtime.block_on(async {
                        let (connection, _handle, mut messages) = subscription;
                        tokio::spawn(connection);
                        while !shared.stop.load(Ordering::Relaxed) {
                            // The time-out bounds how long a stop waits.
                            match tokio::time::timeout(Duration::from_millis(50), messages.next()).await {
                                Ok(Some((message, _))) => shared.hear(message),
                                Ok(None) => break,
                                Err(_) => {}
                            }
                        }
                    });
                }
            })
            .map_err(|error| failed(&error))?;
        Ok(LinkWatch { shared, thread: Some(thread) })
    }

    /// Up with carrier. `false` for an interface that is not watched or gone.
    pub fn is_up(&self, index: u32) -> bool {
        self.shared.links.get(&index).is_some_and(|watched| watched.is_up.load(Ordering::Relaxed))
    }

    /// Deleted, or moved to another namespace.
    pub fn is_removed(&self, index: u32) -> bool {
        self.shared.links.get(&index).is_some_and(|watched| watched.is_removed.load(Ordering::Relaxed))
    }

    /// What happened since the last call, in order.
    pub fn take_events(&self) -> Vec<LinkEvent> {
        std::mem::take(&mut self.shared.events.lock().expect("nobody panics with it held"))
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only on a bug, which its own message has told.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn hear(&self, message: NetlinkMessage<RouteNetlinkMessage>) {
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => self.changed(&link),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => self.removed(link.header.index),
            // Messages were lost: look ourselves.
            NetlinkPayload::Overrun(_) => self.look(),
            _ => {}
        }
    }

    fn changed(&self, message: &LinkMessage) {
        let flags = message.header.flags;
        let name = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        });
        // Bridges announce their ports' changes in messages of their own family, without the flags we look for.
        if message.header.interface_family == rtnetlink::packet_route::AddressFamily::Unspec {
            self.is(message.header.index, flags.contains(LinkFlags::Up | LinkFlags::LowerUp), name);
        }
    }

    fn look(&self) {
        for &index in self.links.keys() {
            match Link::by_index(index) {
                Ok(link) => self.is(index, link.has_carrier, Some(&link.name)),
                Err(error) if error.errno() == Some(libc::ENODEV) => self.removed(index),
                Err(error) => tracing::debug!(%error, "lost netlink messages, and cannot look"),
            }
        }
    }

    fn is(&self, index: u32, is_up: bool, name: Option<&str>) {
        let Some(watched) = self.links.get(&index) else { return };
        if watched.is_up.swap(is_up, Ordering::Relaxed) != is_up {
            self.push(index, if is_up { LinkChange::Up } else { LinkChange::Down });
        }
        let mut known = watched.name.lock().expect("nobody panics with it held");
        if let Some(name) = name.filter(|name| *name != *known) {
            name.clone_into(&mut known);
            self.push(index, LinkChange::Renamed(name.to_owned()));
        }
    }

    fn removed(&self, index: u32) {
        let Some(watched) = self.links.get(&index) else { return };
        watched.is_up.store(false, Ordering::Relaxed);
        if !watched.is_removed.swap(true, Ordering::Relaxed) {
            self.push(index, LinkChange::Removed);
        }
    }

    fn push(&self, index: u32, change: LinkChange) {
        self.events.lock().expect("nobody panics with it held").push(LinkEvent { at: clock::now(), index, change });
    }
}
