//! What is not supported stands on one page, and leaves it when it is.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::source;

/// The page, and the table on it.
const PAGE: &str = "docs/use/known-limits.md";
const SECTION: &str = "## Not supported";

/// Each row of the table names, in a comment, what would be found here if it were supported.
const SURFACES: [&str; 4] = [
    "docs/use/quelea.reference.toml",
    "docs/use/api.openapi.json",
    "docs/use/tools.md",
    "crates/server/quelea/src/run/mod.rs",
];

/// Headings of a second list of this kind.
const HEADINGS: [&str; 5] =
    ["What is not there", "What it does not do", "Not there yet", "Not supported", "Not yet"];

/// Features that are supported and listed as missing, rows that cannot be checked, second lists.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).context(path.to_owned());
    let surfaces: Vec<(&str, String)> = SURFACES
        .iter()
        .map(|path| Ok((*path, read(path)?.to_lowercase())))
        .collect::<Result<_>>()?;
    let mut faults = check_rows(&read(PAGE)?, &surfaces);
    for document in source::files(root, &["md"])? {
        let is_of_users = document.path.starts_with("docs/") || document.path == "README.md";
        if is_of_users && document.path != PAGE {
            faults.extend(second_lists(&document.path, &document.text));
        }
    }
    Ok(faults)
}

fn check_rows(page: &str, surfaces: &[(&str, String)]) -> Vec<String> {
    let section = page.split_once(SECTION).map_or("", |(_, rest)| rest);
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let mut faults = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        let word = row.split_once("<!-- absent: ").and_then(|(_, rest)| rest.split_once(" -->"));
        let Some((word, _)) = word else {
            faults.push(format!("{PAGE}: say `<!-- absent: WORD -->` in this row: {row}"));
            continue;
        };
        let word = word.to_lowercase();
        for (path, _) in surfaces.iter().filter(|(_, text)| text.contains(&word)) {
            faults.push(format!("{PAGE}: '{word}' is in {path}: is it still missing?"));
        }
    }
    if count == 0 {
        faults.push(format!("{PAGE}: there is no table below '{SECTION}'"));
    }
    faults
}

fn second_lists(path: &str, text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .filter(|line| HEADINGS.iter().any(|heading| line.contains(heading)))
        .map(|line| format!("{path}: '{line}': list it in {PAGE}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "## Not supported\n\n| F | I |\n|---|---|\n";

    #[test]
    fn what_is_supported_cannot_stay_on_the_list() {
        let surfaces = [("a.toml", "[cluster]\n".to_owned())];
        let page = format!("{TABLE}| x <!-- absent: [Cluster] --> | y |\n\n## Other\n\n| no |\n");
        assert!(check_rows(&page, &surfaces)[0].contains("a.toml"));
        assert!(check_rows(&page, &[("a.toml", String::new())]).is_empty());
    }

    #[test]
    fn a_row_without_a_word_and_a_page_without_a_table_are_told() {
        assert!(check_rows(&format!("{TABLE}| x | y |\n"), &[])[0].contains("absent"));
        assert!(check_rows("# Limits\n", &[])[0].contains("no table"));
    }

    #[test]
    fn a_second_list_is_told() {
        assert_eq!(second_lists("README.md", "## What it does not do yet\n\n- x\n").len(), 1);
        assert!(second_lists("README.md", "## What it does\n").is_empty());
    }
}
