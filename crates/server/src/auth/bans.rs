//! Who is kept out, whatever they show: a list in a file, and clients that come and go too often.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::lock;
use crate::config::{Auth, Network};

/// Bans of networks, each of which is compared with every address.
const NETWORKS_MAX: usize = 10_000;

/// Bans of a file in all.
const BANS_MAX: usize = 1_000_000;

/// Clients whose connects are counted. At the limit those of the window before are forgotten.
const CLIENTS_MAX: usize = 100_000;

/// Each ban of a client that does not mend is twice as long as the one before, up to this.
const BAN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// All bans, and how often each kind has kept somebody out.
#[derive(Debug, Default)]
pub struct Bans {
    path: Option<PathBuf>,
    listed: RwLock<Arc<BanList>>,
    flapping: Mutex<Flapping>,
    refused: [AtomicU64; Kind::ALL.len()],
}

/// The bans of a file. Each has an end, in seconds since 1970.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BanList {
    clients: HashMap<String, u64>,
    users: HashMap<String, u64>,
    addresses: HashMap<IpAddr, u64>,
    networks: Vec<(Network, u64)>,
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
    /// Reads the file, if there is one.
    ///
    /// # Errors
    ///
    /// It cannot be read, or a line of it is not understood.
    pub fn load(config: &Auth) -> Result<Self, String> {
        let path = config.ban_file.clone();
        let listed = path.as_deref().map(BanList::load).transpose()?.unwrap_or_default();
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
            listed: RwLock::new(Arc::new(listed)),
            flapping: Mutex::new(flapping),
            refused: Default::default(),
        })
    }

    /// Reads the file again. `None`: there is none.
    ///
    /// # Errors
    ///
    /// The same; the old list then stays in force.
    pub fn reload(&self) -> Result<Option<Arc<BanList>>, String> {
        let Some(path) = &self.path else { return Ok(None) };
        let listed = Arc::new(BanList::load(path)?);
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = listed.clone();
        Ok(Some(listed))
    }

    /// Is somebody kept out? Counts it.
    pub fn keeps_out(&self, visitor: Visitor<'_>, now_secs: u64) -> bool {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner).clone();
        let kind = listed.means(visitor, now_secs);
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
        self.listed.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn count(&self, kind: Kind) {
        self.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl BanList {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or a line of it is not understood.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read ban file {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))
    }

    /// Parses the text of a file. The error is a line number, from 1, and what is wrong there.
    ///
    /// # Errors
    ///
    /// The first line that is not understood: a ban that is left out by mistake bans nobody.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            list.add(line).map_err(|why| (index + 1, why))?;
            if list.len() > BANS_MAX || list.networks.len() > NETWORKS_MAX {
                let why = format!("more than {BANS_MAX} bans, or {NETWORKS_MAX} of networks");
                return Err((index + 1, why));
            }
        }
        Ok(list)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let (kind, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let (who, until) = match rest.rsplit_once(" until ") {
            Some((who, time)) => (who.trim(), time_secs(time.trim())?),
            None => (rest, u64::MAX),
        };
        if who.is_empty() {
            return Err(format!("a {kind} line needs who it is about"));
        }
        match kind {
            "client" => drop(self.clients.insert(who.into(), until)),
            "user" => drop(self.users.insert(who.into(), until)),
            "address" => match who.parse::<IpAddr>() {
                Ok(address) => drop(self.addresses.insert(address.to_canonical(), until)),
                Err(_) => self.networks.push((who.parse()?, until)),
            },
            _ => return Err(format!("'{kind}' is none of `client`, `user`, `address`")),
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.clients.len() + self.users.len() + self.addresses.len() + self.networks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What bans somebody at a time.
    pub fn means(&self, visitor: Visitor<'_>, now_secs: u64) -> Option<Kind> {
        if self.is_empty() {
            return None;
        }
        let holds = |until: &u64| *until > now_secs;
        let named = |list: &HashMap<String, u64>, name: Option<&str>| {
            name.and_then(|name| list.get(name)).is_some_and(holds)
        };
        let address = visitor.address.map(|address| address.to_canonical());
        let is_at = |address: IpAddr| {
            let mut networks = self.networks.iter();
            self.addresses.get(&address).is_some_and(holds)
                || networks.any(|(network, until)| holds(until) && network.contains(address))
        };
        if named(&self.clients, visitor.client_id) {
            Some(Kind::Client)
        } else if named(&self.users, visitor.username) {
            Some(Kind::User)
        } else if address.is_some_and(is_at) {
            Some(Kind::Address)
        } else {
            None
        }
    }
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

/// Seconds since 1970, or `2026-12-31T23:59:59Z`.
fn time_secs(text: &str) -> Result<u64, String> {
    if let Ok(secs) = text.parse() {
        return Ok(secs);
    }
    let wanted = || format!("'{text}' is not a time such as 2026-12-31T23:59:59Z");
    let bare = text.strip_suffix('Z').ok_or_else(wanted)?;
    let (date, time) = bare.split_once('T').ok_or_else(wanted)?;
    let numbers = |text: &str, mark| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = text.split(mark).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) =
        numbers(date, '-').zip(numbers(time, ':')).ok_or_else(wanted)?;
    let is_time = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_time {
        return Err(wanted());
    }
    // Years begin in March, so that the odd day is the last one.
    let year = if month < 3 { year - 1 } else { year };
    let days_before = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + days_before - DAYS_BEFORE_1970;
    Ok(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// From the first of March of the year 0.
const DAYS_BEFORE_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    fn by(list: &BanList, client_id: &str, username: &str, address: &str) -> Option<Kind> {
        let visitor = Visitor {
            client_id: Some(client_id),
            username: Some(username),
            address: address.parse().ok(),
        };
        list.means(visitor, 1_000)
    }

    #[test]
    fn a_list_says_who_is_banned_until_when() {
        let text = "# bad ones\nclient c 1\nclient old until 1000\nuser eve until 1001\n\n\
                    address 192.0.2.7\naddress 10.0.0.0/8 until 2030-01-01T00:00:00Z\n\
                    address 2001:db8::/32\n";
        let list = BanList::parse(text).unwrap();
        assert_eq!(list.len(), 6);
        assert_eq!(by(&list, "c 1", "", ""), Some(Kind::Client));
        assert_eq!(by(&list, "old", "eve", ""), Some(Kind::User));
        assert_eq!(by(&list, "old", "anna", "192.0.2.8"), None);
        for address in ["192.0.2.7", "::ffff:192.0.2.7", "10.1.2.3", "2001:db8::1"] {
            assert_eq!(by(&list, "", "", address), Some(Kind::Address), "{address}");
        }
    }

    #[test]
    fn a_line_that_is_not_understood_is_told() {
        for (text, line, what) in [
            ("client", 1, "needs who"),
            ("\naddress x", 2, "x"),
            ("clients a", 1, "'clients'"),
            ("user a until tomorrow", 1, "'tomorrow'"),
            ("user a until 2026-13-01T00:00:00Z", 1, "2026-13"),
            ("address 10.0.0.0/33", 1, "10.0.0.0/33"),
        ] {
            let (at, why) = BanList::parse(text).unwrap_err();
            assert!(at == line && why.contains(what), "{text}: {at} {why}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(time_secs("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(time_secs("2000-02-29T12:00:01Z"), Ok(951_825_601));
        assert_eq!(time_secs("2026-12-31T23:59:59Z"), Ok(1_798_761_599));
        assert_eq!(time_secs("17"), Ok(17));
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
