//! Where text for people goes: results to standard output, progress and errors to standard error.
//!
//! The control plane's thread. The only writer of both streams, so that quiet, colour and pipes are decided once.

use std::{
    cell::OnceCell,
    io::{self, IsTerminal, Write},
};

use super::text::Style;
use crate::{error::Error, human};

/// The terminal, or what stands in for it.
#[derive(Debug)]
pub struct Console {
    quiet: bool,
    verbose: u8,
    color: bool,
    terminal: bool,
    /// The first error of standard output, for [`Console::failure`].
    failed: OnceCell<io::Error>,
}

impl Console {
    /// Decides once: quiet, how verbose, and colour (off in a pipe, with `--no-color` and with `NO_COLOR`).
    pub fn new(quiet: bool, verbose: u8, no_color: bool) -> Console {
        let terminal = io::stderr().is_terminal();
        let color =
            !no_color && io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Console { quiet, verbose, color, terminal, failed: OnceCell::new() }
    }

    /// Colour may be used in results.
    pub fn color(&self) -> bool {
        self.color
    }

    /// How results are drawn: colour, and the width of the terminal (`COLUMNS` counts more); a pipe has no width.
    pub fn style(&self) -> Style {
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let size = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col);
        let width = if io::stdout().is_terminal() { columns.or_else(size).filter(|&width| width > 0) } else { None };
        Style { color: self.color, width }
    }

    /// Progress may be drawn: standard error is a terminal and nobody asked for quiet.
    pub fn draws_progress(&self) -> bool {
        self.terminal && !self.quiet
    }

    /// How often `-v` was given.
    pub fn verbosity(&self) -> u8 {
        self.verbose
    }

    /// A line of the result, on standard output.
    pub fn result(&self, text: &str) {
        self.write(format!("{text}\n").as_bytes());
    }

    /// What kept a result from being written, if anything did: the command has not done its work then.
    pub fn failure(&self) -> Option<Error> {
        self.failed.get().map(|cause| Error::environment("write", "standard output").os(cause))
    }

    fn write(&self, bytes: &[u8]) {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            // A closed pipe (`| head`) is the reader's decision, not an error of ours.
            Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => drop(self.failed.set(cause)),
            _ => {}
        }
    }

    /// The outputs of a command that ran elsewhere, as they are, each on its own stream.
    pub fn relay(&self, stdout: &str, stderr: &str) {
        self.write(stdout.as_bytes());
        let end = if stderr.is_empty() || stderr.ends_with('\n') { "" } else { "\n" };
        let _ = write!(io::stderr().lock(), "{stderr}{end}");
    }

    /// A line on what is going on, on standard error; nothing when quiet.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", human::printable(text));
        }
    }

    /// The error that ends the command.
    pub fn error(&self, error: &Error) {
        let _ = writeln!(io::stderr().lock(), "plimsoll: {}", human::printable(&error.to_string()));
    }
}
