//! MAC addresses: what a port sends from, what a gateway resolves to.
//!
//! Pure; any thread.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A 48-bit MAC address, in wire order. Written `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Every station.
    pub const BROADCAST: Mac = Mac([0xFF; 6]);

    /// The group bit is set: multicast or broadcast, so never a source.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is not a MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address: write six hexadecimal bytes, as in 02:00:00:00:00:01")]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    /// Six bytes of one or two hexadecimal digits, separated by `:` or `-`.
    fn from_str(text: &str) -> Result<Mac, ParseMacError> {
        let error = || ParseMacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.trim().split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(error)?;
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| !part.starts_with('+')).ok_or_else(error)?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Mac(bytes)) }
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

impl TryFrom<String> for Mac {
    type Error = ParseMacError;

    fn try_from(text: String) -> Result<Mac, ParseMacError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_survives_being_written_and_read() {
        let mac = Mac([0x02, 0, 0xAB, 0xCD, 0xEF, 0x7F]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("2-0-ab-CD-ef-7f".parse(), Ok(mac));
    }

    #[test]
    fn what_is_not_a_mac_is_refused() {
        for text in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:1g", "020:0:0:0:0:1", "+1:0:0:0:0:1"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
