//! A report as text for a terminal or a pipe.
//!
//! Pure: width and colour are arguments. The answer comes last, where a reader of a terminal looks.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

use super::{
    document::{Block, Document, Table, Tone},
    result::{ResultFile, Second},
};
use crate::{human, meter::claim, units::MeanFrame};

/// How text is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// ANSI colours.
    pub color: bool,
    /// Columns of the terminal; `None` in a pipe, where no line is cut.
    pub width: Option<u16>,
}

impl Style {
    /// `text` in the colour of `tone`.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.color => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    fn bold(self, text: &str) -> String {
        if self.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Breaks `text` at the width, later lines indented by `indent`.
    fn wrap(self, text: &str, indent: usize) -> Vec<String> {
        let text = &*human::printable(text);
        let Some(width) = self.width else { return vec![text.to_owned()] };
        let indent = " ".repeat(indent);
        let options = textwrap::Options::new(usize::from(width.max(20))).subsequent_indent(&indent);
        textwrap::wrap(text, options).into_iter().map(|line| line.into_owned()).collect()
    }
}

/// The report on a result; `every_trial` lists the trials behind a search.
pub fn render(file: &ResultFile, style: Style, every_trial: bool) -> String {
    draw(&super::document::document(file, every_trial), style)
}

/// Draws a document.
pub fn draw(document: &Document, style: Style) -> String {
    let mut out = Text { style, lines: Vec::new() };
    out.paragraph(Tone::Dim, &document.title, 0);
    out.blocks(&document.blocks);
    out.gap();
    for (tone, text) in &document.summary {
        out.paragraph(*tone, text, 2);
    }
    let mut text = out.lines.join("\n");
    text.push('\n');
    text
}

struct Text {
    style: Style,
    lines: Vec<String>,
}

impl Text {
    fn blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Heading(text) => self.heading(text),
                Block::Line(tone, text) => self.paragraph(*tone, text, 2),
                Block::Doubts(texts) => {
                    for text in texts {
                        self.paragraph(Tone::Warn, &format!("! {text}"), 2);
                    }
                }
                Block::Table(table) => {
                    self.gap();
                    self.lines.extend(table_lines(table, self.style));
                    self.gap();
                }
                Block::Fold { title, blocks, .. } if blocks.iter().any(Block::is_text) => {
                    self.heading(title);
                    self.blocks(blocks);
                }
                Block::Chart(_) | Block::Fold { .. } => {}
            }
        }
    }

    fn heading(&mut self, text: &str) {
        self.gap();
        for line in self.style.wrap(text, 0) {
            self.lines.push(self.style.bold(&line));
        }
    }

    /// One empty line, unless there is one or nothing stands above.
    fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    fn paragraph(&mut self, tone: Tone, text: &str, indent: usize) {
        for line in self.style.wrap(text, indent) {
            self.lines.push(self.style.paint(tone, &line));
        }
    }
}

/// No borders: a line below the header, and space between the columns.
const BORDERLESS: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Lines of a table. Where the terminal is too narrow, columns of high rank are left out, and the table says so.
fn table_lines(table: &Table, style: Style) -> Vec<String> {
    let mut shown: Vec<usize> = (0..table.columns.len()).collect();
    let mut left_out = Vec::new();
    if let Some(width) = style.width {
        while width_of(&grid(table, &shown, None)) > usize::from(width) {
            let rank = |&at: &usize| (table.columns[at].rank, at);
            let Some(at) = shown.iter().copied().filter(|&at| table.columns[at].rank > 0).max_by_key(rank) else {
                break;
            };
            shown.retain(|&other| other != at);
            left_out.push(at);
        }
    }
    let mut lines: Vec<String> = Vec::new();
    if !table.caption.is_empty() {
        lines.extend(style.wrap(&table.caption, 2));
    }
    lines.extend(grid(table, &shown, style.width));
    left_out.sort_unstable();
    let names: Vec<&str> =
        left_out.iter().map(|&at| table.columns[at].name.as_str()).filter(|name| !name.is_empty()).collect();
    if !names.is_empty() {
        let note = format!("(left out on this narrow terminal: {})", names.join(", "));
        lines.extend(style.wrap(&note, 1).iter().map(|line| style.paint(Tone::Dim, line)));
    }
    lines
}

fn width_of(lines: &[String]) -> usize {
    lines.iter().map(|line| textwrap::core::display_width(line)).max().unwrap_or(0)
}

/// These columns of the table, cells broken to fit `width`.
fn grid(table: &Table, shown: &[usize], width: Option<u16>) -> Vec<String> {
    let mut drawn = comfy_table::Table::new();
    drawn.load_style(BORDERLESS);
    if let Some(width) = width {
        drawn.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(20));
    }
    drawn.set_header(shown.iter().map(|&at| human::printable(&table.columns[at].name)));
    for row in &table.rows {
        drawn.add_row(shown.iter().map(|&at| human::printable(&row[at])));
    }
    for (position, &at) in shown.iter().enumerate() {
        if let Some(column) = drawn.column_mut(position) {
            column.set_padding((0, if position + 1 == shown.len() { 0 } else { 1 }));
            column.set_cell_alignment(if table.columns[at].right { CellAlignment::Right } else { CellAlignment::Left });
        }
    }
    drawn.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The line for the last of these seconds: its rates, and what has become of the frames so far.
///
/// `frame` is the mean frame length sent, for L1 and L2 bit/s. Frames that are not back yet may still come: the line calls
/// the difference missing, never lost.
pub fn live_line(seconds: &[Second], frame: MeanFrame, style: Style) -> String {
    let Some(last) = seconds.last() else { return String::new() };
    let before_s = if seconds.len() > 1 { seconds[seconds.len() - 2].at_s } else { 0.0 };
    let length_s = (last.at_s - before_s).max(1e-9);
    let rate = |frames: u64| (frames as f64 / length_s).round() as u64;
    let sent = rate(last.completed_frames);
    // Each part with its rank: on a narrow terminal the highest go first.
    let mut parts = vec![
        (0, format!("{:>5.0} s", last.at_s)),
        (2, format!("offered {:>10}/s", human::count(rate(last.offered_frames)))),
        (0, format!("completed {:>10}/s", human::count(sent))),
        (1, format!("{:>9} L1", human::bps(claim::bps_l1(sent, frame)))),
        (3, format!("{:>9} L2", human::bps(claim::bps_l2(sent, frame)))),
    ];
    match last.received_frames {
        Some(received) => parts.push((0, format!("received {:>10}/s", human::count(rate(received))))),
        None => parts.push((0, "received: not counted".to_owned())),
    }
    let completed: u64 = seconds.iter().map(|second| second.completed_frames).sum();
    let received: u64 = seconds.iter().filter_map(|second| second.received_frames).sum();
    let missing = (completed > 0).then(|| completed.saturating_sub(received) as f64 / completed as f64);
    let missing = missing.filter(|_| last.received_frames.is_some());
    if let Some(missing) = missing {
        parts.push((0, format!("missing {:>6}", human::percent(missing))));
    }
    for rank in [3, 2, 1] {
        let width: usize = parts.iter().map(|(_, part)| textwrap::core::display_width(part) + 2).sum();
        if style.width.is_some_and(|columns| width > usize::from(columns) + 2) {
            parts.retain(|(other, _)| *other < rank);
        }
    }
    let mut texts: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
    if let (Some(missing), Some(last)) = (missing, texts.last_mut()) {
        *last = style.paint(if missing > MUCH_MISSING { Tone::Warn } else { Tone::Dim }, last);
    }
    texts.join("  ")
}

/// From this share on, frames that are not back are more than what is on its way.
const MUCH_MISSING: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::FrameLen;

    fn seconds() -> Vec<Second> {
        let second = |at_s, received| Second {
            at_s,
            offered_frames: 1_000_000,
            completed_frames: 1_000_000,
            received_frames: received,
            rx_bytes: None,
        };
        vec![second(1.0, Some(1_000_000)), second(2.0, Some(900_000))]
    }

    fn live(seconds: &[Second], color: bool, width: Option<u16>) -> String {
        live_line(seconds, MeanFrame::of(FrameLen::MIN), Style { color, width })
    }

    #[test]
    fn a_live_line_has_the_last_seconds_rates_and_what_is_missing_of_all() {
        assert_eq!(
            live(&seconds(), false, None),
            "    2 s  offered  1,000,000/s  completed  1,000,000/s   672 Mb/s L1   512 Mb/s L2  \
             received    900,000/s  missing    5 %"
        );
        assert_eq!(live(&[], false, None), "");
    }

    #[test]
    fn a_live_line_fits_a_narrow_terminal() {
        let with_l1 = "    2 s  completed  1,000,000/s   672 Mb/s L1  received    900,000/s  missing    5 %";
        let without = "    2 s  completed  1,000,000/s  received    900,000/s  missing    5 %";
        assert_eq!([90, 80].map(|width| live(&seconds(), false, Some(width))), [with_l1, without]);
    }

    #[test]
    fn rates_of_a_part_of_a_second_are_per_second() {
        let mut seconds = seconds();
        seconds[1].at_s = 1.5;
        assert!(live(&seconds, false, None).contains("completed  2,000,000/s"));
    }

    #[test]
    fn what_is_not_counted_is_not_missing() {
        let mut seconds = seconds();
        seconds.iter_mut().for_each(|second| second.received_frames = None);
        assert!(live(&seconds, false, None).ends_with("received: not counted"));
    }

    #[test]
    fn colour_appears_only_where_it_is_asked_for() {
        assert!(!live(&seconds(), false, None).contains('\x1b'));
        assert!(live(&seconds(), true, None).contains("\x1b[33mmissing    5 %\x1b[0m"));
    }
}
