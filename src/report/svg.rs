//! Charts as SVG, drawn by `plotters` on its SVG back end: no font, no system library, no script.
//!
//! Pure. Colours are fixed values that the page's style sheet (`html`) refers to: it dashes lines and replaces
//! colours on a dark screen.

use plotters::{
    coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged},
    coord::types::RangedCoordf64,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::document::chart::{Axis, Chart, Look, Mark, Scale, Series};

/// Text and axes.
pub const INK: RGBColor = RGBColor(0x33, 0x3d, 0x47);
/// Grid lines.
pub const GRID: RGBColor = RGBColor(0xdd, 0xe3, 0xe9);
/// Axes.
pub const AXIS: RGBColor = RGBColor(0x7a, 0x86, 0x93);
/// Marks; dashed by the page's style sheet.
pub const MARK: RGBColor = RGBColor(0x7a, 0x86, 0x94);
/// Series, in order; told apart also by people who see few colours (after Okabe and Ito).
pub const SERIES: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x8f, 0x6b),
    RGBColor(0xb0, 0x4a, 0x88),
    RGBColor(0x8a, 0x6d, 0x00),
    RGBColor(0x5b, 0x55, 0xc6),
];
/// A claim or a limit beside measurements; dashed by the page's style sheet, which costs one element, not one a dash.
pub const DASHED: RGBColor = RGBColor(0x6b, 0x75, 0x80);

/// Drawn at twice the size it is shown at, because the back end places on whole pixels.
const SIZE: (u32, u32) = (960, 600);
const FONT_PX: i32 = 34;

/// The colour of series `index` of a chart.
pub fn color(chart: &Chart, index: usize) -> RGBColor {
    if chart.series[index].look == Look::Dashed {
        return DASHED;
    }
    let place = chart.series[..index].iter().filter(|one| one.look != Look::Dashed).count();
    SERIES[place % SERIES.len()]
}

/// `#0072b2`.
pub fn hex(color: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

/// Draws a chart.
pub fn draw(chart: &Chart) -> String {
    let mut svg = String::new();
    let backend = SVGBackend::with_string(&mut svg, SIZE);
    draw_on(&backend.into_drawing_area(), chart).expect("a string takes all drawing");
    // Without a width of its own the picture takes that of its place on the page.
    svg.replacen(&format!("width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1), "", 1)
}

type Error = DrawingAreaErrorKind<std::io::Error>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Spread, Spread>>;

fn draw_on(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, chart: &Chart) -> Result<(), Error> {
    let x = Spread::new(&chart.x, chart.series.iter().flat_map(|one| one.points.iter().map(|point| point.0)), 5);
    let mut y = Spread::new(&chart.y, chart.series.iter().flat_map(|one| one.points.iter().map(|point| point.1)), 5);
    if !chart.marks.is_empty() {
        // Room for the marks' names.
        y.high += (y.high - y.low) * 0.1;
    }
    let (x_map, y_map) = (x.clone(), y.clone());
    let label_chars = y.ticks.iter().map(|&tick| y.label(tick).chars().count()).max().unwrap_or(1);
    let mut plot = ChartBuilder::on(area)
        .margin(8)
        .margin_right(28)
        .x_label_area_size(2 * FONT_PX + 30)
        .y_label_area_size(label_chars as i32 * FONT_PX * 6 / 10 + FONT_PX + 30)
        .build_cartesian_2d(x, y)?;
    let text = ("sans-serif", FONT_PX).into_font().color(&INK);
    plot.configure_mesh()
        .axis_style(AXIS.stroke_width(2))
        .bold_line_style(GRID.stroke_width(2))
        .light_line_style(TRANSPARENT)
        .x_labels(x_map.ticks.len())
        .y_labels(y_map.ticks.len())
        .x_label_formatter(&|&at| x_map.label(at))
        .y_label_formatter(&|&at| y_map.label(at))
        .label_style(text.clone())
        .axis_desc_style(text)
        .x_desc(&chart.x.name)
        .y_desc(&chart.y.name)
        .draw()?;
    marks(&mut plot, chart, &x_map, &y_map)?;
    // The first series is the most important: drawn last, it lies on top.
    let mut order: Vec<usize> = (0..chart.series.len()).rev().collect();
    // Bars would hide lines.
    order.sort_by_key(|&index| chart.series[index].look != Look::Bars);
    for index in order {
        let series = &chart.series[index];
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|&(x, y)| (x_map.forward(x), y_map.forward(y))).collect();
        let covered: Vec<usize> = series.points.iter().map(|point| times_covered(chart, index, point)).collect();
        one_series(&mut plot, series, (&points, &covered), color(chart, index), y_map.low)?;
    }
    area.present()
}

fn one_series(
    plot: &mut Plot<'_, '_>,
    series: &Series,
    (points, covered): (&[(f64, f64)], &[usize]),
    color: RGBColor,
    floor: f64,
) -> Result<(), Error> {
    match series.look {
        Look::Line | Look::Dots => {
            if series.look == Look::Line {
                plot.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(4)))?;
            }
            // A dot that lies below another one shows as a rim around it.
            let dots = points.iter().zip(covered);
            let dot =
                |(&point, &times): (&(f64, f64), &usize)| Circle::new(point, 7 + 3 * times as i32, color.filled());
            plot.draw_series(dots.map(dot))?;
        }
        Look::Dashed => {
            plot.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(4)))?;
        }
        Look::Bars => {
            let bar = |&(x, y): &(f64, f64)| Rectangle::new([(x - 0.3, floor), (x + 0.3, y)], color.filled());
            plot.draw_series(points.iter().map(bar))?;
        }
    }
    Ok(())
}

/// How many more important series have a dot at this very point.
fn times_covered(chart: &Chart, index: usize, point: &(f64, f64)) -> usize {
    let above = chart.series[..index].iter().filter(|one| one.look != Look::Dashed);
    above.filter(|one| one.points.contains(point)).count().min(3)
}

/// Vertical lines with names. Marks that nearly touch share a label; labels that would overlap stand below each other.
fn marks(plot: &mut Plot<'_, '_>, chart: &Chart, x: &Spread, y: &Spread) -> Result<(), Error> {
    let mut marks: Vec<&Mark> = chart.marks.iter().collect();
    marks.sort_by(|a, b| a.x.total_cmp(&b.x));
    let per_pixel = (x.high - x.low) / f64::from(SIZE.0 - 150);
    let mut labels: Vec<(f64, f64, String)> = Vec::new();
    for mark in marks {
        let at = x.forward(mark.x);
        plot.draw_series(LineSeries::new([(at, y.low), (at, y.high)], MARK.stroke_width(3)))?;
        match labels.last_mut() {
            Some((_, last, names)) if at - *last < 24.0 * per_pixel => {
                *last = at;
                if !names.split(' ').any(|name| name == mark.name) {
                    names.push(' ');
                    names.push_str(&mark.name);
                }
            }
            _ => labels.push((at, at, mark.name.clone())),
        }
    }
    let mut free_from = [f64::MIN; 3];
    for (first, last, names) in labels {
        let width = names.chars().count() as f64 * f64::from(FONT_PX) * 0.66 * per_pixel;
        // A label stands right of its line, or left of it where the plot ends.
        let left = if last + width > x.high { first - width } else { last };
        let row = free_from.iter().position(|&free| free <= left).unwrap_or(free_from.len() - 1);
        free_from[row] = left + width;
        let height = (y.high - y.low) * (1.0 - 0.07 * row as f64);
        let (anchor, shift, at) = if left < last { (HPos::Right, -8, first) } else { (HPos::Left, 8, last) };
        let style = ("sans-serif", FONT_PX).into_font().color(&INK).pos(Pos::new(anchor, VPos::Top));
        let label = EmptyElement::at((at, y.low + height)) + Text::new(names, (shift, 2), style);
        plot.draw_series(std::iter::once(label))?;
    }
    Ok(())
}

/// An axis ready to draw: its range and ticks, in the space where distances are even (logarithms on a log scale).
#[derive(Clone)]
struct Spread {
    axis: Axis,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Spread {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, about_ticks: usize) -> Spread {
        let finite = values.filter(|value| value.is_finite() && (axis.scale != Scale::Log || *value > 0.0));
        let (low, high) = finite.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let (low, high, ticks) = match &axis.scale {
            Scale::Names(names) => {
                (-0.6, names.len() as f64 - 0.4, (0..names.len()).map(|index| index as f64).collect())
            }
            Scale::Log => log_ticks(low, high),
            Scale::Zero => even_ticks(low.min(0.0), if high > 0.0 { high * 1.08 } else { 1.0 }, about_ticks),
            Scale::Linear => {
                let room = if high > low { (high - low) * 0.05 } else { high.abs().max(1.0) * 0.1 };
                even_ticks(low - room, high + room, about_ticks)
            }
        };
        Spread { axis: axis.clone(), low, high, ticks }
    }

    /// A value's place.
    fn forward(&self, value: f64) -> f64 {
        match self.axis.scale {
            Scale::Log => value.max(f64::MIN_POSITIVE).log10().max(self.low),
            _ => value,
        }
    }

    /// The label of a place.
    fn label(&self, at: f64) -> String {
        match &self.axis.scale {
            Scale::Names(names) => names.get(at.round().max(0.0) as usize).cloned().unwrap_or_default(),
            Scale::Log => self.axis.unit.label(10_f64.powf(at)),
            _ => self.axis.unit.label(at),
        }
    }
}

/// Round steps of 1, 2 or 5.
fn even_ticks(low: f64, high: f64, about: usize) -> (f64, f64, Vec<f64>) {
    let rough = (high - low) / about as f64;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * decade);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (low, high, (first..=last).map(|index| index as f64 * step).collect())
}

/// Decades, or 1-2-5 within few decades.
fn log_ticks(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let room = ((high / low).log10() * 0.06).max(0.05);
    let (low, high) = (low.log10() - room, high.log10() + room);
    let factors: &[f64] = if high - low > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let decades = low.floor() as i32..=high.ceil() as i32;
    let all = decades.flat_map(|decade| factors.iter().map(move |factor| factor.log10() + f64::from(decade)));
    (low, high, all.filter(|tick| (low..=high).contains(tick)).collect())
}

impl Ranged for Spread {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.low..self.high).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}
