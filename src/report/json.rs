//! The result file as JSON: read, render, and save so that the file on disk is complete at every moment.
//!
//! The control plane's thread. A save writes a new file beside the old one and renames it over it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::result::{ResultFile, SCHEMA};
use crate::error::{Error, Result};

/// The result as one JSON document with a line end.
pub fn render(file: &ResultFile) -> Vec<u8> {
    pretty(file)
}

/// Any document of ours as JSON with a line end.
pub fn pretty(document: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document).expect("only texts are keys, and no number is one JSON lacks");
    bytes.push(b'\n');
    bytes
}

/// Reads a result file.
///
/// # Errors
/// It cannot be read, is not a result file, or has a schema that this version does not know.
pub fn read(path: &Path) -> Result<ResultFile> {
    let error = || Error::usage("read", path.display().to_string());
    let remedy = || format!("give a result file that --json wrote (`{SCHEMA}`)");
    let text = fs::read_to_string(path).map_err(|cause| error().os(&cause).remedy(remedy()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|cause| error().because(cause).remedy(remedy()))?;
    let schema = value.get("schema").and_then(|schema| schema.as_str());
    if schema != Some(SCHEMA) {
        let cause = schema.map_or("it has no `schema`".to_owned(), |schema| format!("its schema is `{schema}`"));
        return Err(error().because(cause).remedy(remedy()));
    }
    serde_json::from_value(value).map_err(|cause| error().because(cause).remedy(remedy()))
}

/// Where `--json` asked the result to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saver {
    /// Standard output, once, at the end.
    Stdout,
    /// A file, complete after every trial.
    File(PathBuf),
}

impl Saver {
    /// `-` means standard output.
    pub fn new(path: &Path) -> Saver {
        if path.as_os_str() == "-" { Saver::Stdout } else { Saver::File(path.to_owned()) }
    }

    /// Proves before anything is sent that the result can be written where it shall go.
    ///
    /// # Errors
    /// The folder is not there or not writable.
    pub fn prove(&self) -> Result<()> {
        let Saver::File(path) = self else { return Ok(()) };
        let error = |cause: io::Error| {
            Error::environment("write", path.display().to_string())
                .os(&cause)
                .remedy("name a file in a folder that can be written")
        };
        match fs::metadata(path) {
            Ok(_) => OpenOptions::new().write(true).open(path).map(drop).map_err(error),
            Err(_) => {
                OpenOptions::new().write(true).create_new(true).open(path).map_err(error)?;
                fs::remove_file(path).map_err(error)
            }
        }
    }

    /// Saves what there is after a trial; standard output waits for [`Saver::finish`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, file: &ResultFile) -> Result<()> {
        match self {
            Saver::Stdout => Ok(()),
            Saver::File(path) => write(path, &render(file)),
        }
    }

    /// Saves the final result.
    ///
    /// # Errors
    /// The file or standard output cannot be written.
    pub fn finish(&self, file: &ResultFile) -> Result<()> {
        match self {
            Saver::Stdout => write(Path::new("-"), &render(file)),
            Saver::File(path) => write(path, &render(file)),
        }
    }
}

/// Writes `bytes` to a file, which is never seen half written, or to standard output (`-`). A device or a pipe is written
/// to as it is.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let error = |cause: io::Error| Error::environment("write", path.display().to_string()).os(&cause);
    if path.as_os_str() == "-" {
        let mut stdout = io::stdout().lock();
        return match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            // The reader has seen enough.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|cause| Error::environment("write", "standard output").os(&cause)),
        };
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let mut device = OpenOptions::new().write(true).open(path).map_err(error)?;
            device.write_all(bytes).map_err(error)
        }
        // Through a symbolic link the file is replaced, not the link.
        Ok(_) => replace(&fs::canonicalize(path).map_err(error)?, bytes).map_err(error),
        Err(_) => replace(path, bytes).map_err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let result = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_told_before_anything_is_sent() {
        let dir = tempfile::TempDir::new().unwrap();
        let wrong = Saver::new(&dir.path().join("no-such-folder/result.json")).prove().unwrap_err();
        assert!(wrong.to_string().contains("No such file or directory"), "{wrong}");
        let file = dir.path().join("result.json");
        Saver::new(&file).prove().unwrap();
        assert!(!file.exists(), "the proof leaves nothing");
        fs::write(&file, "{}").unwrap();
        Saver::new(&file).prove().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}", "an earlier result stays until there is a new one");
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_save_replaces_the_whole_file_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        write(&path, b"a long first version").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(dir.path()), ["result.json"]);
    }

    #[test]
    fn a_reader_that_has_the_file_open_keeps_a_complete_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        write(&path, b"first").unwrap();
        let mut open = fs::File::open(&path).unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(io::read_to_string(&mut open).unwrap(), "first");
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        let null = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        write(&null, b"gone").unwrap();
        assert!(!null.metadata().unwrap().is_file());
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = write(Path::new("/nonexistent/result.json"), b"").unwrap_err();
        assert!(error.to_string().starts_with("cannot write /nonexistent/result.json: "), "{error}");
    }

    #[test]
    fn a_file_of_another_schema_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other.json");
        fs::write(&path, r#"{"schema":"plimsoll/9"}"#).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("its schema is `plimsoll/9`"));
        fs::write(&path, "not json").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("other.json"));
    }
}
