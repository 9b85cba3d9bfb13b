//! A strip chart: for each broker the points of its rounds on a common axis, their median and
//! their spread. Five rounds are too few for a box, and enough to be seen one by one.

use maud::{Markup, html};

use crate::chart::Unit;
use crate::drawing::{self, COLOURS, Scale, WIDTH, px, upright};
use flock_measure::stats::Spread;

/// One figure, of all brokers.
pub(super) struct Strip<'a> {
    pub title: &'a str,
    pub unit: Unit,
    pub rows: Vec<Row>,
}

/// One broker's rounds: the figure, and whether the round is valid.
pub(super) struct Row {
    pub name: String,
    pub points: Vec<(f64, bool)>,
}

impl Strip<'_> {
    /// A `<figure>`; nothing where no broker has such a figure, or all have none of it.
    pub(super) fn figure(&self) -> Markup {
        let all = || self.rows.iter().flat_map(|row| &row.points).map(|(value, _)| *value);
        let most = all().fold(0.0, f64::max);
        if most <= 0.0 {
            return Markup::default();
        }
        let scale = scale(all().filter(|value| *value > 0.0).fold(f64::MAX, f64::min), most);
        let floor = TOP + ROW * self.rows.len() as f64;
        let ticks = scale.ticks(drawing::nice_step(scale.to));
        let named = self.named(&ticks);
        let content = html! {
            @for (n, value) in ticks.into_iter().enumerate() {
                (upright("grid", x(&scale, value), (TOP, floor)))
                @if n % named == 0 {
                    text class="x" x=(px(x(&scale, value))) y=(floor + LABEL) {
                        (self.unit.show(value))
                    }
                }
            }
            @for (n, row) in self.rows.iter().enumerate() { (self.draw(n, row, &scale)) }
        };
        let drawing = drawing::svg(self.title, floor + BOTTOM, &content);
        drawing::figure("strip", self.title, &[], &drawing, "")
    }

    /// Every how many-th value can be written without touching its neighbours, also in the large
    /// letters of a narrow page.
    fn named(&self, ticks: &[f64]) -> usize {
        let longest = ticks.iter().map(|value| self.unit.show(*value).len()).max().unwrap_or(0);
        let step = (WIDTH - LEFT - RIGHT) / ticks.len().saturating_sub(1).max(1) as f64;
        ((longest + 1) as f64 * LETTER / step).ceil().max(1.0) as usize
    }

    fn draw(&self, n: usize, row: &Row, scale: &Scale) -> Markup {
        let y = TOP + ROW * (n as f64 + 0.5);
        let colour = n % COLOURS;
        let x = |value: f64| x(scale, value);
        let valid: Vec<f64> =
            row.points.iter().filter(|(_, valid)| *valid).map(|(value, _)| *value).collect();
        html! {
            text class="name" x="0" y=(px(y + 4.0)) { (row.name) }
            @if let Some(Spread { median, least, most, .. }) = Spread::of(&valid) {
                rect class={ "k" (colour) " spread" } x=(px(x(least))) y=(px(y - SPREAD / 2.0))
                    width=(px(x(most) - x(least))) height=(SPREAD) {}
                (upright(&format!("c{colour} median"), x(median), (y - SPREAD, y + SPREAD)))
                text class="value" x=(WIDTH) y=(px(y + 4.0)) { (self.unit.show(median)) }
            }
            @for (value, is_valid) in &row.points {
                circle class={ "k" (colour) @if !is_valid { " hollow" } } cx=(px(x(*value)))
                    cy=(px(y)) r="4" { title { (self.unit.show(*value)) } }
            }
        }
    }
}

/// From 0, or in powers of ten where brokers lie far apart.
fn scale(least: f64, most: f64) -> Scale {
    match most / least > LOG_FROM {
        true => Scale::decades(least, most),
        false => Scale::even(0.0, most * 1.05),
    }
}

fn x(scale: &Scale, value: f64) -> f64 {
    LEFT + scale.part(value) * (WIDTH - LEFT - RIGHT)
}

const LEFT: f64 = 164.0;
const RIGHT: f64 = 104.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 26.0;
/// From the last row to the values below it.
const LABEL: f64 = 18.0;
/// The width of one on a narrow page.
const LETTER: f64 = 9.5;
const ROW: f64 = 30.0;
const SPREAD: f64 = 10.0;
/// Farther apart than this, the smaller ones would lie on one another.
const LOG_FROM: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(rows: &[&[(f64, bool)]]) -> String {
        let row = |points: &&[(f64, bool)]| Row { name: "b".into(), points: points.to_vec() };
        Strip { title: "t", unit: Unit::Count, rows: rows.iter().map(row).collect() }
            .figure()
            .into_string()
    }

    #[test]
    fn every_round_is_a_point_and_the_median_is_of_the_valid_ones() {
        let drawn = strip(&[&[(1.0, true), (9.0, false), (3.0, true), (2.0, true)]]);
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert_eq!(drawn.matches("hollow").count(), 1);
        assert!(drawn.contains(">2</text>"), "{drawn}");
    }

    #[test]
    fn without_a_valid_round_there_is_no_median_and_of_nothing_no_strip() {
        assert!(!strip(&[&[(1.0, false)]]).contains("median"));
        assert_eq!(strip(&[&[(0.0, true)], &[]]), "");
    }

    #[test]
    fn values_below_a_strip_do_not_touch() {
        let strip = Strip { title: "t", unit: Unit::PerSecond, rows: Vec::new() };
        assert_eq!(strip.named(&[0.0, 5.0, 10.0]), 1);
        let wide: Vec<f64> = (0..6).map(|n| f64::from(n) * 2_000_000.0).collect();
        assert_eq!(strip.named(&wide), 2);
    }

    #[test]
    fn brokers_far_apart_get_powers_of_ten() {
        let far = scale(2.0, 900.0);
        assert_eq!(far.ticks(1.0), [1.0, 10.0, 100.0, 1_000.0]);
        assert!(x(&far, 2.0) > LEFT && x(&far, 900.0) < WIDTH - RIGHT);
        assert_eq!(x(&scale(40.0, 100.0), 0.0), LEFT);
    }
}
