//! `quelea passwd`: changes a password file, as `mosquitto_passwd` does.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use clap::Args;

use identity::auth::passwords::{PasswordFile, check_username, is_of, user_lines, with_user};

use base::{EXIT_FAILURE, EXIT_OK, complain};

/// The flags of `quelea passwd`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub struct PasswdArgs {
    /// The password file. It is created if it does not exist.
    pub file: PathBuf,
    /// The user to add or change.
    pub user: String,
    /// The password, with -b only.
    #[arg(requires = "batch")]
    pub password: Option<String>,
    /// Take the password from the command line. Others on this machine can see it there.
    #[arg(short, long, requires = "password", conflicts_with = "delete")]
    pub batch: bool,
    /// Delete the user.
    #[arg(short = 'D', long)]
    pub delete: bool,
    /// Create a new file. An existing one is overwritten.
    #[arg(short, long, conflicts_with = "delete")]
    pub create: bool,
    /// Also store credentials for SCRAM-SHA-256 (MQTT 5 enhanced authentication).
    #[arg(long, conflicts_with = "delete")]
    pub scram: bool,
}

/// Runs the command; the result is the exit code.
pub fn run(args: &PasswdArgs) -> u8 {
    let mut ask = || ask_password(&args.user);
    match change(args, &mut ask) {
        Ok(()) => EXIT_OK,
        Err(error) => {
            complain(&error);
            EXIT_FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum PasswdError {
    #[error("{0}")]
    Username(&'static str),
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("{path}:{line}: {detail}")]
    Line { path: String, line: usize, detail: &'static str },
    #[error("user '{user}' is not in {path}")]
    Unknown { user: String, path: String },
    #[error("cannot read the password: {0}")]
    Ask(io::Error),
    #[error("the two passwords differ; nothing was changed")]
    Differ,
    #[error("the password is empty; nothing was changed")]
    Empty,
}

fn change(
    args: &PasswdArgs,
    ask: &mut dyn FnMut() -> Result<Vec<u8>, PasswdError>,
) -> Result<(), PasswdError> {
    check_username(&args.user).map_err(PasswdError::Username)?;
    let path = || args.file.display().to_string();
    let text = if args.create { String::new() } else { read(&args.file, args.delete)? };
    // A line that the broker would refuse is reported now rather than at its next start.
    PasswordFile::parse(&text).map_err(|(line, detail)| PasswdError::Line {
        path: path(),
        line,
        detail,
    })?;
    let lines = if args.delete {
        if !text.lines().any(|line| is_of(line, &args.user)) {
            return Err(PasswdError::Unknown { user: args.user.clone(), path: path() });
        }
        Vec::new()
    } else {
        let password = match &args.password {
            Some(password) => password.clone().into_bytes(),
            None => ask()?,
        };
        if password.is_empty() {
            return Err(PasswdError::Empty);
        }
        user_lines(&args.user, &password, args.scram)
    };
    write(&args.file, &with_user(&text, &args.user, &lines))
        .map_err(|source| PasswdError::Write { path: path(), source })
}

fn read(path: &Path, must_exist: bool) -> Result<String, PasswdError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => Ok(String::new()),
        result => {
            result.map_err(|source| PasswdError::Read { path: path.display().to_string(), source })
        }
    }
}

/// Whole or not at all: a broker that reloads meanwhile sees the old file or the new one. Owner and
/// mode of an existing file stay; a new one is its owner's alone.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Through a symbolic link: the link stays, what it points to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = path.with_file_name(name);
    let written = write_new(&new, &path, text).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&new);
    }
    written
}

fn write_new(new: &Path, old: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(text.as_bytes())?;
    if let Ok(metadata) = fs::metadata(old) {
        // Only root may give a file away; for others the file already is their own.
        let _ = chown(new, Some(metadata.uid()), Some(metadata.gid()));
        fs::set_permissions(new, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    }
    file.sync_all()
}

/// Twice without echo from a terminal; else the first line of standard input.
fn ask_password(user: &str) -> Result<Vec<u8>, PasswdError> {
    if !io::stdin().is_terminal() {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map_err(PasswdError::Ask)?;
        return Ok(line.trim_end_matches(['\n', '\r']).into());
    }
    let first = rpassword::prompt_password(format!("Password for {user}: "));
    let again = rpassword::prompt_password("Again: ");
    let (first, again) = (first.map_err(PasswdError::Ask)?, again.map_err(PasswdError::Ask)?);
    if first == again { Ok(first.into_bytes()) } else { Err(PasswdError::Differ) }
}

const EXAMPLES: &str = "\
Examples:
  quelea passwd passwords anna               asks for the password
  quelea passwd --scram passwords anna       also for SCRAM-SHA-256
  echo s3cret | quelea passwd passwords anna
  quelea passwd -b passwords anna s3cret
  quelea passwd -D passwords anna

A running broker reloads the file on SIGHUP.";

#[cfg(test)]
mod tests {
    use super::*;

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("quelea-passwd-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn args(file: &Path, user: &str) -> PasswdArgs {
        PasswdArgs { file: file.into(), user: user.into(), ..PasswdArgs::default() }
    }

    fn set(args: &PasswdArgs, password: &str) -> Result<(), PasswdError> {
        change(args, &mut || Ok(password.into()))
    }

    #[test]
    fn users_are_added_changed_and_deleted() {
        let dir = TempDir::new("users");
        let file = dir.0.join("passwords");
        set(&args(&file, "anna"), "one").unwrap();
        set(&PasswdArgs { scram: true, ..args(&file, "bob") }, "two").unwrap();
        set(&args(&file, "anna"), "three").unwrap();
        let read = || PasswordFile::load(&file).unwrap();
        assert!(
            read().verify("anna", b"three", &[0; 32]) && !read().verify("anna", b"one", &[0; 32])
        );
        assert!(read().verify("bob", b"two", &[0; 32]) && read().scram("bob").is_some());
        set(&PasswdArgs { delete: true, ..args(&file, "bob") }, "").unwrap();
        assert_eq!(read().user_count(), 1);
        set(&PasswdArgs { create: true, ..args(&file, "eve") }, "four").unwrap();
        assert!(read().user_count() == 1 && read().verify("eve", b"four", &[0; 32]));
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_new_file_is_private_and_an_old_one_keeps_its_mode() {
        let dir = TempDir::new("mode");
        let file = dir.0.join("passwords");
        set(&args(&file, "anna"), "one").unwrap();
        let mode = || fs::metadata(&file).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        set(&args(&file, "anna"), "two").unwrap();
        assert_eq!(mode(), 0o640);
    }

    #[test]
    fn what_cannot_be_done_changes_nothing() {
        let dir = TempDir::new("errors");
        let file = dir.0.join("passwords");
        let delete = PasswdArgs { delete: true, ..args(&file, "anna") };
        assert!(matches!(set(&delete, ""), Err(PasswdError::Read { .. })));
        fs::write(&file, "anna:plain\n").unwrap();
        assert!(matches!(set(&args(&file, "bob"), "x"), Err(PasswdError::Line { line: 1, .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "anna:plain\n");
        fs::write(&file, "").unwrap();
        assert!(matches!(set(&delete, ""), Err(PasswdError::Unknown { .. })));
        assert!(matches!(set(&args(&file, "a:$b"), "x"), Err(PasswdError::Username(_))));
        assert!(matches!(set(&args(&file, "anna"), ""), Err(PasswdError::Empty)));
        let nowhere = dir.0.join("no/such/file");
        assert!(matches!(set(&args(&nowhere, "anna"), "x"), Err(PasswdError::Write { .. })));
    }
}
