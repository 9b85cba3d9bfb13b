//! Figures as bars from nought, those of all brokers below each other: the charts of published
//! comparisons.

use maud::{Markup, html};

use crate::columns::Column;
use crate::drawing::{self, COLOURS, WIDTH, px};

/// Some figures of one unit.
pub(crate) struct Bars<'a> {
    pub title: &'a str,
    /// In the order of their colours.
    pub brokers: &'a [String],
    /// For each figure the median of each broker, where it has one.
    pub groups: Vec<(&'a Column, Vec<Option<f64>>)>,
    pub cores: Option<f64>,
}

impl Bars<'_> {
    /// A `<figure>`; nothing where all is nought.
    pub(crate) fn figure(&self) -> Markup {
        let all = self.groups.iter().flat_map(|(_, values)| values.iter().flatten());
        let most = all.copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return Markup::default();
        }
        let mut tops = Vec::new();
        let mut floor = TOP;
        for (_, values) in &self.groups {
            tops.push(floor);
            floor += ROW * values.iter().flatten().count() as f64 + GAP;
        }
        let content = html! {
            @for ((column, values), top) in self.groups.iter().zip(&tops) {
                (self.group(column, values, *top, most))
            }
        };
        let key = |(n, name): (usize, &String)| (format!("k{}", n % COLOURS), name.clone());
        let legend: Vec<_> = self.brokers.iter().enumerate().map(key).collect();
        let drawing = drawing::svg(self.title, floor, &content);
        drawing::figure("strip", self.title, &legend, &drawing, "")
    }

    fn group(&self, column: &Column, values: &[Option<f64>], top: f64, most: f64) -> Markup {
        let known = values.iter().enumerate().filter_map(|(n, value)| Some((n, (*value)?)));
        let known: Vec<(usize, f64)> = known.collect();
        // The title says the rest.
        let name = column.name.rsplit(", ").next().unwrap_or(column.name);
        html! {
            @if !known.is_empty() {
                text class="name" x="0" y=(px(top + LETTERS)) { (name) }
            }
            @for (at, (n, value)) in known.iter().enumerate() {
                @let y = top + ROW * at as f64;
                @let width = value / most * (WIDTH - LEFT - RIGHT);
                rect class={ "k" (n % COLOURS) } x=(px(LEFT)) y=(px(y + 2.0))
                    width=(px(width.max(1.0))) height=(px(ROW - 4.0)) {
                    title { (self.brokers[*n]) }
                }
                text class="name" x=(px(LEFT + width + 6.0)) y=(px(y + LETTERS)) {
                    (column.show_end(*value, self.cores))
                }
            }
        }
    }
}

const LEFT: f64 = 104.0;
/// As wide as the words behind the longest bar.
const RIGHT: f64 = 120.0;
const TOP: f64 = 4.0;
const ROW: f64 = 20.0;
const GAP: f64 = 8.0;
/// From the top of a row to the foot of its letters.
const LETTERS: f64 = 15.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::CPU_MAX;

    fn bars(values: Vec<Option<f64>>) -> String {
        let brokers = ["a<b".to_owned(), "c".to_owned()];
        let groups = vec![(CPU_MAX, values)];
        let bars = Bars { title: "CPU", brokers: &brokers, groups, cores: Some(4.0) };
        bars.figure().into_string()
    }

    #[test]
    fn a_bar_is_as_long_as_its_figure() {
        let drawn = bars(vec![Some(200.0), Some(100.0)]);
        let full = WIDTH - LEFT - RIGHT;
        for width in [full, full / 2.0] {
            assert!(drawn.contains(&format!("width=\"{}\"", px(width))), "{drawn}");
        }
        assert!(drawn.contains(">50 %<") && drawn.contains(">25 %<"), "{drawn}");
        assert!(drawn.contains("a&lt;b") && !drawn.contains("a<b"));
    }

    #[test]
    fn a_broker_without_a_figure_has_no_bar() {
        assert_eq!(bars(vec![None, Some(3.0)]).matches("<rect").count(), 1);
        assert_eq!(bars(vec![None, Some(0.0)]), "");
    }
}
