//! The list in the export of a cluster with several cells.

use std::path::Path;

use anyhow::Context as _;
use data::write_whole;
use serde::{Deserialize, Serialize};

/// In the directory of the export, beside a directory for each cell.
const FILE: &str = "cells.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CellsList {
    pub(super) cells: u16,
    /// No owner of any cell had a higher one. Those of a cluster that imports it have: else
    /// serials that journals have noted would be given again.
    pub(super) epoch: u64,
}

/// The name of the directory of a cell.
pub(super) fn directory_of(cell: u16) -> String {
    format!("cell-{cell}")
}

impl CellsList {
    pub(super) fn write(self, directory: &Path) -> anyhow::Result<()> {
        let path = directory.join(FILE);
        let text = serde_json::to_string(&self)? + "\n";
        write_whole(&path, text.as_bytes()).with_context(|| path.display().to_string())
    }

    /// # Errors
    ///
    /// There is none, or it is malformed.
    pub(super) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(FILE);
        let text = std::fs::read(&path).with_context(|| {
            let path = path.display();
            format!(
                "{path}: a cluster with several cells imports the export of such a cluster only"
            )
        })?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert!(CellsList::read(directory.path()).is_err());
        let list = CellsList { cells: 6, epoch: 9 };
        list.write(directory.path()).unwrap();
        assert_eq!(CellsList::read(directory.path()).unwrap(), list);
    }
}
