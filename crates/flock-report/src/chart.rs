//! Charts as SVG, drawn here: they need no script, print well, and take their colours from the
//! page, so that light and dark are the page's business. A small script on the page adds a reading
//! line.

use maud::{Markup, html};

use super::drawing::{
    self, COLOURS, Events, FLOOR, HEIGHT, LEFT, RIGHT, Scale, WIDTH, nice_step, px,
};
use flock_measure::text;

/// A chart of one or several lines.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    pub title: String,
    /// What is on the vertical axis.
    pub unit: Unit,
    pub axis: Axis,
    pub log: bool,
    pub lines: Vec<Line>,
    pub(crate) events: Events,
    pub note: String,
}

#[derive(Clone, Debug, Default)]
pub struct Line {
    pub name: String,
    /// A value that is no number is a gap.
    pub points: Vec<(f64, f64)>,
    /// Where, and from what to what, a point may lie as well.
    pub bars: Vec<(f64, (f64, f64))>,
}

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    Micros,
    /// Microseconds of CPU, of which parts matter.
    Cost,
    /// Hundredths of a core.
    Percent,
    Bytes,
    #[default]
    Count,
}

/// The horizontal axis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    #[default]
    Seconds,
    /// Percentiles by their distance from 100: 90, 99, 99.9 are equally far apart.
    Percentile,
    /// A latency in microseconds, by powers of ten.
    Micros,
    /// Values with these names, evenly apart; points lie at their positions, from 0.
    Labels(Vec<String>),
}

impl Line {
    pub fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().collect();
        Self { name: name.to_owned(), points, bars: Vec::new() }
    }
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", text::number(value)),
            Self::Micros => text::micros(value),
            Self::Cost => format!("{} us", text::number(value)),
            Self::Percent => format!("{} %", text::number(value)),
            Self::Bytes => text::bytes(value),
            Self::Count => text::number(value),
        }
    }
}

impl Chart {
    /// A chart of one figure against time.
    pub fn over_time(title: &str, unit: Unit, lines: Vec<Line>) -> Self {
        Self { title: title.to_owned(), unit, lines, ..Self::default() }
    }

    /// Latencies against the percentile.
    pub fn by_percentile(title: String, lines: Vec<Line>, note: &str) -> Self {
        let (axis, note) = (Axis::Percentile, note.to_owned());
        Self { title, unit: Unit::Micros, axis, log: true, lines, note, ..Self::default() }
    }

    /// Without the lines that have nothing above zero.
    pub fn without_zeros(mut self) -> Self {
        self.lines.retain(|line| line.points.iter().any(|point| point.1 > 0.0));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// A `<figure>` with legend and drawing; nothing for a chart without points.
    pub fn figure(&self) -> Markup {
        if self.is_empty() {
            return Markup::default();
        }
        let name = |(n, line): (usize, &Line)| (format!("k{}", n % COLOURS), line.name.clone());
        let legend: Vec<_> = match self.lines.len() {
            1 => Vec::new(),
            _ => self.lines.iter().enumerate().map(name).collect(),
        };
        let drawing = drawing::svg(&self.title, HEIGHT, &self.draw());
        drawing::figure("chart", &self.title, &legend, &drawing, &self.note)
    }

    fn draw(&self) -> Markup {
        let scales = Scales::of(self);
        let x = |at: f64| scales.x(at);
        let values = scales.y.ticks(step_of(scales.y.to, self.unit)).into_iter();
        let values = values.map(|value| (scales.y(value), self.unit.show(value)));
        let ticks = scales.x_ticks().into_iter().map(|(at, label)| (x(at), label));
        html! {
            (self.events.shades(TOP, x))
            (drawing::grid(values, ticks))
            line class="axis" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(FLOOR) y2=(FLOOR) {}
            (self.events.lines((TOP, TOP + 9.0), x))
            @for (n, line) in self.lines.iter().enumerate() { (self.draw_line(&scales, n, line)) }
            line class="probe" y1=(TOP) y2=(FLOOR) visibility="hidden" {}
        }
    }

    fn draw_line(&self, scales: &Scales, n: usize, line: &Line) -> Markup {
        let points = thinned(&line.points);
        let (colour, shift) = (n % COLOURS, self.shift(n));
        let x = |at: f64| scales.x(at) + shift;
        // What the script of the page shows of each point.
        let shown = |(at, value): &(f64, f64)| {
            let bar = line.bars.iter().find(|bar| bar.0 == *at);
            let range = bar.map_or(String::new(), |(_, (low, high))| {
                format!(" ({} to {})", self.unit.show(*low), self.unit.show(*high))
            });
            let value = self.unit.show(*value);
            format!("{:.1},{} · {value}{range};", scales.x(*at), scales.x_label(*at))
        };
        let point = |(at, value): &(f64, f64)| format!("{:.1},{:.1} ", x(*at), scales.y(*value));
        let runs = || points.split(|point| point.1.is_nan()).filter(|run| !run.is_empty());
        // Points that are few are seen as such.
        let is_few = |run: &[_]| matches!(self.axis, Axis::Labels(_)) || run.len() == 1;
        html! {
            @if !points.is_empty() {
                g class="line" data-key={ "c" (colour) } data-name=(line.name)
                    data-p=(runs().flatten().map(shown).collect::<String>()) {
                    @for run in runs() {
                        polyline class={ "c" (colour) }
                            points=(run.iter().map(point).collect::<String>()) {}
                        @for (at, value) in run.iter().filter(|_| is_few(run)) {
                            circle class={ "k" (colour) } cx=(px(x(*at))) cy=(px(scales.y(*value)))
                                r="3" {}
                        }
                    }
                    @for (at, (low, high)) in &line.bars {
                        path class={ "c" (colour) " bar" }
                            d=(bar(x(*at), (scales.y(*low), scales.y(*high)))) {}
                    }
                }
            }
        }
    }

    /// Bars at the same place stand beside each other, with their lines.
    fn shift(&self, n: usize) -> f64 {
        let with_bars = || self.lines.iter().filter(|line| !line.bars.is_empty());
        let Some(own) = with_bars().position(|line| line.name == self.lines[n].name) else {
            return 0.0;
        };
        (own as f64 - (with_bars().count() - 1) as f64 / 2.0) * BAR_GAP
    }
}

/// From the low to the high end of what a point may be.
fn bar(x: f64, (low, high): (f64, f64)) -> String {
    let (left, right) = (x - BAR_CAP, x + BAR_CAP);
    let end = |y: f64| format!("M{left:.1} {y:.1}H{right:.1}");
    format!("{}M{x:.1} {low:.1}V{high:.1}{}", end(low), end(high))
}

/// Where values land on the drawing.
struct Scales {
    axis: Axis,
    x: Scale,
    y: Scale,
}

impl Scales {
    fn of(chart: &Chart) -> Self {
        let ends = |line: &Line| {
            let bars = line.bars.iter().flat_map(|(at, (low, high))| [(*at, *low), (*at, *high)]);
            line.points.iter().copied().chain(bars).collect::<Vec<_>>()
        };
        let all: Vec<(f64, f64)> = chart.lines.iter().flat_map(ends).collect();
        let positions = || all.iter().map(|point| position(&chart.axis, point.0));
        let (x_min, x_max) =
            (positions().fold(f64::MAX, f64::min), positions().fold(f64::MIN, f64::max));
        let values = || all.iter().map(|point| point.1);
        let y_max = values().fold(0.0, f64::max);
        let y = if chart.log {
            let least = values().filter(|v| *v > 0.0).fold(y_max.max(1.0), f64::min);
            // One power of ten at least.
            Scale::decades(least, y_max.max(10_f64.powf(least.log10().floor() + 1.0)))
        } else {
            let step = step_of(y_max.max(1e-9), chart.unit);
            Scale::even(0.0, (y_max / step).ceil().max(1.0) * step)
        };
        let (from, to) = match &chart.axis {
            Axis::Seconds => (0.0, x_max),
            Axis::Percentile => (x_min, x_max),
            Axis::Micros => (x_min.floor(), x_max.ceil()),
            Axis::Labels(names) => (-LABEL_MARGIN, names.len() as f64 - 1.0 + LABEL_MARGIN),
        };
        Self { axis: chart.axis.clone(), x: Scale::even(from, to.max(from + 1e-9)), y }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + self.x.part(position(&self.axis, at)) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        FLOOR - self.y.part(value) * (FLOOR - TOP)
    }

    fn x_ticks(&self) -> Vec<(f64, String)> {
        let is_within =
            |at: &f64| (self.x.from..=self.x.to + 1e-9).contains(&position(&self.axis, *at));
        let all: Vec<f64> = match &self.axis {
            Axis::Seconds => return drawing::time_ticks(self.x.to),
            Axis::Percentile => PERCENTILES.into_iter().filter(is_within).collect(),
            Axis::Micros => (0..=9).map(|n| 10_f64.powi(n)).filter(is_within).collect(),
            Axis::Labels(names) => (0..names.len()).map(|at| at as f64).collect(),
        };
        all.into_iter().map(|at| (at, self.x_label(at))).collect()
    }

    fn x_label(&self, at: f64) -> String {
        match &self.axis {
            Axis::Percentile => {
                let digits = if at >= 99.995 {
                    3
                } else if at > 99.95 {
                    2
                } else {
                    1
                };
                let text = format!("{at:.digits$}");
                format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
            }
            Axis::Micros => text::micros(at),
            Axis::Seconds => drawing::time_label(at, self.x.to),
            Axis::Labels(names) => names.get(at.round() as usize).cloned().unwrap_or_default(),
        }
    }
}

/// A position along the axis.
fn position(axis: &Axis, at: f64) -> f64 {
    match axis {
        Axis::Seconds | Axis::Labels(_) => at,
        Axis::Micros => at.max(1.0).log10(),
        Axis::Percentile => -(100.0 - at).max(PERCENTILE_REST_MIN).log10(),
    }
}

/// Of what is counted there are no halves.
fn step_of(max: f64, unit: Unit) -> f64 {
    let step = nice_step(max);
    if unit == Unit::Count { step.max(1.0) } else { step }
}

/// At most [`POINTS_MAX`] points: of each run of neighbours the highest, which is what matters.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let highest = |run: &[(f64, f64)]| run.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(each).filter_map(highest).collect()
}

const TOP: f64 = 12.0;
/// On both sides of the values of [`Axis::Labels`], in steps between them.
const LABEL_MARGIN: f64 = 0.35;
/// Between the bars of two lines, and half as wide as their ends are.
const BAR_GAP: f64 = 7.0;
const BAR_CAP: f64 = 3.0;
const POINTS_MAX: usize = 600;
const PERCENTILES: [f64; 9] = [0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];
/// The maximum is drawn as far right as this distance from 100.
const PERCENTILE_REST_MIN: f64 = 0.0005;

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log: bool, axis: Axis, points: &[(f64, f64)]) -> Chart {
        Chart {
            title: "a <title>".into(),
            unit: Unit::Micros,
            axis,
            log,
            lines: vec![Line { name: "p99".into(), points: points.to_vec(), ..Line::default() }],
            events: Events { marks: vec![(1.0, "kill".into())], outages: vec![(0.0, 2.0)] },
            note: String::new(),
        }
    }

    #[test]
    fn the_drawing_stays_inside_its_frame() {
        for (log, axis) in [(false, Axis::Seconds), (true, Axis::Seconds), (true, Axis::Percentile)]
        {
            let points = [(0.0, 0.0), (50.0, 120.0), (99.0, 9_000.0), (100.0, 2_000_000.0)];
            let chart = chart(log, axis, &points);
            let scale = Scales::of(&chart);
            for (at, value) in points {
                assert!((LEFT..=WIDTH - RIGHT).contains(&scale.x(at)));
                assert!((TOP..=FLOOR).contains(&scale.y(value)));
            }
            let svg = chart.figure().into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("a &lt;title&gt;"));
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing_and_one_point_is_a_dot() {
        assert_eq!(chart(false, Axis::Seconds, &[]).figure().into_string(), "");
        assert!(
            chart(false, Axis::Seconds, &[(1.0, 5.0)]).figure().into_string().contains("<circle")
        );
        assert!(!chart(true, Axis::Seconds, &[(0.0, 0.0)]).figure().into_string().contains("NaN"));
    }

    #[test]
    fn a_gap_is_drawn_as_one() {
        let svg =
            chart(true, Axis::Seconds, &[(0.0, 5.0), (1.0, 6.0), (2.0, f64::NAN), (3.0, 7.0)])
                .figure()
                .into_string();
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 1, "a second between two gaps is seen");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn what_a_point_may_be_as_well_is_drawn_beside_that_of_other_lines() {
        let mut chart = chart(true, Axis::Labels(vec!["a".into(), "b".into()]), &[(0.0, 5.0)]);
        chart.lines[0].bars = vec![(0.0, (2.0, 700.0))];
        chart.lines.push(Line { name: "other".into(), ..chart.lines[0].clone() });
        chart.lines.push(Line { name: "none".into(), bars: Vec::new(), ..chart.lines[0].clone() });
        let svg = chart.figure().into_string();
        assert_eq!(svg.matches(" bar\"").count(), 2, "{svg}");
        assert!(svg.contains("5 us (2 us to 700 us)"), "{svg}");
        let shifts = [0, 1, 2].map(|n| chart.shift(n));
        assert_eq!(shifts, [-BAR_GAP / 2.0, BAR_GAP / 2.0, 0.0]);
        let scale = Scales::of(&chart);
        assert!(scale.y.from <= 2.0 && scale.y.to >= 700.0, "{:?}", scale.y);
    }

    #[test]
    fn thinning_keeps_the_peaks() {
        let mut points: Vec<(f64, f64)> = (0..5_000).map(|n| (f64::from(n), 1.0)).collect();
        points[4_321].1 = 99.0;
        let thin = thinned(&points);
        assert!(thin.len() <= POINTS_MAX);
        assert!(thin.iter().any(|point| point.1 == 99.0));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([7.0, 100.0, 260.0].map(nice_step), [2.0, 25.0, 100.0]);
        assert_eq!([Unit::Count, Unit::Micros].map(|unit| step_of(2.0, unit)), [1.0, 0.5]);
    }
}
