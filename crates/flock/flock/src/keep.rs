//! Files that are there whole or not at all, in a place that was tried before the run.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Writes a file of this text: beside its place first, then there in one step, so that what was
/// there stays until the new one is whole.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = folder_of(path);
    fs::create_dir_all(folder)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let beside = folder.join(format!(".{name}.{}", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    });
    if written.is_err() {
        // Half a file is of no use, and takes room.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Can results be written to this folder? It is made if it is not there.
pub fn check(folder: &Path) -> Result<(), String> {
    let told = |error: io::Error| {
        format!(
            "cannot write results to {}: {error}; use another folder with --out",
            folder.display()
        )
    };
    let probe = folder.join(format!("flock-probe-{}", std::process::id()));
    write(&probe, &" ".repeat(PROBE_BYTES)).map_err(told)?;
    fs::remove_file(&probe).map_err(told)?;
    let room = rustix::fs::statvfs(folder).map_err(|errno| told(errno.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free < ROOM_BYTES_MIN {
        return Err(format!(
            "{} has {free} free bytes, but results need up to {ROOM_BYTES_MIN}: free disk space, \
                 or use another folder with --out",
            folder.display()
        ));
    }
    Ok(())
}

/// Where a file goes whose own place could not take it.
pub fn refuge(path: &Path) -> Option<PathBuf> {
    let place = std::env::temp_dir().join(path.file_name()?);
    (place != path).then_some(place)
}

pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

const PROBE_BYTES: usize = 4_096;
/// Results of a run of hours with hundreds of lines of series, and four reports of them.
const ROOM_BYTES_MIN: u64 = 32 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_whole_leaves_what_was_there() {
        let folder = std::env::temp_dir().join(format!("flock-keep-{}", std::process::id()));
        let path = folder.join("a.json");
        write(&path, "old").unwrap();
        // Nothing can be put in the place of a folder that is not empty.
        let taken = folder.join("taken");
        write(&taken.join("x"), "x").unwrap();
        assert!(write(&taken, "new").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let names = fs::read_dir(&folder).unwrap();
        assert_eq!(names.count(), 2, "nothing is left beside them");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_place_that_takes_no_file_is_told_with_the_way_out() {
        let told = check(Path::new("/proc/nowhere")).unwrap_err();
        assert!(told.contains("/proc/nowhere") && told.contains("--out"), "{told}");
    }
}
