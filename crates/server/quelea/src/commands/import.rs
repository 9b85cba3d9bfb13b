//! `quelea import`: the configuration of another broker, translated and checked.

mod event_grid;

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use base::{EXIT_FAILURE, EXIT_OK, complain};
use config::Machine;
use import::{
    Fate, Files, Imported, Kind, NewFile, Source, check, dynamic_security, emqx, mosquitto,
    recognize,
};

use crate::run;

/// The flags of `quelea import`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The configuration of the other broker: mosquitto.conf, emqx.conf, or the file of
    /// mosquitto's dynamic security plugin.
    pub file: PathBuf,
    /// The broker that it is for. Default: by the name and the contents of the file.
    #[arg(long, value_enum, value_name = "BROKER")]
    pub from: Option<Broker>,
    /// Write quelea.toml and other files into this directory. Without it quelea.toml is printed.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write files although some rights of clients cannot be carried over.
    #[arg(long)]
    pub accept_differences: bool,
    /// Also list the options that are carried over or not needed.
    #[arg(short, long)]
    pub verbose: bool,
}

/// A broker whose configuration can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Broker {
    Mosquitto,
    Emqx,
    /// The JSON file of mosquitto's dynamic security plugin.
    DynamicSecurity,
    /// Azure Event Grid: the JSON of a namespace's resources.
    EventGrid,
}

impl Broker {
    /// By its configuration.
    fn of(path: &Path, text: &str) -> anyhow::Result<Self> {
        Ok(match recognize(path, text) {
            Kind::Mosquitto => Self::Mosquitto,
            Kind::Emqx => Self::Emqx,
            Kind::DynamicSecurity => Self::DynamicSecurity,
            Kind::EventGrid => Self::EventGrid,
            Kind::Other(what, remedy) => {
                let path = path.display();
                anyhow::bail!("{path} is {what}: {remedy}. If it is something else, add --from")
            }
        })
    }
}

/// Runs the command; the result is the exit code.
pub fn run(args: &ImportArgs) -> u8 {
    match import(args) {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            EXIT_FAILURE
        }
    }
}

fn import(args: &ImportArgs) -> anyhow::Result<u8> {
    let disk = Disk { left: Cell::new(ALL_FILES_BYTES_MAX) };
    let text = disk.read(&args.file);
    let text = text.with_context(|| format!("cannot read {}", args.file.display()))?;
    let path = std::path::absolute(&args.file)?;
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let source = Source { path: &path, text: &text, host: &host };
    let mut imported = match args.from.map_or_else(|| Broker::of(&path, &text), Ok)? {
        Broker::Mosquitto => mosquitto::import(&source, &disk),
        Broker::Emqx => emqx::import(&source, &disk),
        Broker::DynamicSecurity => dynamic_security::import(&source),
        Broker::EventGrid => event_grid::import(&source),
    };
    let directory = args.output.clone().unwrap_or_default();
    let config = check(&mut imported, &directory, &Machine::here(), &disk);
    report(&imported, args.verbose);
    let obstacles: Vec<_> = imported.obstacles(args.accept_differences).collect();
    if !obstacles.is_empty() {
        let has_errors = obstacles.iter().any(|note| note.fate == Fate::Error);
        let remedy = match has_errors {
            true => "correct the lines marked `error`",
            false => "change the lines marked `rights differ`, or add --accept-differences",
        };
        anyhow::bail!("nothing was written: {remedy}");
    }
    let config = config.context("nothing was written: the result is not a valid configuration")?;
    if args.output.is_none() {
        base::print(imported.config().as_bytes());
        return Ok(EXIT_OK);
    }
    write(&imported.files, &directory)?;
    // The files that it names may be on another machine.
    let notes = run::check_files(&config)
        .context("the files were written, but this machine cannot use them yet")?;
    notes.iter().for_each(|note| println!("note: {note}"));
    Ok(EXIT_OK)
}

/// The notes, and how many there are of each kind.
fn report(imported: &Imported, is_verbose: bool) {
    let is_shown = |fate| is_verbose || !matches!(fate, Fate::Carried | Fate::NotNeeded);
    let mut shown: Vec<_> = imported.notes.iter().filter(|note| is_shown(note.fate)).collect();
    // A file that is included twice has each of its lines twice.
    shown.dedup();
    let mut text = String::new();
    for note in shown.iter().take(NOTES_SHOWN_MAX) {
        let _ = writeln!(text, "{note}");
    }
    let left_out = shown.len().saturating_sub(NOTES_SHOWN_MAX);
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more");
    }
    eprint!("{text}");
    let kinds = [
        Fate::Carried,
        Fate::NotNeeded,
        Fate::Differs,
        Fate::Unsupported,
        Fate::Rights,
        Fate::Error,
    ];
    let count = |fate| imported.notes.iter().filter(|note| note.fate == fate).count();
    let counts = kinds.map(|fate| format!("{} {}", fate.word(), count(fate)));
    eprintln!("options: {}", counts.join(", "));
}

/// Writes all files, or none if one of them is there already.
fn write(files: &[NewFile], directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    for file in files {
        let path = directory.join(&file.name);
        anyhow::ensure!(!path.exists(), "{} exists: nothing was written", path.display());
    }
    for file in files {
        let path = directory.join(&file.name);
        let mode = if file.is_secret { 0o600 } else { 0o644 };
        let mut options = OpenOptions::new();
        let written = options
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .and_then(|mut to| io::Write::write_all(&mut to, file.text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The files of this machine.
struct Disk {
    /// Bytes that may still be read.
    left: Cell<u64>,
}

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        // Opening a pipe would wait for its writer.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            let detail = "must be a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let count = bytes.len() as u64;
        let too_large = |detail| Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
        if count > FILE_BYTES_MAX {
            return too_large(format!("a file may have {} MiB", FILE_BYTES_MAX >> 20));
        }
        let Some(left) = self.left.get().checked_sub(count) else {
            return too_large(format!("all files may have {} MiB", ALL_FILES_BYTES_MAX >> 20));
        };
        self.left.set(left);
        String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
            let detail = format!("line {line} is not UTF-8 text");
            io::Error::new(io::ErrorKind::InvalidData, detail)
        })
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    }
}

/// A person reads no more.
const NOTES_SHOWN_MAX: usize = 1_000;

/// A larger file is no configuration.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Of all files that a configuration names, with those that are read twice.
const ALL_FILES_BYTES_MAX: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  quelea import /etc/mosquitto/mosquitto.conf
  quelea import /etc/mosquitto/mosquitto.conf --output /etc/quelea
  quelea import /var/lib/mosquitto/dynamic-security.json --output /etc/quelea
  quelea import /etc/emqx/emqx.conf --output /etc/quelea";
