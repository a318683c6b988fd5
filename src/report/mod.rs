//! Renderers: result → bytes. The result file's shape is [`result`]; nothing here measures or decides.

pub mod capture;
pub mod check;
pub mod compare;
pub mod console;
pub mod csv;
pub mod document;
pub mod html;
pub mod json;
pub(crate) mod labels;
pub mod markdown;
pub mod probe;
pub mod profile;
pub mod progress;
pub mod result;
pub mod sentence;
mod svg;
pub mod text;

use compare::Named;
use text::Style;

use crate::error::{Error, Result};

/// What to make of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tables for a terminal or a pipe.
    Text(Style),
    /// Comma-separated values.
    Csv,
    /// One self-contained page.
    Html,
    /// CommonMark with tables.
    Markdown,
    /// The result file itself.
    Json,
}

/// Renders one result in full, or several as a comparison; `every_trial` lists the trials behind a search.
///
/// # Errors
/// Several results as JSON: a result file holds one.
pub fn render(results: &[Named<'_>], format: Format, every_trial: bool) -> Result<Vec<u8>> {
    let document = || match results {
        [only] => document::document(only.file, every_trial),
        several => compare::document(several),
    };
    Ok(match (format, results) {
        (Format::Text(style), _) => text::draw(&document(), style).into_bytes(),
        (Format::Html, _) => html::render(&document()).into_bytes(),
        (Format::Markdown, _) => markdown::render(&document()).into_bytes(),
        (Format::Csv, [only]) => csv::render(only.file),
        (Format::Csv, several) => compare::csv(several),
        (Format::Json, [only]) => json::render(only.file),
        (Format::Json, _) => {
            return Err(Error::usage("write", "a comparison as JSON")
                .because("a result file holds one result")
                .remedy("use --format csv"));
        }
    })
}
