//! How a sink on the DUT tells an observer what it has received: a small file that the observer's script reads with everything else.
//!
//! The file's name says the network namespace and the interface, so that several sinks of one machine are kept apart. It is written by
//! `plimsoll sink`, whole at every change, and removed at its end; one left by a killed sink stands still and so counts nothing.

use crate::error::{Error, Result};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// How often a sink writes: an observer's reading is at most this old.
pub const WRITE_EVERY_NS: u64 = 20_000_000;

/// The file of one sink.
#[derive(Debug)]
pub struct SinkFile {
    path: PathBuf,
    written: Option<u64>,
}

impl SinkFile {
    /// The file for a sink on `interface` of this thread's network namespace.
    ///
    /// # Errors
    /// Environment: `/run` cannot be written.
    pub fn create(interface: &str) -> Result<SinkFile> {
        let namespace = fs::read_link("/proc/thread-self/ns/net").or_else(|_| fs::read_link("/proc/self/ns/net"));
        let namespace = namespace.map_err(|error| Error::environment("tell", "the network namespace").os(&error))?;
        let path = PathBuf::from(format!("/run/plimsoll-sink.{}.{interface}", namespace.display()));
        let mut file = SinkFile { path, written: None };
        file.write(0)?;
        Ok(file)
    }

    /// Writes how many frames were received so far, if that changed.
    ///
    /// # Errors
    /// Environment: the file cannot be written.
    pub fn write(&mut self, received_frames: u64) -> Result<()> {
        if self.written == Some(received_frames) {
            return Ok(());
        }
        // Named apart, so that no observer reads a half-written one.
        let temporary = self.path.with_file_name(format!(".plimsoll-sink.{}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&temporary)?;
            writeln!(file, "received {received_frames}")?;
            fs::rename(&temporary, &self.path)
        };
        write().map_err(|error| {
            Error::environment("write", self.path.display().to_string()).os(&error).remedy("run the sink as root")
        })?;
        self.written = Some(received_frames);
        Ok(())
    }
}

impl Drop for SinkFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
