//! Numbers as people read them: grouped digits, three significant digits with an SI prefix, percentages that never round
//! a loss to nothing.
//!
//! Any thread; pure. Every text carries its unit; the layer of a bit rate is the caller's to name.

use std::borrow::Cow;

/// `1234567` as `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// [`count`] with a sign where negative: `-1,234`.
pub fn signed(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", count(value.unsigned_abs()))
}

/// [`signed`] with a sign always, as a change: `+1,234`.
pub fn delta(value: i64) -> String {
    if value < 0 { signed(value) } else { format!("+{}", signed(value)) }
}

/// [`count`] with its noun: `1 frame`, `1,234 frames`.
pub fn frames(value: u64) -> String {
    format!("{} frame{}", count(value), if value == 1 { "" } else { "s" })
}

/// `text` with each control character but the line feed replaced: what names and results bring must not steer a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n';
    if text.contains(steers) { text.replace(steers, "\u{FFFD}").into() } else { text.into() }
}

/// Frames per second, exact: `1,488,095 frames/s`.
pub fn fps(value: u64) -> String {
    format!("{} frames/s", count(value))
}

/// Whether so many frames in so long have a rate worth printing: none, or at least two, in at least 1 ms.
pub fn has_rate(frames: u64, duration_ns: u64) -> bool {
    frames != 1 && duration_ns >= 1_000_000
}

/// Bits per second with three significant digits: `22.0 Gb/s`, `672 Mb/s`.
pub fn bps(value: u64) -> String {
    si(value as f64, "b/s")
}

/// A link-speed claim, exact: 10000 Mbit/s as `10 Gb/s`, 2500 as `2.5 Gb/s`.
pub fn link_speed(mbps: u64) -> String {
    if mbps >= 1_000 { format!("{} Gb/s", mbps as f64 / 1_000.0) } else { format!("{mbps} Mb/s") }
}

/// A value with three significant digits and the decimal prefix k, M, G or T: `1.49 M`, `800`.
pub fn si(value: f64, unit: &str) -> String {
    let mut scaled = value;
    for prefix in ["", "k", "M", "G"] {
        // 999.5 and more would print as 1000: the next prefix shows it as 1.00.
        if scaled.abs() < 999.5 {
            let decimals = if prefix.is_empty() && value.fract() == 0.0 { 0 } else { decimals_for(scaled) };
            return format!("{scaled:.decimals$} {prefix}{unit}").trim_end().to_owned();
        }
        scaled /= 1_000.0;
    }
    let decimals = decimals_for(scaled);
    format!("{scaled:.decimals$} T{unit}")
}

/// A ratio as a percentage with three significant digits: `3.2 %`, `0.00012 %`. What is not 0 never prints as 0, and what
/// is less than the whole never as 100.
pub fn percent(ratio: f64) -> String {
    let value = ratio * 100.0;
    if value == 0.0 {
        return "0 %".to_owned();
    }
    if (99.95..100.0).contains(&value) {
        return format!("{} %", trim_zeros(&format!("{:.4}", (value * 10_000.0).floor() / 10_000.0)));
    }
    if value.abs() < 1e-6 {
        return if value > 0.0 { "< 0.000001 %" } else { "> -0.000001 %" }.to_owned();
    }
    let decimals = decimals_for(value);
    format!("{} %", trim_zeros(&format!("{value:.decimals$}")))
}

/// A measured share: [`percent`] to a tenth of a percent, as exact as pacing is; below 1 % to three digits.
pub fn share(ratio: f64) -> String {
    percent(if ratio < 0.01 { ratio } else { (ratio * 1_000.0).round() / 1_000.0 })
}

/// A ratio as a factor: `2.2×`, `0.08×`.
pub fn times(ratio: f64) -> String {
    let decimals = if ratio.abs() >= 10.0 {
        0
    } else if ratio.abs() >= 1.0 {
        1
    } else {
        2
    };
    format!("{ratio:.decimals$}×")
}

/// Nanoseconds with three significant digits: `850 ns`, `12.3 µs`, `1.05 ms`, `2.00 s`.
pub fn ns(value: u64) -> String {
    let mut scaled = value as f64;
    for unit in ["ns", "µs", "ms"] {
        if scaled < 999.5 {
            let decimals = if unit == "ns" { 0 } else { decimals_for(scaled) };
            return format!("{scaled:.decimals$} {unit}");
        }
        scaled /= 1_000.0;
    }
    format!("{scaled:.decimals$} s", decimals = decimals_for(scaled))
}

/// Seconds: `0.500 s`, `10.0 s`, `2 min 05 s`.
pub fn seconds(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.3} s");
    }
    if value < 119.95 {
        return format!("{value:.1} s");
    }
    let whole = value.round() as u64;
    match whole / 3_600 {
        0 => format!("{} min {:02} s", whole / 60, whole % 60),
        hours => format!("{hours} h {:02} min", whole % 3_600 / 60),
    }
}

/// Decimals that leave three significant digits; at most 8.
fn decimals_for(value: f64) -> usize {
    if value == 0.0 {
        return 0;
    }
    // 0.9996 prints as 1.00, so it counts as 1 already.
    (2 - (value.abs() * 1.0005).log10().floor() as i64).clamp(0, 8) as usize
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b]0;title\x07\u{9b}2J\r\nb"), "a\u{FFFD}]0;title\u{FFFD}\u{FFFD}2J\u{FFFD}\nb");
        assert_eq!(
            (frames(1).as_str(), frames(0).as_str(), frames(1000).as_str()),
            ("1 frame", "0 frames", "1,000 frames")
        );
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(value), text);
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(
            (signed(-1_000), delta(5), delta(i64::MIN)),
            ("-1,000".to_owned(), "+5".to_owned(), "-9,223,372,036,854,775,808".to_owned())
        );
    }

    #[test]
    fn rates_have_three_significant_digits_and_a_prefix() {
        for (value, text) in [
            (0, "0 b/s"),
            (999, "999 b/s"),
            (672_000_000, "672 Mb/s"),
            (999_600_000, "1.00 Gb/s"),
            (21_953_000_000, "22.0 Gb/s"),
            (1_500_000_000_000_000, "1500 Tb/s"),
        ] {
            assert_eq!(bps(value), text);
        }
        assert_eq!([link_speed(10), link_speed(2_500), link_speed(100_000)], ["10 Mb/s", "2.5 Gb/s", "100 Gb/s"]);
    }

    #[test]
    fn a_loss_never_rounds_to_nothing_nor_a_part_to_the_whole() {
        for (ratio, text) in [
            (0.0, "0 %"),
            (0.032, "3.2 %"),
            (1.0, "100 %"),
            (1.2e-6, "0.00012 %"),
            (1e-12, "< 0.000001 %"),
            (0.999_999_9, "99.9999 %"),
            (-0.5, "-50 %"),
            (2.2, "220 %"),
        ] {
            assert_eq!(percent(ratio), text);
        }
    }

    #[test]
    fn a_share_is_exact_to_a_tenth_of_a_percent_and_never_rounds_to_nothing() {
        for (ratio, text) in [
            (0.0, "0 %"),
            (0.07929, "7.9 %"),
            (0.0146, "1.5 %"),
            (0.00146, "0.146 %"),
            (0.0006, "0.06 %"),
            (0.0000672, "0.00672 %"),
            (0.99996, "100 %"),
        ] {
            assert_eq!(share(ratio), text);
        }
        assert_eq!([has_rate(1, 1 << 40), has_rate(5, 999_999), has_rate(2, 1_000_000)], [false, false, true]);
    }

    #[test]
    fn times_and_durations_are_short() {
        assert_eq!([ns(850), ns(12_340), ns(999_600), ns(2_000_000_000)], ["850 ns", "12.3 µs", "1.00 ms", "2.00 s"]);
        assert_eq!(
            [seconds(0.5), seconds(10.04), seconds(125.2), seconds(3_720.0)],
            ["0.500 s", "10.0 s", "2 min 05 s", "1 h 02 min"]
        );
        assert_eq!([times(2.2), times(0.084), times(22.0)], ["2.2×", "0.08×", "22×"]);
    }
}
