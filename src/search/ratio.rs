//! An exact fraction, so that "loss ≤ 0.5 %" has no rounding to argue about.
//!
//! Runs on any thread. Invariant: the denominator is never 0. Does not reduce fractions: comparison cross-multiplies in `u128`.

use std::{cmp::Ordering, fmt, str::FromStr};

/// A non-negative exact fraction, such as a loss ratio, an exceed ratio or a relative width.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// 0.
    pub const ZERO: Self = Self { numerator: 0, denominator: 1 };
    /// 1, the loss ratio when nothing arrived.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator / denominator`.
    ///
    /// # Panics
    /// If the denominator is 0.
    pub const fn new(numerator: u64, denominator: u64) -> Self {
        assert!(denominator != 0, "a ratio needs a denominator above 0");
        Self { numerator, denominator }
    }

    /// The fraction's upper part, as given to [`Ratio::new`].
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The fraction's lower part, as given to [`Ratio::new`]; never 0.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// The nearest `f64`, for display and charts; judgements compare ratios, not floats.
    pub fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// `1 − self`, or 0 for a ratio above 1.
    pub fn complement(self) -> Self {
        Self { numerator: self.denominator.saturating_sub(self.numerator), denominator: self.denominator }
    }

    /// `value × self`, rounded down; saturates at `u64::MAX`.
    pub fn of(self, value: u64) -> u64 {
        saturate(u128::from(value) * u128::from(self.numerator) / u128::from(self.denominator))
    }

    /// `value / self`, rounded down; saturates at `u64::MAX`, also for a ratio of 0.
    pub fn divide(self, value: u64) -> u64 {
        match self.numerator {
            0 => u64::MAX,
            n => saturate(u128::from(value) * u128::from(self.denominator) / u128::from(n)),
        }
    }
}

pub(super) fn saturate(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.numerator) * u128::from(other.denominator);
        left.cmp(&(u128::from(other.numerator) * u128::from(self.denominator)))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ratio {}

/// As a percentage with up to four decimals: `0.5%`. A ratio above 0 that would print as `0%` prints as `<0.0001%`.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.as_f64() * 100.0;
        if self.numerator > 0 && percent < 0.0001 {
            return f.write_str("<0.0001%");
        }
        let digits = format!("{percent:.4}");
        write!(f, "{}%", digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// What is wrong with a percentage that a user wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read '{text}' as a percentage: write digits and a percent sign, at most 7 decimals, such as 0.5%")]
pub struct ParseRatioError {
    text: String,
}

/// Reads `0.5%` exactly: at most 7 decimals, so that the denominator stays at or below 10⁹.
impl FromStr for Ratio {
    type Err = ParseRatioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseRatioError { text: text.to_owned() };
        let number = text.trim().strip_suffix('%').ok_or_else(error)?.trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{decimals}");
        if whole.is_empty() || decimals.len() > 7 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let scale = 10_u64.pow(decimals.len() as u32);
        Ok(Self::new(digits.parse().map_err(|_| error())?, 100 * scale))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_fractions_are_equal_whatever_their_terms() {
        assert_eq!(Ratio::new(1, 200), Ratio::new(5, 1000));
        assert!(Ratio::new(1, 3) < Ratio::new(u64::MAX / 3 + 1, u64::MAX));
    }

    #[test]
    fn percentages_are_read_exactly_and_printed_back() {
        assert_eq!("0.5%".parse(), Ok(Ratio::new(1, 200)));
        assert_eq!("12 %".parse(), Ok(Ratio::new(12, 100)));
        assert_eq!("0.5%".parse::<Ratio>().unwrap().to_string(), "0.5%");
        assert_eq!(Ratio::new(1, 10_000_000).to_string(), "<0.0001%");
        assert_eq!(Ratio::ZERO.to_string(), "0%");
        assert_eq!(Ratio::ONE.to_string(), "100%");
    }

    #[test]
    fn what_is_no_percentage_is_refused_with_the_remedy() {
        for text in ["", "%", "0.5", ".5%", "-1%", "1e3%", "0.12345678%", "99999999999999999999%"] {
            let message = text.parse::<Ratio>().unwrap_err().to_string();
            assert!(message.contains("percent sign"), "{text}: {message}");
        }
    }

    #[test]
    fn scaling_rounds_down_and_saturates() {
        assert_eq!(Ratio::new(995, 1000).of(1001), 995);
        assert_eq!(Ratio::new(995, 1000).divide(1000), 1005);
        assert_eq!(Ratio::new(3, 1).of(u64::MAX), u64::MAX);
        assert_eq!(Ratio::ZERO.divide(1), u64::MAX);
        assert_eq!(Ratio::new(3, 2).complement(), Ratio::ZERO);
    }
}
