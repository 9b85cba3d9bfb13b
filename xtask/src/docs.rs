//! The generated documents, and how they are written anew.
//!
//! The conformance table is made here, and the page of measurements by `lab/page.py`. Tests of the
//! crates write the others: they compare the document, or write it if the environment says so.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{conformance, source};

/// What writes them all, and what each says of itself.
pub const COMMAND: &str = "cargo xtask docs";

/// Documents that tests of the crates `quelea` and `quelea-config` write: their names begin with
/// `docs_`. In addition `docs/use/api.openapi.json`, whose format has no place at its top for a
/// word about that.
const BY_TESTS: &[&str] = &[
    "docs/use/configuration.md",
    "docs/use/metrics.md",
    "docs/use/quelea.reference.toml",
    "docs/use/sys-topics.md",
];
/// The script that writes the page of measurements, and that page.
const MEASUREMENTS: (&str, &str) = ("lab/page.py", "docs/use/performance.md");
const TESTS: &str = "test -p quelea -p quelea-config --test config --test metrics --test api \
                     --test events docs_";

/// Writes all generated documents.
pub fn write(root: &Path) -> Result<()> {
    conformance::write(root)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo)
        .args(TESTS.split(' '))
        .current_dir(root)
        .env("QUELEA_BLESS", "1")
        .status();
    ensure!(done.context("cannot start cargo")?.success(), "the tests that write documents fail");
    let done = Command::new("python3").arg(MEASUREMENTS.0).current_dir(root).status();
    ensure!(done.context("cannot start python3")?.success(), "{} fails", MEASUREMENTS.0);
    Ok(())
}

/// What is wrong with what documents say of how they are made: nothing, if every one that calls
/// itself generated is known here and names the command.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut known: Vec<&str> = generated().collect();
    for file in source::files(&root.join("docs"), &["md", "toml"])? {
        let path = format!("docs/{}", file.path);
        let head = file.text.lines().take(HEAD_LINES).collect::<Vec<_>>().join("\n");
        if !head.contains("Generated from") {
            continue;
        }
        if !known.contains(&path.as_str()) {
            faults.push(format!("{path} is generated, and xtask/src/docs.rs has no line for it"));
        }
        known.retain(|known| *known != path);
        if !head.contains(COMMAND) {
            faults.push(format!("{path} does not say `{COMMAND}` at its top"));
        }
    }
    let gone = known.iter().map(|path| format!("{path} does not say that it is generated"));
    faults.extend(gone);
    Ok(faults)
}

fn generated() -> impl Iterator<Item = &'static str> {
    BY_TESTS.iter().copied().chain([conformance::PATH, MEASUREMENTS.1])
}

/// How far down a document says that it is generated.
const HEAD_LINES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_document_that_nobody_writes_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-docs-{}", std::process::id()));
        for path in generated() {
            let folder = Path::new(path).parent().expect("a folder of docs");
            std::fs::create_dir_all(root.join(folder)).expect("a directory");
            std::fs::write(root.join(path), format!("Generated from x: `{COMMAND}`\n"))
                .expect("a file");
        }
        assert_eq!(faults(&root).expect("readable"), Vec::<String>::new());
        std::fs::write(root.join("docs/new.md"), "Generated from x\n").expect("a file");
        assert_eq!(faults(&root).expect("readable").len(), 2);
        std::fs::remove_dir_all(&root).expect("it was made above");
    }
}
