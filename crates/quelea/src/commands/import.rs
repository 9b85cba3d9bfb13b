//! `quelea import`: the configuration of another broker, translated and checked.

mod event_grid;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use base::{EXIT_FAILURE, EXIT_OK, complain};
use config::{Machine, SourceFile, Sources};
use import::{CONFIG_FILE, Fate, Files, Imported, NewFile, Source, emqx, mosquitto};

use crate::run;

/// The flags of `quelea import`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The configuration of the other broker: mosquitto.conf or emqx.conf.
    pub file: PathBuf,
    /// The broker that it is for. Default: emqx if the name of the file begins with emqx or ends
    /// with .hocon, else mosquitto.
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
    /// Azure Event Grid: the JSON of a namespace's resources.
    EventGrid,
}

impl Broker {
    /// By the name of its configuration.
    fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.starts_with("emqx") || name.ends_with(".hocon") {
            true => Self::Emqx,
            false => Self::Mosquitto,
        }
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
    let text = Disk.read(&args.file);
    let text = text.with_context(|| format!("cannot read {}", args.file.display()))?;
    let path = std::path::absolute(&args.file)?;
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    let source = Source { path: &path, text: &text, host: &host };
    let imported = match args.from.unwrap_or(Broker::of(&path)) {
        Broker::Mosquitto => mosquitto::import(&source, &Disk),
        Broker::Emqx => emqx::import(&source, &Disk),
        Broker::EventGrid => event_grid::import(&source),
    };
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
    let directory = args.output.clone().unwrap_or_default();
    let sources = sources(&imported, &directory.join(CONFIG_FILE));
    let loaded = config::load(&sources, &Machine::here())
        .context("nothing was written: the result is not a valid configuration")?;
    if args.output.is_none() {
        base::print(imported.config().as_bytes());
        return Ok(EXIT_OK);
    }
    write(&imported.files, &directory)?;
    // The files that it names may be on another machine.
    run::check_files(&loaded.config)
        .context("the files were written, but this machine cannot use them yet")?;
    Ok(EXIT_OK)
}

/// The notes, and how many there are of each kind.
fn report(imported: &Imported, is_verbose: bool) {
    let is_shown = |fate| is_verbose || !matches!(fate, Fate::Carried | Fate::NotNeeded);
    imported.notes.iter().filter(|note| is_shown(note.fate)).for_each(|note| eprintln!("{note}"));
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

fn sources(imported: &Imported, path: &Path) -> Sources {
    let file = SourceFile { path: path.to_owned(), text: imported.config().to_owned() };
    Sources { file: Some(file), ..Sources::default() }
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
            .and_then(|mut to| to.write_all(file.text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The files of this machine.
struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<String> {
        let bytes = fs::metadata(path)?.len();
        if bytes > FILE_BYTES_MAX {
            let detail = format!("{bytes} bytes are more than the {FILE_BYTES_MAX} allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
        }
        fs::read_to_string(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    }
}

/// A larger file is no configuration.
const FILE_BYTES_MAX: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  quelea import /etc/mosquitto/mosquitto.conf
  quelea import /etc/mosquitto/mosquitto.conf --output /etc/quelea
  quelea import /etc/emqx/emqx.conf --output /etc/quelea";
