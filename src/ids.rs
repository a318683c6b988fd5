//! Identifiers: small numbers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A port of the profile, by position.
    PortId(u16), "port "
);
id!(
    /// A stream of the profile, by position, unique over all ports; carried in every signature.
    StreamId(u16), "stream "
);
id!(
    /// A queue of a network interface.
    QueueId(u32), "queue "
);
id!(
    /// A worker of a port, 0…N−1. Worker w of N sends the frames with index ≡ w (mod N).
    WorkerId(u16), "worker "
);
