//! What happened last, for whoever has to find out why.

use std::collections::VecDeque;

/// The newest lines of a world's history.
#[derive(Debug, Default)]
pub struct Trace {
    lines: VecDeque<String>,
    lines_max: usize,
}

impl Trace {
    pub const fn new(lines_max: usize) -> Self {
        Self { lines: VecDeque::new(), lines_max }
    }

    /// Beyond the limit the oldest line goes.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line());
    }

    pub fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
