//! Who is kept out, whatever they show: a list in a file, one of the management API, and clients
//! that come and go too often.

mod flapping;
mod list;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use broker::Name;

use super::lock;
use config::Auth;
use data::Stamps;
use flapping::{Flapping, Limits};
pub use list::{BanList, Banned, FOR_EVER, FULL, Named, Within};

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
    /// Of a node that is active for the cell which has the list of the API: where that is.
    home: RwLock<Option<(PathBuf, Stamps)>>,
    /// Changes stand in line: the list in force is the one that was written last.
    changing: Mutex<()>,
    listed: RwLock<Arc<Lists>>,
    /// None: nobody is looked at.
    flapping: Option<Mutex<Flapping>>,
    refused: [AtomicU64; BanKind::ALL.len()],
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

/// What a ban refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanKind {
    Client,
    User,
    Address,
    /// It connects too often.
    Flapping,
}

/// A client that connects, or that is connected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visitor<'a> {
    /// Its name; None: it is not known yet, and only bans that hold in all are looked at.
    pub namespace: Option<&'a str>,
    pub client_id: Option<&'a str>,
    pub username: Option<&'a str>,
    pub address: Option<IpAddr>,
}

impl BanKind {
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
        Ok(Self {
            path,
            own_path,
            stamps: stamps.clone(),
            home: RwLock::default(),
            changing: Mutex::default(),
            listed: RwLock::new(Arc::new(listed)),
            flapping: Limits::of(config).map(Flapping::new).map(Mutex::new),
            refused: Default::default(),
        })
    }

    /// Reads the file that is edited by hand. The other one is part of the data directory.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn check_file(config: &Auth) -> Result<(), String> {
        load_file(config.ban_file.as_deref()).map(|_| ())
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

    /// From now on the API's list is the one in this directory, and changes are written there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn take_over(&self, data_dir: &Path, stamps: &Stamps) -> Result<(), String> {
        let _changing = lock(&self.changing);
        let path = data_dir.join(OWN_FILE);
        let own = load_own(&path, stamps)?;
        *self.home.write().unwrap_or_else(PoisonError::into_inner) = Some((path, stamps.clone()));
        self.put(self.lists().file.clone(), own);
        Ok(())
    }

    /// The list is another node's from now on. What is in force stays so.
    pub fn give_up(&self) {
        *self.home.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Puts a list in force that the node has which the list belongs to. A copy on the disk is in
    /// force after a restart, until that node answers.
    ///
    /// # Errors
    ///
    /// It is malformed.
    pub fn follow(&self, text: &str) -> Result<Arc<Lists>, String> {
        let _changing = lock(&self.changing);
        let own = BanList::parse(text).map_err(|(line, why)| format!("line {line}: {why}"))?;
        let now = self.lists();
        if self.home().is_some() || own.to_text() == now.own.to_text() {
            return Ok(now);
        }
        if let Err(error) = self.write_to((&self.own_path, &self.stamps), &own) {
            let path = self.own_path.display();
            tracing::warn!(%error, "cannot write a copy of the bans of the cluster to {path}");
        }
        Ok(self.put(now.file.clone(), Arc::new(own)))
    }

    fn home(&self) -> Option<(PathBuf, Stamps)> {
        self.home.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Both lists, as they are in force.
    pub fn lists(&self) -> Arc<Lists> {
        self.listed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The API bans somebody until a time. When this returns, the ban is on the disk and in force
    /// at the acceptors. Blocks on the disk.
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
        match self.home() {
            Some((path, stamps)) => self.write_to((&path, &stamps), own),
            None => self.write_to((&self.own_path, &self.stamps), own),
        }
    }

    fn write_to(&self, (path, stamps): (&Path, &Stamps), own: &BanList) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            data::make_private(directory)?;
        }
        stamps.write(path, format!("{OWN_HEAD}{}", own.to_text()).as_bytes())
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

    /// A client that has proved who it is wants to be let in. True: it has come too often.
    pub fn keeps_off(&self, client: Name<'_>, username: Option<&str>, now: Instant) -> bool {
        let Some(flapping) = &self.flapping else { return false };
        let is_off = lock(flapping).keeps_off(client, username, now);
        if is_off {
            self.count(BanKind::Flapping);
        }
        is_off
    }

    /// A client was let in: its session is its own.
    pub fn note_admitted(&self, client: Name<'_>, username: Option<&str>, now: Instant) {
        if let Some(flapping) = &self.flapping {
            lock(flapping).note(client, username, now);
        }
    }

    /// How often a kind of ban has kept somebody out.
    pub fn refused(&self, kind: BanKind) -> u64 {
        self.refused[kind as usize].load(Ordering::Relaxed)
    }

    /// Bans that are listed.
    pub fn count_listed(&self) -> usize {
        let Lists { file, own, .. } = &*self.lists();
        file.len() + own.len()
    }

    fn count(&self, kind: BanKind) {
        self.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Lists {
    pub fn are_empty(&self) -> bool {
        self.own.is_empty() && self.file.is_empty()
    }

    /// What bans somebody at a time.
    pub fn means(&self, visitor: Visitor<'_>, now_secs: u64) -> Option<BanKind> {
        self.own.means(visitor, now_secs).or_else(|| self.file.means(visitor, now_secs))
    }
}

const OWN_HEAD: &str = "# Bans of the management API, which overwrites this file.\n";

fn load_file(path: Option<&Path>) -> Result<Arc<BanList>, String> {
    Ok(Arc::new(path.map(BanList::load).transpose()?.unwrap_or_default()))
}

fn load_own(path: &Path, stamps: &Stamps) -> Result<Arc<BanList>, String> {
    let text = stamps.read_text(path).map_err(|error| error.to_string())?.unwrap_or_default();
    let list = BanList::parse(&text);
    Ok(Arc::new(list.map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))?))
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
            ..config::Config::defaults(&config::Machine::here()).auth
        };
        let load = || Bans::load(&auth, &data, &Stamps::default()).unwrap();
        let is_out = |bans: &Bans, client_id: &str, at: u64| {
            let visitor = Visitor { client_id: Some(client_id), ..Visitor::default() };
            bans.keeps_out(visitor, at)
        };
        let bans = load();
        let client = |name: &str| Banned::parse("client", name).unwrap();
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
        let eve = Banned::parse("user", "eve").unwrap();
        assert!(matches!(bans.remove(&eve, 20), Err(NoChange::ByHand(path)) if path == file));

        // What cannot be written is not in force.
        let own = data.join(OWN_FILE);
        std::fs::remove_file(&own).unwrap();
        std::fs::create_dir(&own).unwrap();
        let refused = bans.add(client("c"), FOR_EVER, 20);
        assert!(matches!(refused, Err(NoChange::Unwritten(path, _)) if path == own));
        assert!(!is_out(&bans, "c", 21));
    }
}
