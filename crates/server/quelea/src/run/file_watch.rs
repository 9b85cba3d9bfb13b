//! Looks every few seconds whether files have changed that SIGHUP reloads.
//!
//! What is compared is the state of the file that a path leads to: so a file that is written in
//! place, renamed into place or swapped by a symbolic link (Kubernetes) is seen. A part is reloaded
//! when all its files have been the same for two looks: nobody is writing then.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::reloads::REGISTRIES;
use config::{Config, Method, TlsConfig};
use identity::auth::rules::RuleFiles;

/// How often a part is tried again whose files could not be used: a certificate and its key may be
/// replaced one after the other, and rights may come later.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// What is reloaded as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The password file, and keys of token providers.
    Passwords,
    Registries,
    Bans,
    Rules,
    ApiUsers,
    /// Streams, targets and rules.
    Routing,
    /// Of a listener, or of an address of HTTP.
    Tls(String),
}

/// Device, inode, bytes, times of the last change of content and of the file. `None`: there is no
/// file to be seen.
type State = Option<(u64, u64, u64, [i64; 4])>;

#[derive(Debug)]
struct Watched {
    /// As it was when it was read, or tried to.
    read: State,
    seen: State,
}

/// The files, and what of them has changed.
#[derive(Debug)]
pub(super) struct FileWatch {
    files: Mutex<BTreeMap<(Part, PathBuf), Watched>>,
    changed: Mutex<BTreeSet<Part>>,
    /// Parts whose files cannot be used, and when they are tried again.
    failed: Mutex<BTreeMap<Part, Instant>>,
    interval: Option<Duration>,
}

impl FileWatch {
    /// The files of a configuration as they are now. To be called before they are read.
    pub(super) fn new(config: &Config) -> Self {
        let files = files_of(config).into_iter().map(|(part, path)| {
            let now = state_of(&path);
            ((part, path), Watched { read: now, seen: now })
        });
        let secs = config.server.watch_files_secs;
        Self {
            files: Mutex::new(files.collect()),
            changed: Mutex::default(),
            failed: Mutex::default(),
            interval: (secs > 0).then(|| Duration::from_secs(secs.into())),
        }
    }

    /// The same of no files: somebody else looks at them.
    pub(super) fn of_none() -> Self {
        Self {
            files: Mutex::default(),
            changed: Mutex::default(),
            failed: Mutex::default(),
            interval: None,
        }
    }

    /// The same for what a standby uses.
    pub(super) fn of_standby(config: &Config) -> Self {
        let own = Self::new(config);
        lock(&own.files).retain(|(part, _), _| matches!(part, Part::ApiUsers | Part::Tls(_)));
        own
    }

    /// Calls `on_change` whenever a part has changed. `rules`: files of rules that are in force,
    /// which a reload may have added.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(super) fn start(
        self: &Arc<Self>,
        rules: Arc<RuleFiles>,
        on_change: impl Fn() + Send + 'static,
    ) -> std::io::Result<Option<Watching>> {
        let Some(interval) = self.interval else { return Ok(None) };
        let is_over = Arc::new(AtomicBool::new(false));
        let (own, ends) = (self.clone(), is_over.clone());
        let thread = std::thread::Builder::new().name("files".into());
        let thread = thread.spawn(move || {
            let mut looked = Instant::now();
            while !ends.load(Ordering::Acquire) {
                std::thread::park_timeout(interval.saturating_sub(looked.elapsed()));
                if looked.elapsed() >= interval {
                    looked = Instant::now();
                    own.add_rules(&rules);
                    if own.look() {
                        on_change();
                    }
                }
            }
        })?;
        Ok(Some(Watching { is_over, thread: Some(thread) }))
    }

    fn add_rules(&self, rules: &RuleFiles) {
        let mut files = lock(&self.files);
        for file in &*rules.get() {
            files.entry((Part::Rules, file.path.clone())).or_insert_with(|| {
                let now = state_of(&file.path);
                Watched { read: now, seen: now }
            });
        }
    }

    /// True: a part is to be reloaded.
    fn look(&self) -> bool {
        let mut files = lock(&self.files);
        let (mut changed, mut unsteady) = (BTreeSet::new(), BTreeSet::new());
        for ((part, path), file) in files.iter_mut() {
            let now = state_of(path);
            if std::mem::replace(&mut file.seen, now) != now {
                unsteady.insert(part.clone());
            }
            if now != file.read {
                changed.insert(part.clone());
            }
        }
        let now = Instant::now();
        let failed = lock(&self.failed);
        changed.extend(failed.iter().filter(|(_, at)| **at <= now).map(|(part, _)| part.clone()));
        changed.retain(|part| !unsteady.contains(part));
        let has_some = !changed.is_empty();
        lock(&self.changed).extend(changed);
        has_some
    }

    /// What is to be reloaded. Its files count as read from now on.
    pub(super) fn take_changed(&self) -> BTreeSet<Part> {
        let changed = std::mem::take(&mut *lock(&self.changed));
        self.note_read(|part| changed.contains(part));
        changed
    }

    /// All files are read again for another reason.
    pub(super) fn note_reload(&self) {
        lock(&self.changed).clear();
        lock(&self.failed).clear();
        self.note_read(|_| true);
    }

    fn note_read(&self, is_read: impl Fn(&Part) -> bool) {
        for ((part, path), file) in lock(&self.files).iter_mut() {
            if is_read(part) {
                let now = state_of(path);
                (file.read, file.seen) = (now, now);
            }
        }
    }

    /// A part was reloaded, or its files cannot be used. True: that is news.
    pub(super) fn note_outcome(&self, part: &Part, has_failed: bool) -> bool {
        let mut failed = lock(&self.failed);
        match has_failed {
            true => failed.insert(part.clone(), Instant::now() + RETRY_INTERVAL).is_none(),
            false => failed.remove(part).is_some(),
        }
    }
}

/// Ends the thread when it is dropped.
pub(super) struct Watching {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Not waited for: a file system that does not answer holds it.
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}

impl Part {
    /// What its files have.
    pub(super) const fn what(&self) -> &'static str {
        match self {
            Self::Passwords => "passwords and keys",
            Self::Registries => REGISTRIES,
            Self::Bans => "bans",
            Self::Rules => "access rules",
            Self::ApiUsers => "users of the API",
            Self::Routing => "streams and rules",
            Self::Tls(_) => "certificates",
        }
    }

    pub(super) fn listener(&self) -> Option<&str> {
        if let Self::Tls(listener) = self { Some(listener) } else { None }
    }

    /// What it is called among others.
    pub(super) fn name(&self) -> String {
        match self.listener() {
            Some(listener) => format!("{} of {listener}", self.what()),
            None => self.what().to_owned(),
        }
    }
}

fn files_of(config: &Config) -> Vec<(Part, PathBuf)> {
    let mut all = Vec::new();
    let mut add = |part: &Part, paths: &[&Option<PathBuf>]| {
        let paths = paths.iter().filter_map(|path| path.as_ref());
        all.extend(paths.map(|path| (part.clone(), path.clone())));
    };
    add(&Part::Passwords, &[&config.auth.password_file]);
    add(&Part::Bans, &[&config.auth.ban_file]);
    add(&Part::Rules, &[&config.access.acl_file, &config.access.policy_file]);
    for namespace in &config.namespaces {
        add(&Part::Rules, &[&namespace.acl_file, &namespace.policy_file]);
    }
    for provider in &config.authentication {
        match &provider.method {
            Method::Jwt(own) => {
                add(&Part::Passwords, &[&own.secret_file, &own.key_file, &own.jwks_file]);
            }
            Method::Registry(own) => add(&Part::Registries, &[&Some(own.file.clone())]),
            Method::Http(_) | Method::Certificate { .. } => {}
        }
    }
    if let Some(routing) = &config.routing {
        add(&Part::Routing, &[&Some(routing.file.clone())]);
    }
    if let Some(api) = &config.api {
        add(&Part::ApiUsers, &[&api.password_file]);
    }
    let of_listener = |own: &config::Listener| own.tls.clone().map(|tls| (own.name.clone(), tls));
    let of_http = config.http_tls_by_key().into_iter();
    let of_http = of_http.map(|(name, tls)| (name.to_owned(), tls.clone()));
    for (name, tls) in config.listeners.iter().filter_map(of_listener).chain(of_http) {
        let TlsConfig { certificate, chain, key, client_ca, crl, .. } = tls;
        add(&Part::Tls(name), &[&Some(certificate), &chain, &Some(key), &client_ca, &crl]);
    }
    all
}

fn state_of(path: &Path) -> State {
    let found = std::fs::metadata(path).ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Some((found.dev(), found.ino(), found.size(), times))
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Watches files of a directory, by their names.
    fn watching(directory: &Path, files: &[(Part, &str)]) -> FileWatch {
        let watched = files.iter().map(|(part, name)| {
            let path = directory.join(name);
            let now = state_of(&path);
            ((part.clone(), path), Watched { read: now, seen: now })
        });
        FileWatch {
            files: Mutex::new(watched.collect()),
            changed: Mutex::default(),
            failed: Mutex::default(),
            interval: None,
        }
    }

    fn changed(watch: &FileWatch) -> Vec<Part> {
        watch.look();
        watch.take_changed().into_iter().collect()
    }

    #[test]
    fn a_part_is_reloaded_once_nobody_writes_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let tls = Part::Tls("one".into());
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("crt", "1");
        write("key", "1");
        write("bans", "1");
        let all = [(tls.clone(), "crt"), (tls.clone(), "key"), (Part::Bans, "bans")];
        let watch = watching(dir.path(), &all);
        assert_eq!(changed(&watch), []);
        write("crt", "two");
        assert_eq!(changed(&watch), [], "it may be half of it");
        write("key", "two");
        assert_eq!(changed(&watch), [], "the other file of the part");
        assert_eq!(changed(&watch), [tls]);
        assert_eq!(changed(&watch), []);
        // In place, with the same size.
        write("bans", "2");
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![Part::Bans]));
        // Renamed into place.
        write("new", "2");
        fs::rename(dir.path().join("new"), dir.path().join("bans")).unwrap();
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![Part::Bans]));
        // A reload for another reason has read it.
        write("bans", "three");
        changed(&watch);
        watch.note_reload();
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![]));
        // Deleted, and back.
        fs::remove_file(dir.path().join("bans")).unwrap();
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![Part::Bans]));
        write("bans", "4");
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![Part::Bans]));
    }

    /// As the kubelet does: files are links into `..data`, a link to a directory of a time.
    #[test]
    fn a_directory_that_is_swapped_by_a_link_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (time, text) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(at(time)).unwrap();
            fs::write(at(time).join("crt"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/crt", at("crt")).unwrap();
        let watch = watching(dir.path(), &[(Part::Bans, "crt")]);
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!((changed(&watch), changed(&watch)), (vec![], vec![Part::Bans]));
    }

    #[test]
    fn what_cannot_be_used_is_news_once_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let watch = watching(dir.path(), &[(Part::Rules, "rules")]);
        assert!(watch.note_outcome(&Part::Rules, true));
        assert!(!watch.note_outcome(&Part::Rules, true), "one warning");
        assert_eq!(changed(&watch), []);
        lock(&watch.failed).insert(Part::Rules, Instant::now());
        assert_eq!(changed(&watch), [Part::Rules]);
        assert!(watch.note_outcome(&Part::Rules, false));
        assert!(!watch.note_outcome(&Part::Rules, false));
    }
}
