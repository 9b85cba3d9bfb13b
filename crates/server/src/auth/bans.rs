//! Who is kept out, whatever they show: a list in a file, one of the management API, and clients
//! that come and go too often.

mod list;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::lock;
use crate::config::Auth;
use crate::disk::Stamps;
pub use list::{BanList, Banned, FOR_EVER, FULL};

/// Clients whose connects are counted. At the limit those of the window before are forgotten.
const CLIENTS_MAX: usize = 100_000;

/// Each ban of a client that does not mend is twice as long as the one before, up to this.
const BAN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The file of the API's bans, in the data directory.
pub const OWN_FILE: &str = "bans";

/// All bans, and how often each kind has kept somebody out.
#[derive(Debug, Default)]
pub struct Bans {
    /// Of operators, who edit it by hand.
    path: Option<PathBuf>,
    /// Of the API, which writes it anew with each change.
    own_path: PathBuf,
    stamps: Stamps,
    /// Changes stand in line: the list in force is the one that was written last.
    changing: Mutex<()>,
    listed: RwLock<Arc<Lists>>,
    flapping: Mutex<Flapping>,
    refused: [AtomicU64; Kind::ALL.len()],
}

/// Who is listed, by hand or by the API.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// Higher than those of lists before.
    pub serial: u64,
    pub file: Arc<BanList>,
    pub own: Arc<BanList>,
}

/// A change of the API's list that cannot be made.
#[derive(Debug)]
pub enum NoChange {
    /// There is no such ban.
    Missing,
    /// It is in the file that is edited by hand.
    ByHand(PathBuf),
    Full,
    Unwritten(PathBuf, io::Error),
}

/// What somebody is banned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Client,
    User,
    Address,
    /// It connects too often.
    Flapping,
}

/// Somebody who knocks, or who is in already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visitor<'a> {
    pub client_id: Option<&'a str>,
    pub username: Option<&'a str>,
    pub address: Option<IpAddr>,
}

/// Counts the connects of clients.
#[derive(Debug, Default)]
struct Flapping {
    /// Connects in a window; 0: nobody is looked at.
    connects_max: u32,
    window: Duration,
    ban: Duration,
    clients: HashMap<String, Connects>,
    swept_at: Option<Instant>,
}

#[derive(Debug)]
struct Connects {
    count: u32,
    since: Instant,
    /// How often it has been banned of late.
    bans: u32,
    banned_until: Option<Instant>,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Client, Self::User, Self::Address, Self::Flapping];

    /// For a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::User => "user",
            Self::Address => "address",
            Self::Flapping => "flapping",
        }
    }
}

impl Bans {
    /// Reads the files, if there are any. The API's is in the data directory.
    ///
    /// # Errors
    ///
    /// One cannot be read, or a line of it is not understood.
    pub fn load(config: &Auth, data_dir: &Path, stamps: &Stamps) -> Result<Self, String> {
        let path = config.ban_file.clone();
        let own_path = data_dir.join(OWN_FILE);
        let (file, own) = (load_file(path.as_deref())?, load_own(&own_path, stamps)?);
        let listed = Lists { serial: 1, file, own };
        let secs = |secs: u32| Duration::from_secs(secs.into());
        let flapping = Flapping {
            connects_max: config.flapping_max,
            window: secs(config.flapping_window_secs),
            ban: secs(config.flapping_ban_secs),
            clients: HashMap::new(),
            swept_at: None,
        };
        Ok(Self {
            path,
            own_path,
            stamps: stamps.clone(),
            changing: Mutex::default(),
            listed: RwLock::new(Arc::new(listed)),
            flapping: Mutex::new(flapping),
            refused: Default::default(),
        })
    }

    /// Reads the file that is edited by hand again. `None`: there is none.
    ///
    /// # Errors
    ///
    /// The same; the old list then stays in force.
    pub fn reload(&self) -> Result<Option<Arc<Lists>>, String> {
        if self.path.is_none() {
            return Ok(None);
        }
        let _changing = lock(&self.changing);
        let file = load_file(self.path.as_deref())?;
        Ok(Some(self.put(file, self.lists().own.clone())))
    }

    /// Both lists, as they are in force.
    pub fn lists(&self) -> Arc<Lists> {
        self.listed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The API bans somebody until a time. When this returns, the ban is on the disk and in force
    /// at the doors. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// It cannot be kept, and is not in force.
    pub fn add(&self, banned: Banned, until: u64, now_secs: u64) -> Result<Arc<Lists>, NoChange> {
        self.change(now_secs, |own| own.add(banned, until).map_err(|_| NoChange::Full))
    }

    /// The API takes a ban back.
    ///
    /// # Errors
    ///
    /// There is none that it could take back, or that cannot be written; all is as before then.
    pub fn remove(&self, banned: &Banned, now_secs: u64) -> Result<Arc<Lists>, NoChange> {
        self.change(now_secs, |own| {
            if own.remove(banned) {
                return Ok(());
            }
            Err(match (self.lists().file.until(banned), &self.path) {
                (Some(_), Some(path)) => NoChange::ByHand(path.clone()),
                _ => NoChange::Missing,
            })
        })
    }

    fn change(
        &self,
        now_secs: u64,
        change: impl FnOnce(&mut BanList) -> Result<(), NoChange>,
    ) -> Result<Arc<Lists>, NoChange> {
        let _changing = lock(&self.changing);
        let now = self.lists();
        let mut own = BanList::clone(&now.own);
        own.prune(now_secs);
        change(&mut own)?;
        self.write(&own).map_err(|error| NoChange::Unwritten(self.own_path.clone(), error))?;
        Ok(self.put(now.file.clone(), Arc::new(own)))
    }

    /// Writes the file of the API's bans, also where there are none: its absence is a fault.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn renew(&self) -> io::Result<()> {
        let _changing = lock(&self.changing);
        self.write(&self.lists().own)
    }

    fn write(&self, own: &BanList) -> io::Result<()> {
        if let Some(directory) = self.own_path.parent() {
            crate::disk::make_private(directory)?;
        }
        self.stamps.write(&self.own_path, format!("{OWN_HEAD}{}", own.to_text()).as_bytes())
    }

    fn put(&self, file: Arc<BanList>, own: Arc<BanList>) -> Arc<Lists> {
        let mut listed = self.listed.write().unwrap_or_else(PoisonError::into_inner);
        *listed = Arc::new(Lists { serial: listed.serial + 1, file, own });
        listed.clone()
    }

    /// Is somebody kept out? Counts it.
    pub fn keeps_out(&self, visitor: Visitor<'_>, now_secs: u64) -> bool {
        let kind = self.lists().means(visitor, now_secs);
        kind.inspect(|kind| self.count(*kind)).is_some()
    }

    /// A client connects that has proved who it is. True: it has come too often.
    pub fn keeps_off(&self, client_id: &str, now: Instant) -> bool {
        let is_off = lock(&self.flapping).note(client_id, now);
        if is_off {
            self.count(Kind::Flapping);
        }
        is_off
    }

    /// How often a kind of ban has kept somebody out.
    pub fn refused(&self, kind: Kind) -> u64 {
        self.refused[kind as usize].load(Ordering::Relaxed)
    }

    /// Bans that are listed.
    pub fn count_listed(&self) -> usize {
        let Lists { file, own, .. } = &*self.lists();
        file.len() + own.len()
    }

    fn count(&self, kind: Kind) {
        self.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Lists {
    /// What bans somebody at a time.
    pub fn means(&self, visitor: Visitor<'_>, now_secs: u64) -> Option<Kind> {
        self.own.means(visitor, now_secs).or_else(|| self.file.means(visitor, now_secs))
    }
}

const OWN_HEAD: &str = "# Bans made by the management API, which writes this file anew.\n";

fn load_file(path: Option<&Path>) -> Result<Arc<BanList>, String> {
    Ok(Arc::new(path.map(BanList::load).transpose()?.unwrap_or_default()))
}

fn load_own(path: &Path, stamps: &Stamps) -> Result<Arc<BanList>, String> {
    let text = stamps.read_text(path).map_err(|error| error.to_string())?.unwrap_or_default();
    let list = BanList::parse(&text);
    Ok(Arc::new(list.map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))?))
}

impl Flapping {
    /// True: the client is kept off.
    fn note(&mut self, client_id: &str, now: Instant) -> bool {
        if self.connects_max == 0 {
            return false;
        }
        self.sweep(now);
        let (window, ban, connects_max) = (self.window, self.ban, self.connects_max);
        let client = self.clients.entry(client_id.to_owned()).or_insert(Connects {
            count: 0,
            since: now,
            bans: 0,
            banned_until: None,
        });
        if client.banned_until.is_some_and(|until| now < until) {
            return true;
        }
        if now.saturating_duration_since(client.since) >= window {
            (client.count, client.since) = (0, now);
        }
        client.count += 1;
        if client.count <= connects_max {
            return false;
        }
        let length = ban.saturating_mul(1 << client.bans.min(16)).min(BAN_MAX.max(ban));
        client.bans += 1;
        client.banned_until = Some(now + length);
        (client.count, client.since) = (0, now + length);
        true
    }

    /// Forgets those who behave: a ban is remembered as long again as it was.
    fn sweep(&mut self, now: Instant) {
        let is_due = self.swept_at.is_none_or(|at| now.duration_since(at) >= self.window);
        if !is_due && self.clients.len() < CLIENTS_MAX {
            return;
        }
        self.swept_at = Some(now);
        let (window, ban) = (self.window, self.ban);
        self.clients.retain(|_, client| {
            let length = ban.saturating_mul(1 << client.bans.min(16)).min(BAN_MAX.max(ban));
            let kept = if client.bans > 0 { length } else { window };
            client.since > now || now.duration_since(client.since) < kept
        });
        if self.clients.len() >= CLIENTS_MAX {
            self.clients.retain(|_, client| client.bans > 0);
        }
        if self.clients.len() >= CLIENTS_MAX {
            self.clients.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_of_the_api_are_on_the_disk_before_they_are_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let (data, file) = (directory.path().join("data"), directory.path().join("file"));
        std::fs::write(&file, "user eve\n").unwrap();
        let auth = Auth {
            ban_file: Some(file.clone()),
            ..crate::config::Config::defaults(&crate::config::Machine::here()).auth
        };
        let load = || Bans::load(&auth, &data, &Stamps::default()).unwrap();
        let is_out = |bans: &Bans, client_id: &str, at: u64| {
            let visitor = Visitor { client_id: Some(client_id), ..Visitor::default() };
            bans.keeps_out(visitor, at)
        };
        let bans = load();
        let client = |name: &str| Banned::Client(name.into());
        bans.add(client("a until b"), 100, 10).unwrap();
        bans.add(client("short"), 20, 10).unwrap();
        for bans in [&bans, &load()] {
            assert!(is_out(bans, "a until b", 99) && !is_out(bans, "a until b", 100));
            assert_eq!(bans.count_listed(), 3);
        }
        // What has ended goes with the next change.
        bans.remove(&client("a until b"), 20).unwrap();
        assert_eq!(load().count_listed(), 1);
        assert!(matches!(bans.remove(&client("short"), 20), Err(NoChange::Missing)));
        let eve = Banned::User("eve".into());
        assert!(matches!(bans.remove(&eve, 20), Err(NoChange::ByHand(path)) if path == file));

        // What cannot be written is not in force.
        let own = data.join(OWN_FILE);
        std::fs::remove_file(&own).unwrap();
        std::fs::create_dir(&own).unwrap();
        let refused = bans.add(client("c"), FOR_EVER, 20);
        assert!(matches!(refused, Err(NoChange::Unwritten(path, _)) if path == own));
        assert!(!is_out(&bans, "c", 21));
    }

    #[test]
    fn who_connects_too_often_is_kept_off_each_time_longer() {
        let secs = Duration::from_secs;
        let (window, ban) = (secs(60), secs(300));
        let mut flapping =
            Flapping { connects_max: 3, window, ban, clients: HashMap::new(), swept_at: None };
        let start = Instant::now();
        let mut storm = |from: Instant| (0..10).filter(|_| !flapping.note("c", from)).count();
        assert_eq!(storm(start), 3);
        assert_eq!(storm(start + secs(299)), 0, "banned");
        assert_eq!(storm(start + secs(300)), 3, "not any more");
        assert_eq!(storm(start + secs(300 + 599)), 0, "twice as long");
        assert_eq!(storm(start + secs(300 + 600)), 3);
        assert!(!flapping.note("other", start), "others are not affected");
        for minute in 0..100 {
            for _ in 0..3 {
                assert!(!flapping.note("slow", start + secs(minute * 60)), "three a minute");
            }
        }
    }

    #[test]
    fn clients_that_are_counted_are_bounded() {
        let secs = Duration::from_secs;
        let mut flapping = Flapping {
            connects_max: 3,
            window: secs(60),
            ban: secs(300),
            clients: HashMap::new(),
            swept_at: None,
        };
        let start = Instant::now();
        for number in 0..CLIENTS_MAX + 10 {
            assert!(!flapping.note(&number.to_string(), start));
            assert!(flapping.clients.len() <= CLIENTS_MAX);
        }
        assert!(!flapping.note("one more", start + secs(60)));
        assert_eq!(flapping.clients.len(), 1);
    }
}
