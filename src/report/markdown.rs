//! A report as Markdown (CommonMark with tables). The answer comes first, where a reader of a page looks.
//!
//! Pure. Charts are left out: a Markdown file stands alone.

use super::document::{Block, Document, Table};

/// Renders a document.
pub fn render(document: &Document) -> String {
    let mut out = format!("# {}\n\n", escape(&document.title));
    for (_, text) in &document.summary {
        out.push_str(&format!("- **{}**\n", escape(text)));
    }
    blocks(&document.blocks, &mut out);
    out
}

fn blocks(blocks: &[Block], out: &mut String) {
    for block in blocks {
        match block {
            Block::Heading(text) => out.push_str(&format!("\n## {}\n", escape(text))),
            Block::Line(_, text) => out.push_str(&format!("\n{}\n", escape(text))),
            Block::Doubts(texts) => {
                out.push('\n');
                for text in texts {
                    out.push_str(&format!("> ⚠ {}  \n", escape(text)));
                }
            }
            Block::Table(content) => table(content, out),
            Block::Chart(_) => {}
            Block::Fold { title, blocks: inner, .. } if inner.iter().any(Block::is_text) => {
                out.push_str(&format!("\n## {}\n", escape(title)));
                self::blocks(inner, out);
            }
            Block::Fold { .. } => {}
        }
    }
}

fn table(table: &Table, out: &mut String) {
    out.push('\n');
    if !table.caption.is_empty() {
        out.push_str(&format!("{}\n\n", escape(&table.caption)));
    }
    let mut line = |cells: &mut dyn Iterator<Item = String>| {
        out.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    };
    line(&mut table.columns.iter().map(|column| escape(&column.name)));
    line(&mut table.columns.iter().map(|column| if column.right { "---:" } else { "---" }.to_owned()));
    for row in &table.rows {
        line(&mut row.iter().map(|cell| escape(cell)));
    }
}

/// Makes text stand as it is: no tables, emphasis, links or tags out of names in a profile.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '<' | '>' | '[' | ']' | '\\' | '#') {
            escaped.push('\\');
        }
        escaped.push(if c.is_control() { ' ' } else { c });
    }
    escaped
}
