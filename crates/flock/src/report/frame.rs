//! What all drawings have in common: their size, the lines of their axes, and the marks in them.

use std::fmt::Write as _;

use super::text;

/// What happened, and when, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    /// Stages or faults, by name.
    pub marks: Vec<(f64, String)>,
    /// Times in which messages were due and none arrived.
    pub outages: Vec<(f64, f64)>,
}

/// A horizontal line of the grid, with its value to the left.
pub(super) fn value(y: f64, label: &str, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
        WIDTH - RIGHT,
        LEFT - 6.0,
        y + 3.5,
        text::html(label)
    );
}

/// A tick of the lower axis, with its value below.
pub(super) fn tick(x: f64, label: &str, out: &mut String) {
    let _ = write!(
        out,
        "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/><text class=\"x\" x=\"{x:.1}\" y=\"{}\">{}</text>",
        HEIGHT - BOTTOM,
        HEIGHT - BOTTOM + 4.0,
        HEIGHT - BOTTOM + 16.0,
        text::html(label)
    );
}

/// A vertical line from `top` down, with its name at the height `name_y`.
pub(super) fn mark(x: f64, (top, name_y): (f64, f64), name: &str, out: &mut String) {
    // Near the right edge the name stands left of its line.
    let near_end = x > WIDTH - MARK_ROOM;
    let (side, shift) = if near_end { ("end", -3.0) } else { ("start", 3.0) };
    let _ = write!(
        out,
        "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{}\"/><text class=\"mark\" text-anchor=\"{side}\" x=\"{:.1}\" y=\"{name_y}\">{}</text>",
        HEIGHT - BOTTOM,
        x + shift,
        text::html(name)
    );
}

/// A time in which messages were due and none arrived.
pub(super) fn outage((from, to): (f64, f64), top: f64, out: &mut String) {
    let (width, height) = (to - from, HEIGHT - BOTTOM - top);
    let _ = write!(
        out,
        "<rect class=\"outage\" x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"/>"
    );
}

pub(super) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 236.0;
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = 12.0;
pub(super) const BOTTOM: f64 = 24.0;
const MARK_ROOM: f64 = 80.0;
