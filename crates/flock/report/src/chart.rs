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
    /// How far a time axis reaches at least, in seconds.
    pub until: f64,
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
    /// The least and the most of each point, in the same order; empty where points are single
    /// values.
    pub ranges: Vec<(f64, f64)>,
    pub joined: Joined,
}

/// What stands for several neighbours, where there are more than can be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joined {
    #[default]
    Average,
    /// Of percentiles there is no average.
    Middle,
    Highest,
}

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    BytesPerSecond,
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
        Self { name: name.to_owned(), points, ..Self::default() }
    }
}

impl Unit {
    pub fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", text::number(value)),
            Self::BytesPerSecond => format!("{}/s", text::bytes(value)),
            Self::Micros => text::micros(value),
            Self::Cost => format!("{} us", text::number(value)),
            Self::Percent => format!("{} %", text::number(value)),
            Self::Bytes => text::bytes(value),
            Self::Count => text::number(value),
        }
    }

    /// As an axis has room for it: `1.50 M` for millions.
    fn label(self, value: f64) -> String {
        let millions = || format!("{} M", text::number(value / 1e6));
        match self {
            Self::PerSecond if value >= 1e6 => format!("{}/s", millions()),
            Self::Count if value >= 1e6 => millions(),
            _ => self.show(value),
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
        let scales = Scales::of(self);
        let lines: Vec<Drawn<'_>> = self.drawn(&scales);
        let name =
            |line: &Drawn<'_>| (format!("k{}{}", line.colour, line.dash()), line.line.name.clone());
        let legend: Vec<_> = match lines.len() {
            1 => Vec::new(),
            _ => lines.iter().map(name).collect(),
        };
        let drawing = drawing::svg(&self.title, HEIGHT, &self.draw(&scales, &lines));
        let words = [self.note.clone(), self.band_words(&lines)];
        let note = words.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>();
        drawing::figure("chart", &self.title, &legend, &drawing, &note.join(" "))
    }

    /// What the lines and the bands of a chart over a long time are.
    fn band_words(&self, lines: &[Drawn<'_>]) -> String {
        let has_band = |line: &Drawn<'_>| line.points.iter().any(Point::has_range);
        if self.axis != Axis::Seconds || !lines.iter().any(has_band) {
            return String::new();
        }
        let apart = lines.iter().flat_map(|line| line.points.windows(2));
        let secs = apart.map(|pair| pair[1].at - pair[0].at).fold(0.0, f64::max);
        let of = match lines.iter().any(|line| line.line.joined == Joined::Average) {
            true => "the average",
            false => "the median (of maxima: the highest)",
        };
        format!(
            "Each point is {of} of {}. Bands reach from the lowest to the highest value in it.",
            text::seconds(secs)
        )
    }

    /// The lines as far as they can be drawn. One that lies on another is dashed, and so is one
    /// whose colour another has.
    fn drawn(&self, scales: &Scales) -> Vec<Drawn<'_>> {
        let mut all: Vec<Drawn<'_>> = Vec::new();
        for (n, line) in self.lines.iter().enumerate() {
            let points = thinned(line, self.axis == Axis::Seconds);
            let mut drawn = Drawn { line, points, colour: n % COLOURS, dash: 0 };
            let below = all.iter().filter(|other| scales.hides(&drawn, other)).count();
            let is_taken = |dash: &usize| {
                all.iter().any(|other| (other.colour, other.dash) == (drawn.colour, *dash))
            };
            let last = DASHES.len() - 1;
            drawn.dash = (below..last).find(|dash| !is_taken(dash)).unwrap_or(last);
            all.push(drawn);
        }
        all
    }

    fn draw(&self, scales: &Scales, lines: &[Drawn<'_>]) -> Markup {
        let x = |at: f64| scales.x(at);
        let values = scales.y.ticks(step_of(scales.y.to, self.unit)).into_iter();
        let values = values.map(|value| (scales.y(value), self.unit.label(value)));
        let ticks = scales.x_ticks().into_iter().map(|(at, label)| (x(at), label));
        html! {
            (self.events.shades(TOP, x))
            (drawing::grid(values, ticks))
            line class="axis" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(FLOOR) y2=(FLOOR) {}
            (self.events.lines((TOP, TOP - 2.0), x))
            @for line in lines { (band(scales, line)) }
            @for (n, line) in lines.iter().enumerate() { (self.draw_line(scales, n, line)) }
            line class="probe" y1=(TOP) y2=(FLOOR) visibility="hidden" {}
        }
    }

    fn draw_line(&self, scales: &Scales, n: usize, drawn: &Drawn<'_>) -> Markup {
        let (line, colour, shift) = (drawn.line, drawn.colour, self.shift(n));
        let x = |at: f64| scales.x(at) + shift;
        // What the script of the page shows of each point.
        let shown = |point: &Point| {
            let bar = line.bars.iter().find(|bar| bar.0 == point.at).map(|bar| bar.1);
            let range = bar.or_else(|| point.has_range().then_some((point.low, point.high)));
            let range = range.map_or(String::new(), |(low, high)| {
                format!(" ({} to {})", self.unit.show(low), self.unit.show(high))
            });
            let value = self.unit.show(point.value);
            format!("{:.1},{} · {value}{range};", scales.x(point.at), scales.x_label(point.at))
        };
        let point = |point: &Point| format!("{:.1},{:.1} ", x(point.at), scales.y(point.value));
        // Points that are few are seen as such.
        let is_few = |run: &[_]| matches!(self.axis, Axis::Labels(_)) || run.len() == 1;
        html! {
            @if !drawn.points.is_empty() {
                g class="line" data-key={ "c" (colour) } data-name=(line.name)
                    data-p=(drawn.runs().flatten().map(shown).collect::<String>()) {
                    @for run in drawn.runs() {
                        polyline class={ "c" (colour) (drawn.dash()) }
                            points=(run.iter().map(point).collect::<String>()) {}
                        @for point in run.iter().filter(|_| is_few(run)) {
                            circle class={ "k" (colour) } cx=(px(x(point.at)))
                                cy=(px(scales.y(point.value))) r="3" {}
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

/// From the least to the most of each point of a line.
fn band(scales: &Scales, drawn: &Drawn<'_>) -> Markup {
    let runs = || drawn.runs().filter(|run| run.iter().any(Point::has_range));
    let path = |run: &[Point]| {
        let end =
            |point: &Point, value| format!("{:.1} {:.1}", scales.x(point.at), scales.y(value));
        let over = run.iter().map(|point| end(point, point.high));
        let back = run.iter().rev().map(|point| end(point, point.low));
        format!("M{}Z", over.chain(back).collect::<Vec<_>>().join("L"))
    };
    html! {
        @for run in runs() { path class={ "k" (drawn.colour) " band" } d=(path(run)) {} }
    }
}

/// A line as it is drawn.
struct Drawn<'a> {
    line: &'a Line,
    points: Vec<Point>,
    colour: usize,
    /// Its place in `DASHES`.
    dash: usize,
}

impl Drawn<'_> {
    /// From gap to gap.
    fn runs(&self) -> impl Iterator<Item = &[Point]> {
        self.points.split(|point| point.value.is_nan()).filter(|run| !run.is_empty())
    }

    fn dash(&self) -> &'static str {
        DASHES[self.dash]
    }
}

/// One or several points of a line.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: f64,
    value: f64,
    low: f64,
    high: f64,
}

impl Point {
    fn has_range(&self) -> bool {
        self.high > self.low
    }
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
            let ranges = line.points.iter().zip(&line.ranges);
            let ranges =
                ranges.flat_map(|(point, (low, high))| [(point.0, *low), (point.0, *high)]);
            line.points.iter().copied().chain(bars).chain(ranges).collect::<Vec<_>>()
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
            Axis::Seconds => (0.0, x_max.max(chart.until)),
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

    /// Most of a line lies where another one is. That both are nought is no matter.
    fn hides(&self, line: &Drawn<'_>, other: &Drawn<'_>) -> bool {
        let pairs = || {
            let pairs = line.points.iter().zip(&other.points);
            pairs.filter(|(a, b)| a.value != 0.0 || b.value != 0.0)
        };
        let is_near = |(a, b): &(&Point, &Point)| {
            a.at == b.at && (self.y(a.value) - self.y(b.value)).abs() < HIDDEN_PX
        };
        pairs().filter(is_near).count() * 2 > pairs().count()
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

/// At most [`POINTS_MAX`] points. Over time a point has the range of those that it stands for;
/// elsewhere the highest is what matters. Only where there is no value at all, there is a gap.
fn thinned(line: &Line, is_over_time: bool) -> Vec<Point> {
    let each = line.points.len().div_ceil(POINTS_MAX).max(1);
    let join = |(n, chunk): (usize, &[(f64, f64)])| {
        let mut values: Vec<f64> =
            chunk.iter().map(|point| point.1).filter(|value| !value.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let ranges = line.ranges.iter().skip(n * each).take(each).flat_map(|(a, b)| [*a, *b]);
        let all = || values.iter().copied().chain(ranges.clone().filter(|value| !value.is_nan()));
        let Some(highest) = values.last().copied() else {
            return Point { at: chunk[chunk.len() / 2].0, value: f64::NAN, low: 0.0, high: 0.0 };
        };
        if !is_over_time {
            let at = chunk.iter().find(|point| point.1 == highest).map_or(chunk[0].0, |one| one.0);
            return Point { at, value: highest, low: highest, high: highest };
        }
        let value = match line.joined {
            Joined::Average => values.iter().sum::<f64>() / values.len() as f64,
            Joined::Middle => values[values.len() / 2],
            Joined::Highest => highest,
        };
        let (low, high) = (all().fold(value, f64::min), all().fold(value, f64::max));
        let low = if line.joined == Joined::Highest { high } else { low };
        Point { at: chunk[chunk.len() / 2].0, value, low, high }
    };
    line.points.chunks(each).enumerate().map(join).collect()
}

const TOP: f64 = 18.0;
/// On both sides of the values of [`Axis::Labels`], in steps between them.
const LABEL_MARGIN: f64 = 0.35;
/// Between the bars of two lines, and half as wide as their ends are.
const BAR_GAP: f64 = 7.0;
/// Classes of lines through which those below are seen.
const DASHES: [&str; 3] = ["", " over", " over2"];
const BAR_CAP: f64 = 3.0;
const POINTS_MAX: usize = 240;
/// Lines that are nearer to each other look like one.
const HIDDEN_PX: f64 = 1.5;
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
            lines: vec![Line::new("p99", points.to_vec())],
            events: Events { marks: vec![(1.0, "kill".into())], outages: vec![(0.0, 2.0)] },
            ..Chart::default()
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
    fn thinning_keeps_peaks_and_dips_and_draws_gaps_only_where_nothing_is() {
        let mut points: Vec<(f64, f64)> = (0..5_000).map(|n| (f64::from(n), 10.0)).collect();
        (points[4_321].1, points[77].1) = (99.0, 0.0);
        points[1_000..1_100].iter_mut().for_each(|point| point.1 = f64::NAN);
        let thin = |joined| thinned(&Line { joined, ..Line::new("a", points.clone()) }, true);
        let average = thin(Joined::Average);
        assert!(average.len() <= POINTS_MAX);
        assert!(average.iter().any(|point| point.high == 99.0 && point.value < 99.0));
        assert!(average.iter().any(|point| point.low == 0.0 && point.value > 0.0));
        let gaps = average.iter().filter(|point| point.value.is_nan()).count();
        assert!((3..=5).contains(&gaps), "{gaps} of about 21 seconds each");
        assert!(thin(Joined::Highest).iter().any(|point| point.value == 99.0));
        assert!(
            thin(Joined::Middle).iter().all(|point| point.value.is_nan() || point.value == 10.0)
        );
    }

    #[test]
    fn a_day_with_a_stall_in_every_point_is_drawn_with_its_peaks() {
        let stalls = |n: u32| if n.is_multiple_of(100) { f64::NAN } else { f64::from(n % 7 + 1) };
        let points: Vec<(f64, f64)> = (1..=86_400).map(|n| (f64::from(n), stalls(n))).collect();
        let svg = chart(true, Axis::Seconds, &points).figure().into_string();
        assert_eq!(svg.matches("<polyline").count(), 1, "no point is without a value");
        assert!(svg.contains("band") && svg.contains("(1 us to 7 us)"));
        assert!(svg.contains(">6 h<") && svg.contains(">24 h<") && !svg.contains(">1440"), "hours");
        assert!(svg.contains("Each point is the average of 6 min"), "{svg}");
    }

    #[test]
    fn a_line_that_hides_another_is_dashed() {
        let mut chart = chart(false, Axis::Seconds, &[(0.0, 5.0), (1.0, 6.0), (2.0, 5.0)]);
        chart.lines.push(Line { name: "same".into(), ..chart.lines[0].clone() });
        chart.lines.push(Line::new("other", [(0.0, 1.0), (1.0, 2.0), (2.0, 1.0)]));
        let svg = chart.figure().into_string();
        for class in ["\"c0\"", "\"c1 over\"", "\"c2\"", "\"k1 over\""] {
            assert!(svg.contains(class), "{class}: {svg}");
        }
    }

    #[test]
    fn lines_of_one_colour_differ_in_their_dashes() {
        let mut chart = chart(false, Axis::Seconds, &[(0.0, 0.0), (1.0, 20.0)]);
        for n in 1..=2 * COLOURS {
            let to = 20.0 * n as f64;
            chart.lines.push(Line::new(&format!("line {n}"), [(0.0, to), (1.0, to + 9.0)]));
        }
        let svg = chart.figure().into_string();
        for class in ["c0", "c0 over", "c0 over2", "c1", "c1 over", "k1 over"] {
            assert!(svg.contains(&format!("\"{class}\"")), "{class}: {svg}");
        }
    }

    #[test]
    fn millions_are_short_on_an_axis() {
        let labels = [Unit::PerSecond, Unit::Count].map(|unit| unit.label(1_500_000.0));
        assert_eq!(labels, ["1.50 M/s", "1.50 M"]);
        assert_eq!(Unit::PerSecond.label(250_000.0), "250,000/s");
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([7.0, 100.0, 260.0].map(nice_step), [2.0, 25.0, 100.0]);
        assert_eq!([Unit::Count, Unit::Micros].map(|unit| step_of(2.0, unit)), [1.0, 0.5]);
    }
}
