//! Notes about what became of each option.

use std::fmt;

/// What became of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It has an equivalent.
    Carried,
    /// It is not needed here.
    NotNeeded,
    /// It is carried over, and has an effect that differs.
    Differs,
    /// It has no equivalent.
    Unsupported,
    /// It grants or denies rights, and has no equivalent. Files are written only if the user
    /// accepts that.
    Rights,
    /// It is wrong, or unknown. No file is written.
    Error,
}

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: usize,
}

/// What became of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub place: Place,
    pub option: String,
    pub fate: Fate,
    pub detail: String,
}

impl Fate {
    /// The word for it in a report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Carried => "carried over",
            Self::NotNeeded => "not needed",
            Self::Differs => "differs",
            Self::Unsupported => "not supported",
            Self::Rights => "rights differ",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, option, fate, detail } = self;
        write!(f, "{place}: {option}: {}: {detail}", fate.word())
    }
}
