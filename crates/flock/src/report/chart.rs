//! Charts as SVG, drawn here: they need no script, print well, and take their colours from the
//! page, so that light and dark are the page's business. A small script on the page adds a reading
//! line.

use std::fmt::Write as _;

use super::frame::{self, BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH};
use super::text;

/// A chart of one or several lines.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    /// What is on the vertical axis.
    pub unit: Unit,
    pub axis: Axis,
    pub log: bool,
    pub lines: Vec<Line>,
    /// Vertical marks with a name (stages, faults).
    pub marks: Vec<(f64, String)>,
    /// Times that are shaded: nothing arrived though it was due.
    pub outages: Vec<(f64, f64)>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    Micros,
    /// Microseconds of CPU, of which parts matter.
    Cost,
    /// Hundredths of a core.
    Percent,
    Bytes,
    Count,
}

/// The horizontal axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    Seconds,
    /// Percentiles by their distance from 100: 90, 99, 99.9 are equally far apart.
    Percentile,
    /// A latency in microseconds, by powers of ten.
    Micros,
    /// Values with these names, evenly apart; points lie at their positions, from 0.
    Labels(Vec<String>),
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
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// A `<figure>` with legend and drawing; nothing for a chart without points.
    pub fn figure(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut out =
            format!("<figure class=\"chart\"><figcaption>{}</figcaption>", text::html(&self.title));
        if self.lines.len() > 1 {
            out.push_str("<ul class=\"legend\">");
            for (n, line) in self.lines.iter().enumerate() {
                let _ = write!(
                    out,
                    "<li><i class=\"k{}\"></i>{}</li>",
                    n % COLOURS,
                    text::html(&line.name)
                );
            }
            out.push_str("</ul>");
        }
        out.push_str(&self.svg());
        if !self.note.is_empty() {
            let _ = write!(out, "<p class=\"note\">{}</p>", text::html(&self.note));
        }
        out.push_str("</figure>");
        out
    }

    fn svg(&self) -> String {
        let scale = Scale::of(self);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" data-x0=\"{LEFT}\" data-x1=\"{}\">",
            text::html(&self.title),
            WIDTH - RIGHT,
        );
        for (from, to) in &self.outages {
            frame::outage((scale.x(*from), scale.x(*to)), TOP, &mut out);
        }
        self.draw_grid(&scale, &mut out);
        self.draw_marks(&scale, &mut out);
        for (n, line) in self.lines.iter().enumerate() {
            self.draw_line(&scale, n, line, &mut out);
        }
        out.push_str("<line class=\"probe\" y1=\"12\" y2=\"212\" visibility=\"hidden\"/></svg>");
        out
    }

    fn draw_marks(&self, scale: &Scale, out: &mut String) {
        for (at, name) in &self.marks {
            frame::mark(scale.x(*at), (TOP, TOP + 9.0), name, out);
        }
    }

    fn draw_grid(&self, scale: &Scale, out: &mut String) {
        for value in scale.y_ticks() {
            frame::value(scale.y(value), &self.unit.show(value), out);
        }
        for (at, label) in scale.x_ticks() {
            frame::tick(scale.x(at), &label, out);
        }
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>",
            WIDTH - RIGHT,
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM
        );
    }

    fn draw_line(&self, scale: &Scale, n: usize, line: &Line, out: &mut String) {
        let points = thinned(&line.points);
        if points.is_empty() {
            return;
        }
        let _ = write!(
            out,
            "<g class=\"line\" data-key=\"c{}\" data-name=\"{}\" data-p=\"",
            n % COLOURS,
            text::html(&line.name)
        );
        let known = || points.iter().filter(|point| !point.1.is_nan());
        for (at, value) in known() {
            let bar = line.bars.iter().find(|bar| bar.0 == *at);
            let range = bar.map_or(String::new(), |(_, (low, high))| {
                format!(" ({} to {})", self.unit.show(*low), self.unit.show(*high))
            });
            let shown = self.unit.show(*value);
            let label = text::html(&format!("{} · {shown}{range}", scale.x_label(*at)));
            let _ = write!(out, "{:.1},{label};", scale.x(*at));
        }
        out.push_str("\">");
        let shift = self.shift(n);
        for run in points.split(|point| point.1.is_nan()).filter(|run| !run.is_empty()) {
            draw_run(scale, (n, shift), run, out);
        }
        for (at, (low, high)) in &line.bars {
            draw_bar(n, scale.x(*at) + shift, (scale.y(*low), scale.y(*high)), out);
        }
        out.push_str("</g>");
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
fn draw_bar(n: usize, x: f64, (low, high): (f64, f64), out: &mut String) {
    let (left, right) = (x - BAR_CAP, x + BAR_CAP);
    let end = |y: f64| format!("M{left:.1} {y:.1}H{right:.1}");
    let (lower, upper) = (end(low), end(high));
    let _ = write!(
        out,
        "<path class=\"c{} bar\" d=\"{lower}M{x:.1} {low:.1}V{high:.1}{upper}\"/>",
        n % COLOURS
    );
}

/// Points without a gap between them.
fn draw_run(scale: &Scale, (n, shift): (usize, f64), run: &[(f64, f64)], out: &mut String) {
    let x = |at: f64| scale.x(at) + shift;
    let _ = write!(out, "<polyline class=\"c{}\" points=\"", n % COLOURS);
    for (at, value) in run {
        let _ = write!(out, "{:.1},{:.1} ", x(*at), scale.y(*value));
    }
    out.push_str("\"/>");
    // Points that are few are seen as such.
    let dots = if matches!(scale.axis, Axis::Labels(_)) || run.len() == 1 { run } else { &[] };
    for (at, value) in dots {
        let _ = write!(
            out,
            "<circle class=\"k{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
            n % COLOURS,
            x(*at),
            scale.y(*value)
        );
    }
}

/// Where values land on the drawing.
struct Scale {
    axis: Axis,
    unit: Unit,
    log: bool,
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let ends = |line: &Line| {
            let bars = line.bars.iter().flat_map(|(at, (low, high))| [(*at, *low), (*at, *high)]);
            line.points.iter().copied().chain(bars).collect::<Vec<_>>()
        };
        let all: Vec<(f64, f64)> = chart.lines.iter().flat_map(ends).collect();
        let all = || all.iter();
        let place = |at: f64| place(&chart.axis, at);
        let x_max = all().map(|point| place(point.0)).fold(f64::MIN, f64::max);
        let x_min = all().map(|point| place(point.0)).fold(f64::MAX, f64::min);
        let y_max = all().map(|point| point.1).fold(0.0, f64::max);
        let y = if chart.log {
            let least = all()
                .map(|point| point.1)
                .filter(|v| *v > 0.0)
                .fold(f64::MAX, f64::min)
                .min(y_max.max(1.0));
            let low = 10_f64.powf(least.log10().floor());
            (low, 10_f64.powf(y_max.max(low * 10.0).log10().ceil()))
        } else {
            let step = step_of(y_max.max(1e-9), chart.unit);
            (0.0, (y_max / step).ceil().max(1.0) * step)
        };
        let (x_min, x_max) = match &chart.axis {
            Axis::Seconds => (0.0, x_max),
            Axis::Percentile => (x_min, x_max),
            Axis::Micros => (x_min.floor(), x_max.ceil()),
            Axis::Labels(names) => (-LABEL_ROOM, names.len() as f64 - 1.0 + LABEL_ROOM),
        };
        Self {
            axis: chart.axis.clone(),
            unit: chart.unit,
            log: chart.log,
            x: (x_min, x_max.max(x_min + 1e-9)),
            y,
        }
    }

    fn x(&self, at: f64) -> f64 {
        let part = (place(&self.axis, at) - self.x.0) / (self.x.1 - self.x.0);
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let part = match self.log {
            true => {
                (value.max(self.y.0).log10() - self.y.0.log10())
                    / (self.y.1.log10() - self.y.0.log10())
            }
            false => (value - self.y.0) / (self.y.1 - self.y.0),
        };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn y_ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (self.y.0.log10().round() as i32, self.y.1.log10().round() as i32);
            return (low..=high).map(|power| 10_f64.powi(power)).collect();
        }
        let step = step_of(self.y.1, self.unit);
        (0..=(self.y.1 / step).round() as u32).map(|n| f64::from(n) * step).collect()
    }

    fn x_ticks(&self) -> Vec<(f64, String)> {
        match &self.axis {
            Axis::Percentile => PERCENTILES
                .iter()
                .filter(|at| (self.x.0..=self.x.1 + 1e-9).contains(&place(&self.axis, **at)))
                .map(|at| (*at, self.x_label(*at)))
                .collect(),
            Axis::Micros => (0..=9)
                .map(|power| 10_f64.powi(power))
                .filter(|at| (self.x.0..=self.x.1 + 1e-9).contains(&place(&self.axis, *at)))
                .map(|at| (at, text::micros(at)))
                .collect(),
            Axis::Seconds => time_ticks(self.x.1),
            Axis::Labels(names) => {
                (0..names.len()).map(|at| (at as f64, self.x_label(at as f64))).collect()
            }
        }
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
            Axis::Seconds => time_label(at, self.x.1),
            Axis::Labels(names) => names.get(at.round() as usize).cloned().unwrap_or_default(),
        }
    }
}

/// A position along the axis.
fn place(axis: &Axis, at: f64) -> f64 {
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

/// A step of 1, 2 or 5 that cuts `max` into about four.
pub(crate) fn nice_step(max: f64) -> f64 {
    let rough = max / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|n| n * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(power * 10.0)
}

/// Where times are written below a drawing that reaches to `until` seconds, and what.
pub(super) fn time_ticks(until: f64) -> Vec<(f64, String)> {
    let step = time_step(until / 8.0);
    let all = (0..=(until / step) as u32).map(|n| f64::from(n) * step);
    all.map(|at| (at, time_label(at, until))).collect()
}

fn time_label(at: f64, until: f64) -> String {
    if until >= 600.0 {
        let secs = at.round() as u64;
        return format!("{}:{:02}", secs / 60, secs % 60);
    }
    format!("{} s", text::number((at * 10.0).round() / 10.0))
}

fn time_step(rough: f64) -> f64 {
    [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0]
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough.max(1.0))
}

/// At most [`POINTS_MAX`] points: of each run of neighbours the highest, which is what matters.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let highest = |run: &[(f64, f64)]| run.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(each).filter_map(highest).collect()
}

const TOP: f64 = 12.0;
/// On both sides of the values of [`Axis::Labels`], in steps between them.
const LABEL_ROOM: f64 = 0.35;
/// Between the bars of two lines, and half as wide as their ends are.
const BAR_GAP: f64 = 7.0;
const BAR_CAP: f64 = 3.0;
const POINTS_MAX: usize = 600;
/// Lines beyond this many reuse colours.
const COLOURS: usize = 6;
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
            marks: vec![(1.0, "kill".into())],
            outages: vec![(0.0, 2.0)],
            note: String::new(),
        }
    }

    #[test]
    fn the_drawing_stays_inside_its_frame() {
        for (log, axis) in [(false, Axis::Seconds), (true, Axis::Seconds), (true, Axis::Percentile)]
        {
            let points = [(0.0, 0.0), (50.0, 120.0), (99.0, 9_000.0), (100.0, 2_000_000.0)];
            let chart = chart(log, axis, &points);
            let scale = Scale::of(&chart);
            for (at, value) in points {
                assert!((LEFT..=WIDTH - RIGHT).contains(&scale.x(at)));
                assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(value)));
            }
            let svg = chart.figure();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.contains("a &lt;title&gt;"));
        }
    }

    #[test]
    fn nothing_is_drawn_of_nothing_and_one_point_is_a_dot() {
        assert_eq!(chart(false, Axis::Seconds, &[]).figure(), "");
        assert!(chart(false, Axis::Seconds, &[(1.0, 5.0)]).figure().contains("<circle"));
        assert!(!chart(true, Axis::Seconds, &[(0.0, 0.0)]).figure().contains("NaN"));
    }

    #[test]
    fn a_gap_is_drawn_as_one() {
        let svg =
            chart(true, Axis::Seconds, &[(0.0, 5.0), (1.0, 6.0), (2.0, f64::NAN), (3.0, 7.0)])
                .figure();
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
        let svg = chart.figure();
        assert_eq!(svg.matches(" bar\"").count(), 2, "{svg}");
        assert!(svg.contains("5 us (2 us to 700 us)"), "{svg}");
        let shifts = [0, 1, 2].map(|n| chart.shift(n));
        assert_eq!(shifts, [-BAR_GAP / 2.0, BAR_GAP / 2.0, 0.0]);
        let scale = Scale::of(&chart);
        assert!(scale.y.0 <= 2.0 && scale.y.1 >= 700.0, "{:?}", scale.y);
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
