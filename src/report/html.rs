//! A report as one HTML file that needs nothing beside it: style and charts are inside, there is no script.
//!
//! Pure. Light and dark as the reader's system asks; from phone to desktop width; prints.

use std::fmt::Write as _;

use super::{
    document::{Block, Document, Table, Tone, chart::Chart},
    svg,
};
use crate::human;

/// Colours of the page and of the charts: what it is, light, dark.
const COLORS: [(&str, &str, &str); 9] = [
    ("page", "#ffffff", "#12161b"),
    ("panel", "#f5f7f9", "#1b2128"),
    ("line", "#d9e0e7", "#333d47"),
    ("ink", "#1d242b", "#e3e8ed"),
    ("dim", "#5a6570", "#9aa6b2"),
    ("good", "#11713f", "#5fd08e"),
    ("warn", "#8a5a00", "#f0b84a"),
    ("bad", "#b3261e", "#ff8a80"),
    ("link", "#0072b2", "#63b3ed"),
];

/// Chart colours on a dark page, beside those that the drawing has.
fn chart_colors() -> Vec<(String, &'static str)> {
    const DARK_SERIES: [&str; 6] = ["#5cb8f5", "#ff9a56", "#3fd0a6", "#e58fc4", "#d9bd4a", "#a8a3ff"];
    let fixed = [
        (svg::INK, "#c4ccd4"),
        (svg::GRID, "#2a323b"),
        (svg::AXIS, "#8793a0"),
        (svg::MARK, "#8793a1"),
        (svg::DASHED, "#98a3ae"),
    ];
    let series = svg::SERIES.into_iter().zip(DARK_SERIES);
    fixed.into_iter().chain(series).map(|(light, dark)| (svg::hex(light), dark)).collect()
}

/// Renders a document.
pub fn render(document: &Document) -> String {
    let mut out = String::new();
    let title = escape(&document.title);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{}</style>\n</head>\n\
         <body>\n<main>\n<header>\n<h1>Plimsoll report</h1>\n<p class=\"dim command\">{title}</p>\n</header>\n",
        style()
    );
    out.push_str("<section class=\"answer\">\n<ul>\n");
    for (tone, text) in &document.summary {
        let _ = writeln!(out, "<li class=\"{}\">{}</li>", class(*tone), escape(text));
    }
    out.push_str("</ul>\n</section>\n");
    blocks(&document.blocks, &mut out);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn blocks(blocks: &[Block], out: &mut String) {
    // Charts that follow each other share a grid.
    let mut charts = false;
    for block in blocks {
        let is_chart = matches!(block, Block::Chart(_));
        if is_chart != charts {
            out.push_str(if is_chart { "<div class=\"charts\">\n" } else { "</div>\n" });
            charts = is_chart;
        }
        match block {
            Block::Heading(text) => {
                let _ = writeln!(out, "<h2>{}</h2>", escape(text));
            }
            Block::Line(tone, text) => {
                let _ = writeln!(out, "<p class=\"{}\">{}</p>", class(*tone), escape(text));
            }
            Block::Doubts(texts) => {
                out.push_str("<ul class=\"doubts\">\n");
                for text in texts {
                    let _ = writeln!(out, "<li>{}</li>", escape(text));
                }
                out.push_str("</ul>\n");
            }
            Block::Table(content) => table(content, out),
            Block::Chart(content) => figure(content, out),
            Block::Fold { title, open, blocks } => {
                let open = if *open { " open" } else { "" };
                let _ = writeln!(out, "<details{open}>\n<summary>{}</summary>", escape(title));
                self::blocks(blocks, out);
                out.push_str("</details>\n");
            }
        }
    }
    if charts {
        out.push_str("</div>\n");
    }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Good => "good",
        Tone::Warn => "warn",
        Tone::Bad => "bad",
        Tone::Dim => "dim",
    }
}

fn table(table: &Table, out: &mut String) {
    // A wide table scrolls in its own box; a keyboard can reach it.
    out.push_str("<div class=\"table\" tabindex=\"0\">\n<table>\n");
    if !table.caption.is_empty() {
        let _ = writeln!(out, "<caption>{}</caption>", escape(&table.caption));
    }
    let side = |index: usize| if table.columns[index].right { " class=\"number\"" } else { "" };
    out.push_str("<thead><tr>");
    for (index, column) in table.columns.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", side(index), escape(&column.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", side(index), escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

fn figure(chart: &Chart, out: &mut String) {
    let names: Vec<&str> = chart.series.iter().map(|series| series.name.as_str()).collect();
    let label = format!("{}: {} over {}; {}", chart.title, chart.y.name, chart.x.name, names.join(", "));
    let _ = writeln!(out, "<figure>\n<figcaption>{}</figcaption>", escape(&chart.title));
    let drawing = svg::draw(chart);
    let drawing = drawing.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", escape(&label)), 1);
    out.push_str(drawing.trim());
    out.push_str("\n<p class=\"legend\">");
    for (index, series) in chart.series.iter().enumerate() {
        let shape = match series.look {
            super::document::chart::Look::Dashed => {
                "<line x1=\"0\" y1=\"6\" x2=\"24\" y2=\"6\" stroke-width=\"2\" stroke=\"{}\"/>"
            }
            super::document::chart::Look::Line => {
                "<line x1=\"0\" y1=\"6\" x2=\"24\" y2=\"6\" stroke-width=\"2\" stroke=\"{}\"/>\
                 <circle cx=\"12\" cy=\"6\" r=\"4\" fill=\"{}\"/>"
            }
            super::document::chart::Look::Dots => "<circle cx=\"12\" cy=\"6\" r=\"4\" fill=\"{}\"/>",
            super::document::chart::Look::Bars => "<rect x=\"6\" y=\"0\" width=\"12\" height=\"12\" fill=\"{}\"/>",
        };
        let shape = shape.replace("{}", &svg::hex(svg::color(chart, index)));
        let name = escape(&series.name);
        let _ = write!(out, "<span><svg viewBox=\"0 0 24 12\" aria-hidden=\"true\">{shape}</svg>{name}</span>");
    }
    out.push_str("</p>\n</figure>\n");
}

fn style() -> String {
    let mut css = String::from(":root{color-scheme:light dark");
    for (name, light, _) in COLORS {
        let _ = write!(css, ";--{name}:{light}");
    }
    css.push_str("}\n@media (prefers-color-scheme:dark){\n:root{");
    for (name, _, dark) in COLORS {
        let _ = write!(css, "--{name}:{dark};");
    }
    css.push_str("}\n");
    for (light, dark) in chart_colors() {
        let _ = writeln!(css, "[stroke=\"{light}\"]{{stroke:{dark}}}[fill=\"{light}\"]{{fill:{dark}}}");
    }
    css.push_str("}\n");
    let _ = writeln!(css, "[stroke=\"{}\"]{{stroke-dasharray:14 10}}", svg::hex(svg::DASHED));
    let _ = writeln!(css, "[stroke=\"{}\"]{{stroke-dasharray:5 7}}", svg::hex(svg::MARK));
    css.push_str(STYLE);
    css
}

const STYLE: &str = "*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:78rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;margin:0 0 .25rem}
h2,summary{font-size:1.15rem;font-weight:600;margin:2rem 0 .5rem}
summary{cursor:pointer}
p{margin:.4rem 0;max-width:60rem;overflow-wrap:anywhere}
.command{font:.85rem/1.5 ui-monospace,monospace}
.dim{color:var(--dim);font-size:.9rem}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.answer{background:var(--panel);border-left:4px solid var(--link);border-radius:4px;padding:.6rem 1rem;margin:1rem 0}
.answer ul{margin:0;padding:0;list-style:none}
.answer li{padding:.15rem 0 .15rem 1.3rem;text-indent:-1.3rem;color:var(--ink);font-weight:500}
.answer li::before{content:'●';display:inline-block;width:1.3rem;text-indent:0;font-size:.8em}
.answer .good::before{color:var(--good)}.answer .warn::before{color:var(--warn)}.answer .bad::before{color:var(--bad)}
.doubts{padding:.6rem 1rem .6rem 2rem;margin:.8rem 0;border:1px solid var(--warn);border-radius:4px}
.doubts li::marker{content:'!  ';color:var(--warn);font-weight:700}
.table{overflow-x:auto;margin:.8rem 0;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--dim);padding-bottom:.3rem}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600;vertical-align:bottom}
.number{text-align:right}
tbody tr:hover{background:var(--panel)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,23rem),1fr));gap:1rem;margin:1rem 0}
.charts>:only-child{grid-column:1/-1;max-width:34rem}
figure{margin:0;padding:.8rem;background:var(--panel);border-radius:6px;min-width:0}
figcaption{font-weight:600;margin-bottom:.3rem}
figure>svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem;color:var(--dim);margin:.3rem 0 0}
.legend span{display:inline-flex;align-items:center;gap:.4rem}
.legend line{stroke-dasharray:7 5}.legend line:not(:only-child){stroke-dasharray:none}
.legend svg{width:24px;height:12px;flex:none}
@media (max-width:40rem){body{font-size:15px}main{padding:1rem .8rem 3rem}figure{padding:.5rem}}
@media print{details{display:block}.table{overflow:visible}}
";

/// Makes text stand as it is in HTML text and attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in human::printable(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}
