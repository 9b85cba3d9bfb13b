//! `quelea passwd`: changes a password file, as `mosquitto_passwd` does.

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use clap::Args;

use identity::auth::password_changes::{
    ChangeError, NewSecret, create_file, delete_user, put_user,
};
use identity::auth::passwords::check_username;

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
pub(crate) enum PasswdError {
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("cannot read the password: {0}")]
    Ask(io::Error),
    #[error("the two passwords differ; nothing was changed")]
    Differ,
}

fn change(
    args: &PasswdArgs,
    ask: &mut dyn FnMut() -> Result<Vec<u8>, PasswdError>,
) -> Result<(), PasswdError> {
    check_username(&args.user).map_err(ChangeError::Username)?;
    if args.delete {
        return Ok(delete_user(&args.file, &args.user)?);
    }
    let password = match &args.password {
        Some(password) => password.clone().into_bytes(),
        None => ask()?,
    };
    let new = NewSecret { password: &password, scram: args.scram };
    match args.create {
        true => Ok(create_file(&args.file, &args.user, &new)?),
        false => Ok(put_user(&args.file, &args.user, &new)?),
    }
}

/// Twice without echo from a terminal; else the first line of standard input.
pub(crate) fn ask_password(user: &str) -> Result<Vec<u8>, PasswdError> {
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
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use identity::auth::passwords::PasswordFile;

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
        assert!(matches!(set(&delete, ""), Err(PasswdError::Change(ChangeError::Read { .. }))));
        fs::write(&file, "anna:plain\n").unwrap();
        assert!(matches!(
            set(&args(&file, "bob"), "x"),
            Err(PasswdError::Change(ChangeError::Line { line: 1, .. }))
        ));
        assert_eq!(fs::read_to_string(&file).unwrap(), "anna:plain\n");
        fs::write(&file, "").unwrap();
        assert!(matches!(set(&delete, ""), Err(PasswdError::Change(ChangeError::Unknown { .. }))));
        assert!(matches!(
            set(&args(&file, "a:$b"), "x"),
            Err(PasswdError::Change(ChangeError::Username(_)))
        ));
        assert!(matches!(
            set(&args(&file, "anna"), ""),
            Err(PasswdError::Change(ChangeError::Empty))
        ));
        let nowhere = dir.0.join("no/such/file");
        assert!(matches!(
            set(&args(&nowhere, "anna"), "x"),
            Err(PasswdError::Change(ChangeError::Write { .. }))
        ));
    }
}
