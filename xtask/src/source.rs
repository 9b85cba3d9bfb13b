//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A text file: its path from the root with slashes, and its text.
pub struct File {
    pub path: String,
    pub text: String,
}

/// The root of the workspace that this crate belongs to.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_path_buf(), Path::to_path_buf)
}

/// All files below the root with one of these extensions, by path; what git does not keep is left
/// out.
pub fn files(root: &Path, extensions: &[&str]) -> Result<Vec<File>> {
    let mut found = Vec::new();
    walk(root, root, extensions, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The room, the crate's folder and the rest of a path below `crates`.
pub fn crate_of(path: &str) -> Option<(&str, &str, &str)> {
    let (room, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    let (name, rest) = rest.split_once('/')?;
    Some((room, name, rest))
}

/// The folder of the crate with this name, in whichever room it is.
pub fn crate_folder(root: &Path, name: &str) -> Option<PathBuf> {
    let rooms = fs::read_dir(root.join("crates")).ok()?;
    let folders = rooms.filter_map(|room| Some(room.ok()?.path().join(name)));
    folders.into_iter().find(|folder| folder.join("Cargo.toml").exists())
}

fn walk(root: &Path, directory: &Path, extensions: &[&str], found: &mut Vec<File>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            if !LEFT_OUT.contains(&name.as_str()) {
                walk(root, &path, extensions, found)?;
            }
        } else if path.extension().is_some_and(|found| extensions.iter().any(|e| found == *e)) {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            found.push(File { path, text });
        }
    }
    Ok(())
}

/// Directories that hold nothing of ours: see `.gitignore`. `vendor` has files of other projects.
const LEFT_OUT: [&str; 11] = [
    ".git",
    ".peers",
    ".venv",
    "target",
    "node_modules",
    "quelea-data",
    "results",
    "corpus",
    "artifacts",
    "__pycache__",
    "vendor",
];
