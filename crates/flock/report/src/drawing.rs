//! What all drawings have in common: their figure, their scales, the lines of their axes, and the
//! marks in them.

use maud::{Markup, html};

use flock_measure::text;

/// A `<figure>` of this class: title, legend by class and name, drawing, note.
pub(crate) fn figure(
    class: &str,
    title: &str,
    legend: &[(String, String)],
    drawing: &Markup,
    note: &str,
) -> Markup {
    html! {
        figure class=(class) {
            figcaption { (title) }
            @if !legend.is_empty() {
                ul.legend { @for (key, name) in legend { li { i class=(key) {} (name) } } }
            }
            (drawing)
            @if !note.is_empty() { (super::page::note(note)) }
        }
    }
}

pub(crate) fn svg(title: &str, height: f64, content: &Markup) -> Markup {
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(title) { (content) }
    }
}

/// Values along one side of a drawing, evenly or by powers of ten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub log: bool,
    pub from: f64,
    pub to: f64,
}

impl Scale {
    pub(crate) fn even(from: f64, to: f64) -> Self {
        Self { log: false, from, to }
    }

    /// From the power of ten below `least` to the one above `most`.
    pub(crate) fn decades(least: f64, most: f64) -> Self {
        let [from, to] =
            [least.log10().floor(), most.log10().ceil()].map(|power| 10_f64.powf(power));
        Self { log: true, from, to }
    }

    /// How far along a value is, from 0 to 1.
    pub(crate) fn part(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.from) / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        };
        part.clamp(0.0, 1.0)
    }

    /// Powers of ten, or multiples of `step`.
    pub(crate) fn ticks(&self, step: f64) -> Vec<f64> {
        if self.log {
            let [from, to] = [self.from, self.to].map(|end| end.log10().round() as i32);
            return (from..=to).map(|power| 10_f64.powi(power)).collect();
        }
        (0..=(self.to / step + 1e-6) as u32).map(|n| f64::from(n) * step).collect()
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
    let step = time_step(until / 6.0);
    let all = (0..=(until / step) as u32).map(|n| f64::from(n) * step);
    all.map(|at| (at, time_label(at, until))).collect()
}

/// `12 s`, `5 min`, `1:30 h`: in the unit that suits all times until `until`.
pub(super) fn time_label(at: f64, until: f64) -> String {
    let (unit, part, name) = match until {
        _ if until >= 7_200.0 => (3_600, 60, "h"),
        _ if until >= 600.0 => (60, 1, "min"),
        _ => return format!("{} s", text::number((at * 10.0).round() / 10.0)),
    };
    let secs = at.round() as u64;
    match secs % unit / part {
        0 => format!("{} {name}", secs / unit),
        rest => format!("{}:{rest:02} {name}", secs / unit),
    }
}

fn time_step(rough: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0]
        .into_iter()
        .chain([10_800.0, 21_600.0, 43_200.0])
        .find(|step| *step >= rough)
        .unwrap_or((rough / DAY).ceil().max(1.0) * DAY)
}

/// A coordinate with one digit behind the point.
pub(crate) fn px(value: f64) -> String {
    format!("{value:.1}")
}

/// A vertical line.
pub(crate) fn upright(class: &str, x: f64, (y1, y2): (f64, f64)) -> Markup {
    html! { line class=(class) x1=(px(x)) x2=(px(x)) y1=(px(y1)) y2=(px(y2)) {} }
}

/// The grid: horizontal lines with their values to the left, ticks of the lower axis with theirs
/// below.
pub(super) fn grid(
    values: impl IntoIterator<Item = (f64, String)>,
    ticks: impl IntoIterator<Item = (f64, String)>,
) -> Markup {
    html! {
        @for (y, label) in values {
            line class="grid" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(px(y)) y2=(px(y)) {}
            text class="y" x=(LEFT - 6.0) y=(px(y + 3.5)) { (label) }
        }
        @for (x, label) in ticks {
            (upright("tick", x, (FLOOR, FLOOR + 4.0)))
            text class="x" x=(px(x)) y=(FLOOR + 22.0) { (label) }
        }
    }
}

/// What happened, and when, in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    /// Stages or faults, by name.
    pub marks: Vec<(f64, String)>,
    /// Times in which messages were due and none arrived.
    pub outages: Vec<(f64, f64)>,
}

impl Events {
    /// Shades each outage from `top` down; `x` says where a time is.
    pub(super) fn shades(&self, top: f64, x: impl Fn(f64) -> f64) -> Markup {
        html! {
            @for (from, to) in &self.outages {
                rect class="outage" x=(px(x(*from))) y=(top)
                    width=(px((x(*to) - x(*from)).max(OUTAGE_WIDTH_MIN))) height=(FLOOR - top) {}
            }
        }
    }

    /// A vertical line from `top` down for each mark, with its name at the height `name_y` as far
    /// as there is room beside the others.
    pub(super) fn lines(&self, (top, name_y): (f64, f64), x: impl Fn(f64) -> f64) -> Markup {
        // Up to where names are.
        let mut taken = f64::MIN;
        let mut place = |at: f64, name: &str| {
            let (x, width) = (x(at), name.chars().count() as f64 * CHAR_WIDTH);
            // Near the right edge the name stands left of its line.
            let is_near_end = x + 3.0 + width > WIDTH;
            let (side, shift) = if is_near_end { ("end", -3.0) } else { ("start", 3.0) };
            let from = if is_near_end { x - 3.0 - width } else { x };
            let has_room = from >= taken;
            if has_room {
                taken = if is_near_end { x } else { x + 3.0 + width };
            }
            (x, has_room.then_some((side, shift)))
        };
        html! {
            @for (at, name) in &self.marks {
                @let (x, named) = place(*at, name);
                (upright("mark", x, (top, FLOOR)))
                @if let Some((side, shift)) = named {
                    text class="mark" text-anchor=(side) x=(px(x + shift)) y=(name_y) { (name) }
                }
            }
        }
    }
}

pub(crate) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 244.0;
pub(super) const LEFT: f64 = 72.0;
pub(super) const RIGHT: f64 = 12.0;
/// Where the lower axis is.
pub(super) const FLOOR: f64 = HEIGHT - 30.0;
/// Of the names of marks, on a narrow page.
const CHAR_WIDTH: f64 = 8.6;
/// What is narrower is not seen.
const OUTAGE_WIDTH_MIN: f64 = 2.0;
/// Lines beyond this many reuse colours.
pub(crate) const COLOURS: usize = 6;
