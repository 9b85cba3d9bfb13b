//! A table, in every form that a report has.

use std::fmt::Write as _;

use maud::{Markup, html};

use flock_measure::text;

/// What is in one place of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub value: String,
    /// What has to be said of the value: in small letters below it, or in brackets behind it.
    pub remark: String,
    /// In a page the value leads there.
    pub link: String,
    pub is_strong: bool,
    /// Why it is marked, shown when the pointer is over it.
    pub bad: String,
    /// How many rows of a page it spans; none if the cell above covers it.
    pub rows: Option<usize>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(value: T) -> Self {
        Self { value: value.into(), ..Self::default() }
    }
}

impl Cell {
    pub(crate) fn with(value: String, remark: String) -> Self {
        Self { value, remark, ..Self::default() }
    }

    /// Where there is no such figure.
    pub(crate) fn none() -> Self {
        "–".into()
    }

    pub(crate) fn words(&self) -> String {
        match self.remark.as_str() {
            "" => self.value.clone(),
            remark => format!("{} ({remark})", self.value),
        }
    }

    fn html(&self) -> Markup {
        html! {
            @if !self.link.is_empty() { a href=(self.link) { (self.value) } }
            @else if self.is_strong { b { (self.value) } }
            @else { (self.value) }
            @if !self.remark.is_empty() { br; small { (self.remark) } }
        }
    }

    fn of_row(&self, class: Option<&'static str>) -> Markup {
        let hint = (!self.bad.is_empty()).then_some(&self.bad);
        let class = if hint.is_some() { Some("text bad") } else { class };
        html! {
            @if self.rows != Some(0) {
                td class=[class] title=[hint] rowspan=[self.rows] { (self.html()) }
            }
        }
    }

    fn markdown(&self) -> String {
        let words = text::markdown(&self.words());
        if self.is_strong { format!("**{words}**") } else { words }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// In a page.
    pub class: Option<&'static str>,
    /// Names above those of the columns, and how many columns each of them spans; only in a page.
    pub groups: Vec<(String, usize)>,
    pub head: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub cells: Vec<Cell>,
    /// It stands out among those of others.
    pub is_ours: bool,
}

impl Table {
    pub(crate) fn new<T: Into<String>>(
        class: Option<&'static str>,
        head: impl IntoIterator<Item = T>,
    ) -> Self {
        Self { class, head: head.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    pub(crate) fn add<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(Into::into).collect();
        self.rows.push(Row { cells, is_ours: false });
    }

    pub(crate) fn add_ours<T: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.add(cells);
        self.rows.iter_mut().next_back().into_iter().for_each(|row| row.is_ours = true);
    }

    /// Columns of words go to the left, as the first one always does, columns of numbers to the
    /// right.
    pub(crate) fn html(&self) -> Markup {
        let is_word = |cell: &Cell| cell.value.starts_with(|c: char| c.is_alphabetic() || c == '/');
        let is_text = |at: usize| self.rows.iter().filter_map(|row| row.cells.get(at)).any(is_word);
        let texts: Vec<bool> = (0..self.head.len()).map(is_text).collect();
        let class_of = |at: usize| texts.get(at).is_some_and(|is| *is).then_some("text");
        html! {
            div.scroll {
                table class=[self.class] {
                    thead {
                        @if !self.groups.is_empty() {
                            tr {
                                @for (name, span) in &self.groups {
                                    th.text colspan=(span) { (name) }
                                }
                            }
                        }
                        tr {
                            @for (at, name) in self.head.iter().enumerate() {
                                th class=[class_of(at)] { (name) }
                            }
                        }
                    }
                    tbody {
                        @for row in &self.rows {
                            tr class=[row.is_ours.then_some("ours")] {
                                @for (at, cell) in row.cells.iter().enumerate() {
                                    (cell.of_row(class_of(at)))
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let mut out =
            format!("| {} |\n|{}\n", self.head.join(" | "), "---|".repeat(self.head.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.cells.iter().map(Cell::markdown).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }

    /// For the terminal.
    pub(crate) fn plain(&self) -> String {
        let words = |row: &Row| row.cells.iter().map(Cell::words).collect();
        let rows = self.rows.iter().map(words);
        aligned(&std::iter::once(self.head.clone()).chain(rows).collect::<Vec<_>>())
    }

    /// For a spreadsheet.
    pub(crate) fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let cells = |row: &Row| line(row.cells.iter().map(|cell| text::csv(&cell.value)).collect());
        let head = line(self.head.iter().map(|name| text::csv(name)).collect());
        std::iter::once(head).chain(self.rows.iter().map(cells)).collect()
    }
}

/// Columns as wide as they need to be: the first to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_the_same_in_every_form() {
        let mut table = Table::new(None, ["Name", "<Value>"]);
        let strong = Cell { is_strong: true, ..Cell::with("1".into(), "of 2".into()) };
        table.add_ours([Cell::from("a|b"), strong]);
        table.add([Cell { link: "x".into(), ..Cell::from("linked, twice") }, Cell::none()]);
        let html = table.html().into_string();
        for part in [
            "<th>&lt;Value&gt;</th>",
            "<tr class=\"ours\"><td class=\"text\">a|b</td><td><b>1</b><br><small>of 2</small>",
            "<a href=\"x\">linked, twice</a>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        let markdown = "| Name | <Value> |\n|---|---|\n| a\\|b | **1 (of 2)** |\n\
                        | linked, twice | – |\n";
        assert_eq!(table.markdown(), markdown);
        assert_eq!(table.csv(), "Name,<Value>\na|b,1\n\"linked, twice\",–\n");
        let plain = "Name            <Value>\na|b            1 (of 2)\nlinked, twice         –\n";
        assert_eq!(table.plain(), plain);
    }
}
