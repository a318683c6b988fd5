//! The one error type: operation + subject + cause + remedy, with a kind that decides the exit code.
//!
//! Any thread. An error is built where the most is known about it and passed up unchanged; nobody wraps it again.

use std::fmt;

/// What kind of failure it is; decides the process's exit code (CONTRACT: exit codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The command line or the profile is wrong (exit code 2).
    Usage,
    /// Privilege, driver, kernel, link, gateway: this machine or network cannot do it now (exit code 3).
    Environment,
    /// The user asked to stop (exit code 130).
    Interrupted,
}

impl ErrorKind {
    /// The process's exit code for this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Usage => 2,
            ErrorKind::Environment => 3,
            ErrorKind::Interrupted => 130,
        }
    }
}

/// `cannot {operation} {subject}: {cause}: {remedy}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    operation: String,
    subject: String,
    cause: Option<String>,
    remedy: Option<String>,
    errno: Option<i32>,
}

/// A result with the project's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind: `operation` is a verb ("bind"), `subject` what it was done to ("veth0 queue 0").
    pub fn new(kind: ErrorKind, operation: impl Into<String>, subject: impl Into<String>) -> Error {
        Error { kind, operation: operation.into(), subject: subject.into(), cause: None, remedy: None, errno: None }
    }

    /// A usage error (exit code 2).
    pub fn usage(operation: impl Into<String>, subject: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, operation, subject)
    }

    /// An environment error (exit code 3).
    pub fn environment(operation: impl Into<String>, subject: impl Into<String>) -> Error {
        Error::new(ErrorKind::Environment, operation, subject)
    }

    /// States the cause.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Error {
        self.cause = Some(cause.to_string());
        self
    }

    /// States the cause, an operating system error, and remembers its number for callers that fall back on it.
    #[must_use]
    pub fn os(mut self, cause: &std::io::Error) -> Error {
        self.errno = cause.raw_os_error();
        self.because(cause)
    }

    /// States what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Error {
        self.remedy = Some(remedy.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operating system's error number, where one caused it.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The cause's text, where one was stated.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}", self.operation, self.subject)?;
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, ": {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_operation_subject_cause_and_remedy() {
        let error = Error::environment("bind", "veth0 queue 0 in zero-copy mode")
            .os(&std::io::Error::from_raw_os_error(libc::EOPNOTSUPP))
            .remedy("use --backend xsk-copy");
        assert_eq!(
            error.to_string(),
            "cannot bind veth0 queue 0 in zero-copy mode: Operation not supported (os error 95): use --backend xsk-copy"
        );
        assert_eq!((error.kind().exit_code(), error.errno()), (3, Some(95)));
    }
}
