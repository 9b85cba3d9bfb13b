//! Charts as SVG, drawn here: they need no script, print well, and take their colours from the
//! page, so that light and dark are the page's business. A small script on the page adds a reading
//! line.

use std::fmt::Write as _;

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
    pub note: String,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// A value that is no number is a gap.
    pub points: Vec<(f64, f64)>,
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
            let x = scale.x(*at);
            // Near the right edge the name stands left of its line.
            let near_end = x > WIDTH - MARK_ROOM;
            let (side, shift) = if near_end { ("end", -3.0) } else { ("start", 3.0) };
            let _ = write!(
                out,
                "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\"/><text class=\"mark\" text-anchor=\"{side}\" x=\"{:.1}\" y=\"{}\">{}</text>",
                HEIGHT - BOTTOM,
                x + shift,
                TOP + 9.0,
                text::html(name)
            );
        }
    }

    fn draw_grid(&self, scale: &Scale, out: &mut String) {
        for value in scale.y_ticks() {
            let y = scale.y(value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 3.5,
                text::html(&self.unit.show(value))
            );
        }
        for (at, label) in scale.x_ticks() {
            let x = scale.x(at);
            let _ = write!(
                out,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/><text class=\"x\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 4.0,
                HEIGHT - BOTTOM + 16.0,
                text::html(&label)
            );
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
            let label = text::html(&format!("{} · {}", scale.x_label(*at), self.unit.show(*value)));
            let _ = write!(out, "{:.1},{label};", scale.x(*at));
        }
        out.push_str("\">");
        for run in points.split(|point| point.1.is_nan()).filter(|run| !run.is_empty()) {
            draw_run(scale, n, run, out);
        }
        out.push_str("</g>");
    }
}

/// Points without a gap between them.
fn draw_run(scale: &Scale, n: usize, run: &[(f64, f64)], out: &mut String) {
    let _ = write!(out, "<polyline class=\"c{}\" points=\"", n % COLOURS);
    for (at, value) in run {
        let _ = write!(out, "{:.1},{:.1} ", scale.x(*at), scale.y(*value));
    }
    out.push_str("\"/>");
    // Points that are few are seen as such.
    let dots = if matches!(scale.axis, Axis::Labels(_)) || run.len() == 1 { run } else { &[] };
    for (at, value) in dots {
        let _ = write!(
            out,
            "<circle class=\"k{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
            n % COLOURS,
            scale.x(*at),
            scale.y(*value)
        );
    }
}

/// Where values land on the drawing.
struct Scale {
    axis: Axis,
    log: bool,
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let all = || chart.lines.iter().flat_map(|line| &line.points);
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
            let step = nice_step(y_max.max(1e-9));
            (0.0, (y_max / step).ceil().max(1.0) * step)
        };
        let (x_min, x_max) = match &chart.axis {
            Axis::Seconds => (0.0, x_max),
            Axis::Percentile => (x_min, x_max),
            Axis::Micros => (x_min.floor(), x_max.ceil()),
            Axis::Labels(names) => (-LABEL_ROOM, names.len() as f64 - 1.0 + LABEL_ROOM),
        };
        Self { axis: chart.axis.clone(), log: chart.log, x: (x_min, x_max.max(x_min + 1e-9)), y }
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
        let step = nice_step(self.y.1);
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
            Axis::Labels(names) => names.get(at as usize).cloned().unwrap_or_default(),
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

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 236.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 24.0;
const MARK_ROOM: f64 = 80.0;
/// On both sides of the values of [`Axis::Labels`], in steps between them.
const LABEL_ROOM: f64 = 0.35;
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
            lines: vec![Line { name: "p99".into(), points: points.to_vec() }],
            marks: vec![(1.0, "kill".into())],
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
    }
}
