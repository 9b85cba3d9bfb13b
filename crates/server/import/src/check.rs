//! The broker's own check of what comes of an import.

use std::io;
use std::path::Path;

use config::{Config, Machine, Problem, SourceFile, Sources};
use identity::auth::acl_file::AclFileError;
use identity::auth::passwords::PasswordFile;
use identity::auth::policy_file::PolicyFileError;
use identity::auth::rules::{self, RulesError};

use crate::report::{Fate, Note, Place};
use crate::{CONFIG_FILE, Files, Imported, NewFile};

/// Adds an error for each thing that the broker would refuse, with the line that it comes from.
/// `directory` is where the files are to be written. Files that cannot be read may be on another
/// machine: nothing is said of them. None: there are errors.
pub fn check(
    imported: &mut Imported,
    directory: &Path,
    machine: &Machine,
    files: &dyn Files,
) -> Option<Config> {
    if imported.files.is_empty() {
        return None;
    }
    let path = directory.join(CONFIG_FILE);
    let shown = path.display().to_string();
    let file = SourceFile { path, text: imported.config().to_owned() };
    let sources = Sources { file: Some(file), ..Sources::default() };
    let found = match config::load(&sources, machine) {
        Ok(loaded) => {
            let found = in_files(imported, directory, &loaded.config, files);
            if found.is_empty() {
                return Some(loaded.config);
            }
            found
        }
        Err(error) => {
            error.problems.iter().map(|problem| in_config(imported, &shown, problem)).collect()
        }
    };
    imported.notes.extend(found);
    None
}

/// What is wrong with a key.
fn in_config(imported: &Imported, path: &str, problem: &Problem) -> Note {
    let Some(file) = imported.files.first() else { return error(Place::default(), "", "") };
    // `quelea.toml:3` or `quelea.toml:3:1`
    let line = problem.place.strip_prefix(path).and_then(|rest| rest.split(':').nth(1));
    let line = line.and_then(|line| line.parse::<usize>().ok());
    let line = line.or_else(|| line_of_item(file, &problem.key));
    let option = if problem.key.is_empty() { CONFIG_FILE } else { &problem.key };
    error(origin(imported, file, line), option, problem.detail.clone())
}

/// Where an item of a list begins, of which a key such as `listeners.1.tls` says which it is.
fn line_of_item(file: &NewFile, key: &str) -> Option<usize> {
    let mut parts = key.split('.');
    let header = format!("[[{}]]", parts.next()?);
    let index: usize = parts.next()?.parse().ok()?;
    let lines = file.text.lines().enumerate().filter(|(_, line)| *line == header);
    lines.map(|(at, _)| at + 1).nth(index)
}

fn origin(imported: &Imported, file: &NewFile, line: Option<usize>) -> Place {
    let known = line.and_then(|line| file.origins.get(line.checked_sub(1)?));
    let known = known.filter(|place| place.line > 0).cloned();
    // At least the file that was read.
    let main = || imported.notes.iter().map(|note| &note.place).find(|at| !at.file.is_empty());
    known.unwrap_or_else(|| Place { line: 0, ..main().cloned().unwrap_or_default() })
}

/// What is wrong in the files of rights and users.
fn in_files(
    imported: &Imported,
    directory: &Path,
    config: &Config,
    files: &dyn Files,
) -> Vec<Note> {
    let own = |path: &Path| {
        imported.files.iter().find(|file| directory.join(&file.name).as_path() == path)
    };
    let reader = |path: &Path| match own(path) {
        Some(file) => Ok(file.text.clone()),
        None => files.read(path),
    };
    let mut found = Vec::new();
    let place = |path: &str, line: usize| match own(Path::new(path)) {
        Some(file) => origin(imported, file, Some(line)),
        None => Place { file: path.to_owned(), line },
    };
    match rules::load_by(config, &reader) {
        Ok(_) => {}
        Err(RulesError::PolicyFile(PolicyFileError::Line { path, line, detail })) => {
            found.push(error(place(&path, line), "policy_file", detail));
        }
        Err(RulesError::AccessFile(AclFileError::Line { path, line, detail })) => {
            found.push(error(place(&path, line), "acl_file", detail));
        }
        Err(RulesError::AccessFile(AclFileError::Read { path, cause })) => {
            found.extend(unusable(&path, &cause, "acl_file"));
        }
        Err(other) => {
            found.push(error(origin(imported, &imported.files[0], None), "access", other))
        }
    }
    if let Some(path) = &config.auth.password_file {
        let shown = path.display().to_string();
        let parsed = match reader(path) {
            Ok(text) => PasswordFile::parse(&text).map(drop),
            Err(cause) => {
                found.extend(unusable(&shown, &cause, "password_file"));
                Ok(())
            }
        };
        if let Err((line, detail)) = parsed {
            found.push(error(place(&shown, line), "password_file", detail));
        }
    }
    found
}

/// None: it may be there, and usable, where the broker will run.
fn unusable(path: &str, cause: &io::Error, option: &str) -> Option<Note> {
    let is_elsewhere =
        matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
    let place = Place { file: path.to_owned(), line: 0 };
    (!is_elsewhere).then(|| error(place, option, format!("cannot read it: {cause}")))
}

fn error(place: Place, option: &str, detail: impl ToString) -> Note {
    Note { place, option: option.to_owned(), fate: Fate::Error, detail: detail.to_string() }
}
