//! Interleaved rounds: every row once per round, so that what the machine does meanwhile hits all rows alike. Medians,
//! spread, ratios; a table for people and JSON for machines.
//!
//! A new row is a name and a closure that returns frames/s; a claim is two rows and the ratio that the project promises.

use std::{fmt::Write as _, fs, path::Path};

use serde_json::json;

/// Something that sends, and how fast: frames/s of one run, or why it cannot run here.
pub struct Row<'a> {
    /// Unique in its group.
    pub name: &'static str,
    /// One run.
    pub run: Box<dyn FnMut() -> Result<f64, String> + 'a>,
}

impl<'a> Row<'a> {
    /// A row.
    pub fn new(name: &'static str, run: impl FnMut() -> Result<f64, String> + 'a) -> Row<'a> {
        Row { name, run: Box::new(run) }
    }
}

/// A promise: `row` is at least `ratio` × `of`.
pub struct Claim {
    pub row: &'static str,
    pub of: &'static str,
    pub ratio: f64,
}

/// Measured rows and claims of a group.
pub struct Outcome {
    pub group: &'static str,
    rows: Vec<(&'static str, Result<Vec<f64>, String>)>,
    claims: Vec<(Claim, Option<f64>)>,
}

/// Runs `rounds` rounds of all rows. A row that fails once is left out from then on.
pub fn measure(group: &'static str, rounds: usize, mut rows: Vec<Row<'_>>, claims: Vec<Claim>) -> Outcome {
    let mut results: Vec<Result<Vec<f64>, String>> = rows.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        for (row, result) in rows.iter_mut().zip(&mut results) {
            let Ok(samples) = result else { continue };
            match (row.run)() {
                Ok(fps) => {
                    eprintln!("{group}: round {}/{rounds}: {:<20} {:>9.3} Mpps", round + 1, row.name, fps / 1e6);
                    samples.push(fps);
                }
                Err(why) => {
                    eprintln!("{group}: {}: {why}", row.name);
                    *result = Err(why);
                }
            }
        }
    }
    let rows: Vec<_> = rows.iter().map(|row| row.name).zip(results).collect();
    let median_of = |name: &str| {
        let (_, result) = rows.iter().find(|(row, _)| *row == name)?;
        result.as_ref().ok().map(|samples| quantile(samples, 0.5))
    };
    let claims = claims
        .into_iter()
        .map(|claim| {
            let ratio = median_of(claim.row).zip(median_of(claim.of)).map(|(row, of)| row / of);
            (claim, ratio)
        })
        .collect();
    Outcome { group, rows, claims }
}

/// The q-quantile, interpolated.
fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

impl Outcome {
    /// True unless a measured claim is missed.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|(claim, ratio)| ratio.is_none_or(|ratio| ratio >= claim.ratio))
    }

    /// The table.
    pub fn text(&self) -> String {
        let mut out = format!(
            "\n{}\n{:<22} {:>12} {:>22} {:>7}\n",
            self.group, "row", "median Mpps", "spread (min to max)", "rounds"
        );
        for (name, result) in &self.rows {
            let _ = match result {
                Ok(samples) => writeln!(
                    out,
                    "{name:<22} {:>12.3} {:>22} {:>7}",
                    quantile(samples, 0.5) / 1e6,
                    format!("{:.3} to {:.3}", quantile(samples, 0.0) / 1e6, quantile(samples, 1.0) / 1e6),
                    samples.len()
                ),
                Err(why) => writeln!(out, "{name:<22} {:>12} {why}", "not run"),
            };
        }
        for (claim, ratio) in &self.claims {
            let verdict = match ratio {
                Some(ratio) if *ratio >= claim.ratio => format!("{ratio:.3}  holds"),
                Some(ratio) => format!("{ratio:.3}  MISSED"),
                None => "not measured".to_owned(),
            };
            let _ = writeln!(out, "{} / {} ≥ {}: {verdict}", claim.row, claim.of, claim.ratio);
        }
        out
    }

    fn json(&self) -> serde_json::Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(name, result)| match result {
                Ok(samples) => json!({
                    "name": name, "median_fps": quantile(samples, 0.5), "min_fps": quantile(samples, 0.0),
                    "max_fps": quantile(samples, 1.0), "p25_fps": quantile(samples, 0.25),
                    "p75_fps": quantile(samples, 0.75), "samples_fps": samples,
                }),
                Err(why) => json!({ "name": name, "not_run": why }),
            })
            .collect();
        let claims: Vec<_> = self
            .claims
            .iter()
            .map(|(claim, ratio)| {
                json!({ "row": claim.row, "of": claim.of, "at_least": claim.ratio, "ratio": ratio,
                        "holds": ratio.map(|ratio| ratio >= claim.ratio) })
            })
            .collect();
        json!({ "group": self.group, "rows": rows, "claims": claims })
    }
}

/// Writes all groups as one JSON document.
pub fn save(outcomes: &[Outcome], to: &Path) -> std::io::Result<()> {
    let document =
        json!({ "schema": "plimsoll-bench/1", "groups": outcomes.iter().map(Outcome::json).collect::<Vec<_>>() });
    fs::create_dir_all(to.parent().expect("a file in a folder"))?;
    fs::write(to, format!("{document:#}\n"))
}
