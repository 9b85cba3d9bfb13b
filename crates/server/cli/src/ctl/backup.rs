//! `quelea ctl backup`: the archive of a running broker's data directory.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::{Ctl, Failure};

#[derive(Clone, Debug, Args)]
pub(super) struct BackupArgs {
    /// The archive to write. It must not exist; until it is whole it has the ending `.partial`.
    /// `-`: standard output.
    file: PathBuf,
}

/// How often a person hears how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

const CHUNK_BYTES: usize = 64 << 10;

impl Ctl {
    pub(super) fn backup(&self, args: &BackupArgs) -> Result<(), Failure> {
        if args.file == Path::new("-") {
            if io::stdout().is_terminal() {
                return Err(Failure::new(
                    "standard output is a terminal: name a file, or redirect it",
                ));
            }
            let mut out = io::stdout().lock();
            return self.download(&mut out, "standard output").map(|_| ());
        }
        let place = args.file.display().to_string();
        let fault = |error: &io::Error| Failure::new(format!("{place}: {error}"));
        if std::fs::symlink_metadata(&args.file).is_ok() {
            return Err(Failure::new(format!("{place} exists: choose another name")));
        }
        let partial = partial_of(&args.file)?;
        // It holds secrets of the broker.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&partial).map_err(|error| fault(&error))?;
        let written = self.download(&mut file, &place);
        let bytes = written.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
        finish(&file, &partial, &args.file).map_err(|error| fault(&error))?;
        super::table::print(format!("{place}: {bytes} bytes\n").as_bytes());
        Ok(())
    }

    /// Fails unless the broker says that the archive has ended.
    fn download(&self, out: &mut dyn Write, place: &str) -> Result<u64, Failure> {
        let mut body = self.http.read("POST", "/backup")?;
        let (mut buffer, mut total) = (vec![0; CHUNK_BYTES], 0);
        let mut shown = Instant::now();
        loop {
            let read = body.read(&mut buffer);
            let count = read.map_err(|error| {
                let text = "; the log of the broker has the reason";
                Failure::new(format!("the backup broke off after {total} bytes: {error}{text}"))
            })?;
            let fault = |error| Failure::new(format!("{place}: {error}"));
            if count == 0 {
                return out.flush().map(|()| total).map_err(fault);
            }
            out.write_all(&buffer[..count]).map_err(fault)?;
            total += count as u64;
            if shown.elapsed() > PROGRESS_INTERVAL {
                shown = Instant::now();
                eprintln!("{} MB", total / 1_000_000);
            }
        }
    }
}

fn partial_of(file: &Path) -> Result<PathBuf, Failure> {
    let name = file.file_name().ok_or_else(|| Failure::new("the archive must have a name"))?;
    let mut name = name.to_owned();
    name.push(".partial");
    Ok(file.with_file_name(name))
}

fn finish(file: &File, partial: &Path, target: &Path) -> io::Result<()> {
    file.sync_all()?;
    std::fs::rename(partial, target)?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}
