//! Configurations of other brokers, translated into ours.
//!
//! [`mosquitto::import`] and [`emqx::import`] take the text of a configuration and a reader of the
//! files that it names. They give the texts of our files, and a [`Note`] for each option. Nothing
//! is dropped silently: an option that is not known is an [`Fate::Error`], and one that grants or
//! denies rights and has no equivalent is [`Fate::Rights`]. Both keep the caller from writing
//! files.

pub mod dynamic_security;
pub mod emqx;
pub mod mosquitto;

mod check;
mod document;
mod filter;
mod hocon;
mod policy;
mod recognition;
mod report;

use std::io;
use std::path::{Path, PathBuf};

pub use check::check;
pub use recognition::{Kind, recognize};
pub use report::{Fate, Note, Place};

/// The name of the configuration among the files of an [`Imported`].
pub const CONFIG_FILE: &str = "quelea.toml";

/// Reads the files that a configuration names.
pub trait Files {
    /// The text of a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    fn read(&self, path: &Path) -> io::Result<String>;

    /// The files in a directory.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
}

/// A configuration to import.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its absolute path. Relative paths in it are taken as relative to its directory.
    pub path: &'a Path,
    pub text: &'a str,
    /// The host name of this machine.
    pub host: &'a str,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The configuration first.
    pub files: Vec<NewFile>,
    pub notes: Vec<Note>,
}

/// A file to be written into the output directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub name: String,
    pub text: String,
    /// It has a password or key in it: nobody else may read it.
    pub is_secret: bool,
    /// Where each line comes from, as far as that is known.
    pub origins: Vec<Place>,
}

impl NewFile {
    /// A text that anybody may read.
    pub fn open(name: impl Into<String>, text: impl Into<String>) -> Self {
        let (name, text) = (name.into(), text.into());
        Self { name, text, is_secret: false, origins: Vec::new() }
    }

    /// A text with a password or key.
    pub fn secret(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { is_secret: true, ..Self::open(name, text) }
    }

    fn rendered(name: &str, rendered: document::Rendered) -> Self {
        Self { origins: rendered.origins, ..Self::open(name, rendered.text) }
    }
}

impl Imported {
    /// The notes that keep files from being written.
    pub fn obstacles(&self, accepts_differences: bool) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |note| match note.fate {
            Fate::Error => true,
            Fate::Rights => !accepts_differences,
            _ => false,
        })
    }

    /// The text of the configuration.
    pub fn config(&self) -> &str {
        self.files.first().map_or("", |file| &file.text)
    }
}

/// A path as the program that reads the configuration would find it.
fn absolute(source: &Source<'_>, path: &str) -> PathBuf {
    source.path.parent().unwrap_or(Path::new("/")).join(path)
}
