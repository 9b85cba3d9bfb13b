//! The frame of every HTML page: style and script, inline, so that one file is all there is.

use std::fmt::Write as _;

use super::text::html;

pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        html(title)
    )
}

/// A table with a head. Columns of words go to the left, as the first one always does, columns of
/// numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let class = |at: usize| {
        let is_word = |cell: &String| cell.starts_with(|c: char| c.is_alphabetic() || c == '/');
        let is_text = rows.iter().filter_map(|row| row.get(at)).any(is_word);
        if is_text { " class=\"text\"" } else { "" }
    };
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (at, cell) in head.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(at), html(cell));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(at), html(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// Name and value pairs, empty values left out.
pub(crate) fn pairs(rows: &[(&str, String)]) -> String {
    let mut out = String::from("<dl>");
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", html(name), html(value));
    }
    out.push_str("</dl>");
    out
}

/// A text that is unfolded on demand; nothing where there is none.
pub(crate) fn details(name: &str, text: &str) -> String {
    match text {
        "" => String::new(),
        _ => format!("<details><summary>{name}</summary><pre>{}</pre></details>", html(text)),
    }
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
