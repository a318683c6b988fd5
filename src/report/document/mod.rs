//! What a report says, once, for every renderer: headings, sentences, tables and charts, built from a result file.
//!
//! Pure; any thread. Renderers decide only how it looks: `text` and `markdown` leave charts out, `html` draws them.

pub mod chart;
mod environment;
mod search;
mod trial;

use chart::Chart;

use super::{labels, result::ResultFile, sentence};

/// How a text is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Something went well.
    Good,
    /// A doubt.
    Warn,
    /// A loss or a failure.
    Bad,
    /// Of second rank.
    Dim,
}

/// One piece of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A section's title.
    Heading(String),
    /// A paragraph.
    Line(Tone, String),
    /// Doubts: each a short mark (`caveat`) and a sentence.
    Doubts(Vec<String>),
    /// Numbers.
    Table(Table),
    /// A picture; renderers of text leave it out.
    Chart(Chart),
    /// A section that a reader may open.
    Fold {
        /// Its title.
        title: String,
        /// It stands open at first.
        open: bool,
        /// What it holds.
        blocks: Vec<Block>,
    },
}

impl Block {
    /// Something that text can show.
    pub fn is_text(&self) -> bool {
        match self {
            Block::Chart(_) => false,
            Block::Fold { blocks, .. } => blocks.iter().any(Block::is_text),
            _ => true,
        }
    }
}

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// What it shows; empty where the heading above says it.
    pub caption: String,
    /// Columns, left to right.
    pub columns: Vec<Column>,
    /// Rows, each with a cell per column.
    pub rows: Vec<Vec<String>>,
}

/// A table's column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its header.
    pub name: String,
    /// Numbers stand right.
    pub right: bool,
    /// On a terminal too narrow for all, columns of the highest rank are left out first; rank 0 always stays.
    pub rank: u8,
}

/// A column of words.
pub fn words(name: impl Into<String>) -> Column {
    Column { name: name.into(), right: false, rank: 0 }
}

/// A column of numbers.
pub fn numbers(name: impl Into<String>) -> Column {
    Column { name: name.into(), right: true, rank: 0 }
}

impl Column {
    /// The same column, left out where space is short; the higher the earlier.
    #[must_use]
    pub fn rank(mut self, rank: u8) -> Column {
        self.rank = rank;
        self
    }
}

impl Table {
    /// An empty table.
    pub fn new(caption: impl Into<String>, columns: Vec<Column>) -> Table {
        Table { caption: caption.into(), columns, rows: Vec::new() }
    }

    /// Leaves out columns in which every cell is empty, but never the first.
    #[must_use]
    pub fn without_empty_columns(mut self) -> Table {
        for index in (1..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row[index].is_empty()) {
                self.columns.remove(index);
                for row in &mut self.rows {
                    row.remove(index);
                }
            }
        }
        self
    }
}

/// A report.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The title: version and command.
    pub title: String,
    /// The answer in sentences: what a reader needs who reads nothing else.
    pub summary: Vec<(Tone, String)>,
    /// The body.
    pub blocks: Vec<Block>,
}

/// Sections on single points of a sweep that stand open at first.
const OPEN_SECTIONS: usize = 3;

/// The report on a result. With `every_trial` the trials behind a search are listed.
pub fn document(file: &ResultFile, every_trial: bool) -> Document {
    let mut blocks = environment::blocks(file);
    if file.ceilings.is_empty() && file.claims.is_empty() {
        blocks.extend(file.trials.iter().flat_map(|trial| trial::blocks(file, trial)));
    } else {
        blocks.extend(search::ceiling_blocks(file));
        blocks.extend(search::claim_blocks(file));
        blocks.extend(chart::claim_charts(file).into_iter().map(Block::Chart));
        for (index, (title, charts)) in chart::load_sections(file).into_iter().enumerate() {
            let charts = charts.into_iter().map(Block::Chart).collect();
            blocks.push(Block::Fold { title, open: index < OPEN_SECTIONS, blocks: charts });
        }
        if every_trial {
            blocks.extend(search::trial_blocks(file));
        }
    }
    blocks.extend(doubts(file.caveats.iter().map(|caveat| caveat.text.clone()).collect()));
    let title = format!("plimsoll {} · {} · {}", file.version, file.started_at, file.command.join(" "));
    Document { title, summary: sentence::summary(file), blocks }
}

/// Doubts as a block, or nothing.
fn doubts(texts: Vec<String>) -> Option<Block> {
    (!texts.is_empty()).then_some(Block::Doubts(texts))
}

/// A cell for what may not have been measured.
fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// `64-byte frames, DUT RX ring 256`.
fn point(frame_size: &serde_json::Value, axes: &std::collections::BTreeMap<String, serde_json::Value>) -> String {
    let mut text = labels::frames(frame_size);
    let axes = labels::axes(axes);
    if !axes.is_empty() {
        text.push_str(", ");
        text.push_str(&axes);
    }
    text
}
