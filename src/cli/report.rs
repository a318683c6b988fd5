//! `plimsoll report`: render a saved result again, or compare several.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};

use super::{Exit, Global};
use crate::{
    error::{Error, Result},
    report::{self, Format, check, compare::Named, console::Console, json},
};

/// Render saved results: one in full, several as a comparison
#[derive(Debug, Args)]
pub(super) struct Report {
    /// Result files that --json wrote; with several, the first is the reference
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What to write [default: what the output's name ends in (.html .csv .md .json), else text]
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Write it here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatName {
    /// Tables for a terminal; every trial with -v
    Text,
    /// A row a trial; for several files a row a quantity
    Csv,
    /// One page with charts that needs nothing beside it
    Html,
    /// For a repository or an issue
    Markdown,
    /// The result file again, as this version writes it
    Json,
}

impl Report {
    pub(super) fn run(&self, console: &Console, global: &Global) -> Result<Exit> {
        if global.json.is_some() {
            return Err(Error::usage("use", "--json with report").remedy("write --format json -o FILE"));
        }
        super::refuse_overwriting(self.output.as_deref(), &self.files, "it is a result that is read")?;
        let files = self.files.iter().map(|path| json::read(path)).collect::<Result<Vec<_>>>()?;
        let names = self.names();
        for (name, file) in names.iter().zip(&files) {
            for contradiction in check::contradictions(file) {
                console.note(&format!("{name} does not add up: {contradiction}"));
            }
        }
        let named: Vec<Named<'_>> = names.iter().zip(&files).map(|(name, file)| Named { name, file }).collect();
        let format_name = self.format.unwrap_or_else(|| self.implied_format());
        let format = match format_name {
            FormatName::Text if self.output.is_some() => Format::Text(report::text::Style::default()),
            FormatName::Text => Format::Text(console.style()),
            FormatName::Csv => Format::Csv,
            FormatName::Html => Format::Html,
            FormatName::Markdown => Format::Markdown,
            FormatName::Json => Format::Json,
        };
        // On paper there is room for every trial; a terminal shows them when asked.
        let every_trial = !matches!(format_name, FormatName::Text) || console.verbosity() > 0 || self.output.is_some();
        let bytes = report::render(&named, format, every_trial)?;
        json::write(self.output.as_deref().unwrap_or("-".as_ref()), &bytes)?;
        if let Some(output) = &self.output {
            console.note(&format!("wrote {}", output.display()));
        }
        Ok(Exit::Done)
    }

    fn implied_format(&self) -> FormatName {
        match self.output.as_deref().and_then(Path::extension).and_then(OsStr::to_str) {
            Some("html" | "htm") => FormatName::Html,
            Some("csv") => FormatName::Csv,
            Some("md" | "markdown") => FormatName::Markdown,
            Some("json") => FormatName::Json,
            _ => FormatName::Text,
        }
    }

    /// File names without ending; whole paths where these are not unique.
    fn names(&self) -> Vec<String> {
        let whole = || self.files.iter().map(|path| path.display().to_string()).collect();
        let stem = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let Some(stems) = self.files.iter().map(stem).collect::<Option<Vec<String>>>() else { return whole() };
        let mut unique = stems.clone();
        unique.sort();
        unique.dedup();
        if unique.len() == stems.len() { stems } else { whole() }
    }
}
