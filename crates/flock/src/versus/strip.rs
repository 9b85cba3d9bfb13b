//! A strip chart: for each broker the points of its rounds on a common axis, their median and
//! their spread. Five rounds are too few for a box, and enough to be seen one by one.

use std::fmt::Write as _;

use crate::report::text::{self, html as escape};

/// One figure, of all brokers.
pub(super) struct Strip<'a> {
    pub title: &'a str,
    pub digits: usize,
    pub rows: Vec<Row>,
}

/// One broker's rounds: the figure, and whether the round is valid.
pub(super) struct Row {
    pub name: String,
    pub points: Vec<(f64, bool)>,
}

impl Strip<'_> {
    /// A `<figure>`; nothing where no broker has such a figure, or all have none of it.
    pub(super) fn figure(&self) -> String {
        let all = || self.rows.iter().flat_map(|row| &row.points).map(|(value, _)| *value);
        let most = all().fold(0.0, f64::max);
        if most <= 0.0 {
            return String::new();
        }
        let least = all().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
        let axis = Axis::of(least, most);
        let height = TOP + ROW * self.rows.len() as f64 + BOTTOM;
        // Writing to a String cannot fail.
        let mut out = format!(
            "<figure class=\"strip\"><figcaption>{0}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">",
            escape(self.title)
        );
        for (value, label) in axis.ticks() {
            let x = axis.x(value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\"/><text class=\"x\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
                height - BOTTOM,
                height - 8.0
            );
        }
        for (n, row) in self.rows.iter().enumerate() {
            self.draw(n, row, &axis, &mut out);
        }
        out.push_str("</svg></figure>");
        out
    }

    fn draw(&self, n: usize, row: &Row, axis: &Axis, out: &mut String) {
        let y = TOP + ROW * (n as f64 + 0.5);
        let colour = n % COLOURS;
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>",
            y + 4.0,
            escape(&row.name)
        );
        let mut valid: Vec<f64> =
            row.points.iter().filter(|(_, valid)| *valid).map(|(value, _)| *value).collect();
        valid.sort_by(f64::total_cmp);
        if let (Some(low), Some(high)) = (valid.first(), valid.last()) {
            let middle = (valid[(valid.len() - 1) / 2] + valid[valid.len() / 2]) / 2.0;
            let (from, to, at) = (axis.x(*low), axis.x(*high), axis.x(middle));
            let (top, width) = (y - SPREAD / 2.0, to - from);
            let _ = write!(
                out,
                "<rect class=\"k{colour} spread\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{SPREAD}\"/>"
            );
            let (above, below) = (y - SPREAD, y + SPREAD);
            let _ = write!(
                out,
                "<line class=\"c{colour} median\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{above:.1}\" y2=\"{below:.1}\"/>"
            );
            let shown = text::fixed(middle, self.digits);
            let _ = write!(
                out,
                "<text class=\"value\" x=\"{WIDTH}\" y=\"{:.1}\">{shown}</text>",
                y + 4.0
            );
        }
        for (value, is_valid) in &row.points {
            let class = if *is_valid { "" } else { " hollow" };
            let _ = write!(
                out,
                "<circle class=\"k{colour}{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{:.*}</title></circle>",
                axis.x(*value),
                self.digits,
                value
            );
        }
    }
}

/// From 0, or in powers of ten where brokers lie far apart.
struct Axis {
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn of(least: f64, most: f64) -> Self {
        if most / least > LOG_FROM {
            let power = |value: f64| 10_f64.powf(value);
            return Self {
                log: true,
                from: power(least.log10().floor()),
                to: power(most.log10().ceil()),
            };
        }
        Self { log: false, from: 0.0, to: most * 1.05 }
    }

    fn x(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.from) / self.from).log10() / (self.to / self.from).log10(),
            false => value / self.to,
        };
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let label = |value: f64| (value, text::number(value));
        if self.log {
            let (from, to) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
            return (from..=to).map(|power| label(10_f64.powi(power))).collect();
        }
        let step = crate::report::chart::nice_step(self.to);
        (0..=(self.to / step) as u32).map(|n| label(f64::from(n) * step)).collect()
    }
}

const WIDTH: f64 = 640.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 86.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 26.0;
const ROW: f64 = 30.0;
const SPREAD: f64 = 10.0;
const COLOURS: usize = 6;
/// Farther apart than this, the smaller ones would lie on one another.
const LOG_FROM: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(rows: &[&[(f64, bool)]]) -> String {
        let row = |points: &&[(f64, bool)]| Row { name: "b".into(), points: points.to_vec() };
        Strip { title: "t", digits: 1, rows: rows.iter().map(row).collect() }.figure()
    }

    #[test]
    fn every_round_is_a_point_and_the_median_is_of_the_valid_ones() {
        let drawn = strip(&[&[(1.0, true), (9.0, false), (3.0, true), (2.0, true)]]);
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert_eq!(drawn.matches("hollow").count(), 1);
        assert!(drawn.contains(">2.0</text>"), "{drawn}");
    }

    #[test]
    fn without_a_valid_round_there_is_no_median_and_of_nothing_no_strip() {
        assert!(!strip(&[&[(1.0, false)]]).contains("median"));
        assert_eq!(strip(&[&[(0.0, true)], &[]]), "");
    }

    #[test]
    fn brokers_far_apart_get_powers_of_ten() {
        let axis = Axis::of(2.0, 900.0);
        let labels: Vec<String> = axis.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1", "10", "100", "1,000"]);
        assert!(axis.x(2.0) > LEFT && axis.x(900.0) < WIDTH - RIGHT);
        assert_eq!(Axis::of(40.0, 100.0).x(0.0), LEFT);
    }
}
