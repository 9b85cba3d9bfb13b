//! What a dependency is built with does not depend on what else is built: `make run` after the
//! build that the README shows for flock compiles nothing twice.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Each package of a build with the features that it has there.
fn features(selection: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["tree", "--offline", "--locked", "--prefix", "none"])
        .args(["-e", "normal,build", "-f", "{p} [{f}]"])
        .args(selection)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

#[test]
fn the_broker_is_built_alike_with_and_without_flock() {
    let alone = features(&["-p", "quelea"]);
    let both = features(&["-p", "quelea", "-p", "flock"]);
    assert!(alone.len() > 50 && alone.len() < both.len());
    let different: Vec<_> = alone.difference(&both).collect();
    assert!(different.is_empty(), "built twice; give `quelea` the features: {different:?}");
}
