//! The heat map: time to the right, latency upwards, and the darker the more messages had it. A
//! second that the percentiles of a line hide (two crowds, a few that waited long) shows here.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::drawing::{self, Events, FLOOR, HEIGHT, LEFT, RIGHT, WIDTH};
use flock_measure::text;
use flock_measure::{Heat, STEPS_PER_DECADE, step_from_us};

/// A `<figure>` of the map; nothing where there is nothing to draw.
pub(super) fn figure(heat: &Heat, title: &str, until_secs: u32, events: &Events) -> Markup {
    let Some(map) = Map::of(heat, until_secs) else { return Markup::default() };
    let levels = map.levels();
    let key = |(level, from): (usize, &u64)| {
        (format!("h{level}"), format!("{} and more", text::count(*from)))
    };
    let legend: Vec<_> = levels.iter().enumerate().map(key).collect();
    let each = match map.secs_each {
        1 => "second".to_owned(),
        secs => text::seconds(f64::from(secs)),
    };
    let note = format!(
        "Messages per {each} and step of latency, {STEPS_PER_DECADE} steps per power of ten. \
             Nothing arrived in empty columns."
    );
    let drawing = drawing::svg(title, HEIGHT, &map.draw(&levels, events));
    drawing::figure("heat", title, &legend, &drawing, &note)
}

/// The counts of the cells.
struct Map {
    /// By column and step.
    cells: BTreeMap<(u32, u8), u64>,
    columns: u32,
    secs_each: u32,
    /// From the power of ten below the lowest step to the one above the highest.
    steps: (u8, u8),
    most: u64,
}

impl Map {
    fn of(heat: &Heat, until_secs: u32) -> Option<Self> {
        let last = heat.seconds.iter().map(|second| second.at_secs).max()?;
        let secs = until_secs.max(last).max(1);
        let secs_each = secs.div_ceil(COLUMNS_MAX).max(1);
        let mut cells: BTreeMap<(u32, u8), u64> = BTreeMap::new();
        for second in &heat.seconds {
            // A second is named after its end.
            let column = second.at_secs.saturating_sub(1) / secs_each;
            for (step, count) in &second.steps {
                *cells.entry((column, *step)).or_default() += count;
            }
        }
        let low = cells.keys().map(|(_, step)| *step).min()?;
        let high = cells.keys().map(|(_, step)| *step).max()?;
        let steps = (
            low / STEPS_PER_DECADE * STEPS_PER_DECADE,
            (high / STEPS_PER_DECADE + 1) * STEPS_PER_DECADE,
        );
        let most = cells.values().copied().max()?;
        Some(Self { cells, columns: secs.div_ceil(secs_each), secs_each, steps, most })
    }

    /// From how many on each level of darkness is: equal parts of the logarithm, because a few
    /// slow ones among thousands are what is looked for.
    fn levels(&self) -> Vec<u64> {
        let mut all: Vec<u64> = (0..LEVELS)
            .map(|level| {
                let part = f64::from(level) / f64::from(LEVELS);
                (self.most as f64).powf(part).ceil() as u64
            })
            .collect();
        all.dedup();
        all
    }

    fn draw(&self, levels: &[u64], events: &Events) -> Markup {
        let (width, height) = (self.column_width(), self.row_height());
        let mut paths = vec![String::new(); levels.len()];
        for ((column, step), count) in &self.cells {
            let level = levels.iter().rposition(|from| count >= from).unwrap_or(0);
            let (x, y) = (LEFT + f64::from(*column) * width, self.y(*step + 1));
            paths[level] += &format!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
        }
        let steps = (self.steps.0..=self.steps.1).step_by(usize::from(STEPS_PER_DECADE));
        let values = steps.map(|step| (self.y(step), text::micros(step_from_us(step))));
        let ticks = drawing::time_ticks(f64::from(self.columns * self.secs_each));
        let ticks = ticks.into_iter().map(|(at, label)| (self.x(at), label));
        html! {
            (events.shades(TOP, |at| self.x(at)))
            @for (level, path) in paths.iter().enumerate() { path class={ "h" (level) } d=(path) {} }
            (drawing::grid(values, ticks))
            (events.lines((TOP, TOP - 2.0), |at| self.x(at)))
        }
    }

    fn column_width(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / f64::from(self.columns.max(1))
    }

    fn row_height(&self) -> f64 {
        (FLOOR - TOP) / f64::from(self.steps.1 - self.steps.0)
    }

    /// The lower edge of a step.
    fn y(&self, step: u8) -> f64 {
        FLOOR - f64::from(step - self.steps.0) * self.row_height()
    }

    fn x(&self, at_secs: f64) -> f64 {
        let x = LEFT + at_secs / f64::from(self.secs_each) * self.column_width();
        x.clamp(LEFT, WIDTH - RIGHT)
    }
}

const TOP: f64 = 14.0;
/// More seconds than these share columns.
const COLUMNS_MAX: u32 = 120;
const LEVELS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::{HeatSecond, LatencyHistogram, LatencyKind};

    fn heat(seconds: &[(u32, &[u64])]) -> Heat {
        let second = |(at_secs, all): &(u32, &[u64])| {
            let mut histogram = LatencyHistogram::new();
            for micros in *all {
                histogram.record_micros_n(*micros, 1);
            }
            HeatSecond::of(*at_secs, &histogram)
        };
        Heat { kind: LatencyKind::EndToEnd, seconds: seconds.iter().map(second).collect() }
    }

    #[test]
    fn a_cell_for_each_step_and_second_and_none_for_a_second_of_nothing() {
        let map = Map::of(&heat(&[(1, &[100, 101, 2_000]), (3, &[100])]), 3).unwrap();
        let cells: Vec<(u32, u64)> = map.cells.iter().map(|((at, _), n)| (*at, *n)).collect();
        assert_eq!(cells, [(0, 2), (0, 1), (2, 1)]);
        assert_eq!((map.columns, map.steps), (3, (16, 32)));
        let drawn =
            figure(&heat(&[(1, &[100, 2_000]), (3, &[100])]), "a <b>", 3, &Events::default())
                .into_string();
        assert_eq!(drawn.matches("z\"").count() + drawn.matches("zM").count(), 3, "{drawn}");
        assert!(drawn.contains("a &lt;b&gt;") && drawn.contains("1 ms"), "{drawn}");
    }

    #[test]
    fn everything_stays_inside_the_frame() {
        let seconds: Vec<(u32, &[u64])> =
            (1..7_001).map(|at| (at, &[1, 599_000_000][..])).collect();
        let map = Map::of(&heat(&seconds), 7_000).unwrap();
        assert!(map.columns <= COLUMNS_MAX, "{}", map.columns);
        for (column, step) in map.cells.keys() {
            let right = LEFT + f64::from(column + 1) * map.column_width();
            assert!(right <= WIDTH - RIGHT + 0.01, "{right}");
            assert!(map.y(*step) <= FLOOR + 0.01 && map.y(step + 1) >= TOP - 0.01);
        }
        assert_eq!(figure(&heat(&[]), "t", 3, &Events::default()).into_string(), "");
    }
}
