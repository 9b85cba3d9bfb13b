//! Lists of bans: as a file has them, and as they are asked.
//!
//! A ban of a client id or user name holds in one namespace (`client@red dev-7`) or in all (`client
//! dev-7`). Programs from before namespaces refuse a file that has the first kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::ops::Bound;
use std::path::Path;

use super::{BanKind, Visitor};
use base::moment;
use config::Network;
use config::namespaces::is_name;

/// Bans of networks, each of which is compared with every address.
const NETWORKS_MAX: usize = 10_000;

/// Bans of a list in all.
const BANS_MAX: usize = 1_000_000;

/// The end of a ban that has none.
pub const FOR_EVER: u64 = u64::MAX;

/// The bans of a file. Each has an end, in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanList {
    clients: BTreeMap<Named, u64>,
    users: BTreeMap<Named, u64>,
    addresses: BTreeMap<IpAddr, u64>,
    networks: BTreeMap<Network, u64>,
}

/// Who is banned by one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Banned {
    Client(Named),
    User(Named),
    Address(IpAddr),
    Network(Network),
}

/// A client id or user name, and where it is banned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    pub name: Box<str>,
    pub within: Within,
}

/// Where a ban holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Within {
    /// In all namespaces.
    All,
    /// In the one of this name.
    One(Box<str>),
}

/// Why somebody cannot be put on a list.
pub const FULL: &str = "at most 1000000 bans, and 10000 of them networks";

impl Banned {
    /// From the words of a line: `client`, `user` or `address`, and who is meant.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(kind: &str, who: &str) -> Result<Self, String> {
        if who.is_empty() {
            return Err(format!("a {kind} line needs a name or address"));
        }
        let named = || Named { name: who.into(), within: Within::All };
        match kind {
            "client" => Ok(Self::Client(named())),
            "user" => Ok(Self::User(named())),
            "address" => match who.parse::<IpAddr>() {
                Ok(address) => Ok(Self::Address(address.to_canonical())),
                Err(_) => {
                    let network = who.parse::<Network>().map_err(|error| error.to_string())?;
                    Ok(Self::Network(network.without_host()))
                }
            },
            _ => Err(format!("must be `client`, `user` or `address`, got '{kind}'")),
        }
    }

    /// The same in one namespace only.
    ///
    /// # Errors
    ///
    /// It is an address, which is banned in all of them; or that is no name of a namespace.
    pub fn in_namespace(self, name: &str) -> Result<Self, String> {
        if !is_name(name) {
            return Err(format!("invalid name of a namespace: '{name}'"));
        }
        let within = |named: Named| Named { within: Within::One(name.into()), ..named };
        match self {
            Self::Client(named) => Ok(Self::Client(within(named))),
            Self::User(named) => Ok(Self::User(within(named))),
            Self::Address(_) | Self::Network(_) => {
                Err("an address is banned in all namespaces; omit the namespace".to_owned())
            }
        }
    }

    /// Where it holds. None: everywhere.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Client(Named { within: Within::One(name), .. })
            | Self::User(Named { within: Within::One(name), .. }) => Some(name),
            _ => None,
        }
    }

    /// Does it hold in this namespace?
    pub fn holds_in(&self, namespace: &str) -> bool {
        self.namespace().is_none_or(|own| own == namespace)
    }

    /// What it is about.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::User(_) => "user",
            Self::Address(_) | Self::Network(_) => "address",
        }
    }

    pub fn who(&self) -> String {
        match self {
            Self::Client(named) | Self::User(named) => named.name.to_string(),
            Self::Address(address) => address.to_string(),
            Self::Network(network) => network.to_string(),
        }
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
            let added = ban_of(line)
                .and_then(|(banned, until)| list.add(banned, until).map_err(str::to_owned));
            added.map_err(|why| (index + 1, why))?;
        }
        Ok(list)
    }

    /// The text of a file, which is read as the same list.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (banned, until) in self.all() {
            let who = match &banned {
                Banned::Client(named) | Banned::User(named) => written(&named.name),
                address => address.who(),
            };
            let place = banned.namespace().map(|name| format!("@{name}")).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = write!(text, "{}{place} {who}", banned.kind());
            if until != FOR_EVER {
                let _ = write!(text, " until {}", moment::text_of(until));
            }
            text.push('\n');
        }
        text
    }

    /// Puts somebody on it, or gives a ban that is there another end.
    ///
    /// # Errors
    ///
    /// It is full.
    pub fn add(&mut self, banned: Banned, until: u64) -> Result<(), &'static str> {
        let is_full = self.len() >= BANS_MAX
            || matches!(banned, Banned::Network(_)) && self.networks.len() >= NETWORKS_MAX;
        if is_full && self.until(&banned).is_none() {
            return Err(FULL);
        }
        match banned {
            Banned::Client(name) => self.clients.insert(name, until),
            Banned::User(name) => self.users.insert(name, until),
            Banned::Address(address) => self.addresses.insert(address, until),
            Banned::Network(network) => self.networks.insert(network, until),
        };
        Ok(())
    }

    /// False: it was not there.
    pub fn remove(&mut self, banned: &Banned) -> bool {
        let removed = match banned {
            Banned::Client(name) => self.clients.remove(name),
            Banned::User(name) => self.users.remove(name),
            Banned::Address(address) => self.addresses.remove(address),
            Banned::Network(network) => self.networks.remove(network),
        };
        removed.is_some()
    }

    /// When the ban of somebody ends; None: there is none.
    pub fn until(&self, banned: &Banned) -> Option<u64> {
        let until = match banned {
            Banned::Client(name) => self.clients.get(name),
            Banned::User(name) => self.users.get(name),
            Banned::Address(address) => self.addresses.get(address),
            Banned::Network(network) => self.networks.get(network),
        };
        until.copied()
    }

    /// The bans of the same name, whatever their namespaces.
    pub fn same_name(&self, banned: &Banned) -> Vec<Banned> {
        match banned {
            Banned::Client(named) => of_name(&self.clients, &named.name)
                .map(|(it, _)| Banned::Client(it.clone()))
                .collect(),
            Banned::User(named) => {
                of_name(&self.users, &named.name).map(|(it, _)| Banned::User(it.clone())).collect()
            }
            address => self.until(address).map(|_| address.clone()).into_iter().collect(),
        }
    }

    /// Drops those that have ended.
    pub fn prune(&mut self, now_secs: u64) {
        self.clients.retain(|_, until| *until > now_secs);
        self.users.retain(|_, until| *until > now_secs);
        self.addresses.retain(|_, until| *until > now_secs);
        self.networks.retain(|_, until| *until > now_secs);
    }

    /// Those behind one of them, in an order that stays.
    pub fn behind(&self, after: Option<&Banned>) -> impl Iterator<Item = (Banned, u64)> {
        let place = |banned: &Banned| match banned {
            Banned::Client(_) => 0,
            Banned::User(_) => 1,
            Banned::Address(_) => 2,
            Banned::Network(_) => 3,
        };
        let passed = after.map_or(-1, place);
        let names = |list, own: i32| {
            let name = match after {
                Some(Banned::Client(name) | Banned::User(name)) if passed == own => Some(name),
                _ => None,
            };
            range(list, (passed <= own).then_some(name))
        };
        let address = match after {
            Some(Banned::Address(address)) => Some(address),
            _ => None,
        };
        let network = match after {
            Some(Banned::Network(network)) => Some(network),
            _ => None,
        };
        let clients = names(&self.clients, 0).map(|(name, end)| (Banned::Client(name), end));
        let users = names(&self.users, 1).map(|(name, end)| (Banned::User(name), end));
        let addresses = range(&self.addresses, (passed <= 2).then_some(address));
        let addresses = addresses.map(|(address, end)| (Banned::Address(address), end));
        let networks = range(&self.networks, Some(network));
        let networks = networks.map(|(network, end)| (Banned::Network(network), end));
        clients.chain(users).chain(addresses).chain(networks)
    }

    pub fn all(&self) -> impl Iterator<Item = (Banned, u64)> {
        self.behind(None)
    }

    pub fn len(&self) -> usize {
        self.clients.len() + self.users.len() + self.addresses.len() + self.networks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What bans somebody at a time.
    pub fn means(&self, visitor: Visitor<'_>, now_secs: u64) -> Option<BanKind> {
        if self.is_empty() {
            return None;
        }
        let holds = |until: &u64| *until > now_secs;
        let named = |list: &BTreeMap<Named, u64>, name: Option<&str>| {
            let mut bans = name.into_iter().flat_map(|name| of_name(list, name));
            bans.any(|(named, until)| holds(until) && named.within.has(visitor.namespace))
        };
        let address = visitor.address.map(|address| address.to_canonical());
        let is_at = |address: IpAddr| {
            let mut networks = self.networks.iter();
            self.addresses.get(&address).is_some_and(holds)
                || networks.any(|(network, until)| holds(until) && network.contains(address))
        };
        if named(&self.clients, visitor.client_id) {
            Some(BanKind::Client)
        } else if named(&self.users, visitor.username) {
            Some(BanKind::User)
        } else if address.is_some_and(is_at) {
            Some(BanKind::Address)
        } else {
            None
        }
    }
}

impl Within {
    /// Does it hold in a namespace? None: it is not known yet.
    fn has(&self, namespace: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::One(name) => namespace == Some(&**name),
        }
    }
}

/// The bans of a name.
fn of_name<'a>(
    list: &'a BTreeMap<Named, u64>,
    name: &'a str,
) -> impl Iterator<Item = (&'a Named, &'a u64)> {
    let first = Named { name: name.into(), within: Within::All };
    list.range(first..).take_while(move |(named, _)| *named.name == *name)
}

/// Who a line means, and until when.
fn ban_of(line: &str) -> Result<(Banned, u64), String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (kind, namespace) = match word.split_once('@') {
        Some((kind, namespace)) => (kind, Some(namespace)),
        None => (word, None),
    };
    let (banned, until) = anywhere(kind, rest.trim())?;
    let banned = namespace.map_or(Ok(banned.clone()), |name| banned.in_namespace(name))?;
    Ok((banned, until))
}

/// The same of a line without its namespace.
fn anywhere(kind: &str, rest: &str) -> Result<(Banned, u64), String> {
    if let Some((who, behind)) = quoted(rest)? {
        let until = match behind.trim() {
            "" => FOR_EVER,
            behind => match behind.strip_prefix("until ") {
                Some(time) => end_of(time)?,
                None => {
                    return Err(format!(
                        "must be an end such as `until 2026-12-31T23:59:59Z`, \
                got '{behind}'"
                    ));
                }
            },
        };
        return Ok((Banned::parse(kind, &who)?, until));
    }
    let (who, until) = match rest.rsplit_once(" until ") {
        Some((who, time)) => (who.trim(), end_of(time)?),
        None => (rest, FOR_EVER),
    };
    Ok((Banned::parse(kind, who)?, until))
}

fn end_of(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let wanted = || format!("must be a time such as 2026-12-31T23:59:59Z, got '{text}'");
    moment::secs_of(text).ok_or_else(wanted)
}

/// A name between quotation marks, as JSON has them, and what is behind it.
fn quoted(text: &str) -> Result<Option<(String, &str)>, String> {
    if !text.starts_with('"') {
        return Ok(None);
    }
    let mut names = serde_json::Deserializer::from_str(text).into_iter::<String>();
    match names.next() {
        Some(Ok(name)) => Ok(Some((name, &text[names.byte_offset()..]))),
        _ => Err(format!("a name in quotation marks must be a JSON string, got {text}")),
    }
}

/// A name as a line has it: plain where that is understood.
fn written(name: &str) -> String {
    let is_plain = !name.starts_with('"')
        && !name.contains(" until ")
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

/// What lies behind a key; all, if there is no key; nothing, if the map is behind already.
fn range<'a, K, Q>(
    map: &'a BTreeMap<K, u64>,
    after: Option<Option<&Q>>,
) -> impl Iterator<Item = (K, u64)> + 'a
where
    K: Ord + Clone + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    let some = after.map(|after| {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        map.range::<Q, _>((begin, Bound::Unbounded))
    });
    some.into_iter().flatten().map(|(key, until)| (key.clone(), *until))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by(list: &BanList, client_id: &str, username: &str, address: &str) -> Option<BanKind> {
        let visitor = Visitor {
            namespace: Some("default"),
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
        assert_eq!(by(&list, "c 1", "", ""), Some(BanKind::Client));
        assert_eq!(by(&list, "old", "eve", ""), Some(BanKind::User));
        assert_eq!(by(&list, "old", "anna", "192.0.2.8"), None);
        for address in ["192.0.2.7", "::ffff:192.0.2.7", "10.1.2.3", "2001:db8::1"] {
            assert_eq!(by(&list, "", "", address), Some(BanKind::Address), "{address}");
        }
    }

    #[test]
    fn a_line_that_is_not_understood_is_reported() {
        for (text, line, what) in [
            ("client", 1, "needs a name or address"),
            ("\naddress x", 2, "x"),
            ("clients a", 1, "'clients'"),
            ("user a until tomorrow", 1, "'tomorrow'"),
            ("user a until 2026-13-01T00:00:00Z", 1, "2026-13"),
            ("address 10.0.0.0/33", 1, "10.0.0.0/33"),
            ("client@ a", 1, "name of a namespace"),
            ("client@a/b c", 1, "'a/b'"),
            ("address@red 10.0.0.1", 1, "in all namespaces"),
            ("clients@red c", 1, "'clients'"),
        ] {
            let (at, why) = BanList::parse(text).unwrap_err();
            assert!(at == line && why.contains(what), "{text}: {at} {why}");
        }
    }

    #[test]
    fn a_ban_holds_in_its_namespace_or_in_all() {
        let text = "client everywhere\nclient@red c\nclient@blue c until 1000\nuser@red eve\n";
        let list = BanList::parse(text).unwrap();
        let means = |namespace: Option<&str>, client_id: &str, username: &str| {
            let (client_id, username) = (Some(client_id), Some(username));
            list.means(Visitor { namespace, client_id, username, address: None }, 1_000)
        };
        for namespace in [None, Some("default"), Some("red")] {
            assert_eq!(means(namespace, "everywhere", ""), Some(BanKind::Client));
        }
        assert_eq!(means(Some("red"), "c", ""), Some(BanKind::Client));
        assert_eq!(means(Some("red"), "d", "eve"), Some(BanKind::User));
        for (namespace, client_id) in [(None, "c"), (Some("default"), "c"), (Some("blue"), "c")] {
            assert_eq!(means(namespace, client_id, "eve"), None, "{namespace:?}");
        }
        let mut list = BanList::parse("client@red c\nclient c\nclient@blue c\nclient cc").unwrap();
        let c = Banned::parse("client", "c").unwrap();
        let places: Vec<_> =
            list.same_name(&c).iter().map(|it| it.namespace().map(str::to_owned)).collect();
        assert_eq!(places, [None, Some("blue".into()), Some("red".into())]);
        assert!(list.remove(&c) && !list.remove(&c));
        assert_eq!(list.to_text(), "client@blue c\nclient@red c\nclient cc\n");
    }

    #[test]
    fn a_ban_that_is_given_again_has_the_new_end() {
        let list =
            BanList::parse("client c until 1\nclient c\naddress 10.1.2.3/8\naddress 10.0.0.0/8")
                .unwrap();
        assert_eq!(list.to_text(), "client c\naddress 10.0.0.0/8\n");
    }

    #[test]
    fn a_full_list_takes_no_more_and_changes_what_it_has() {
        let network = |number: usize| {
            let text = format!("10.{}.{}.0/24", number / 256, number % 256);
            Banned::parse("address", &text).unwrap()
        };
        let mut list = BanList::default();
        for number in 0..NETWORKS_MAX {
            list.add(network(number), 5).unwrap();
        }
        assert_eq!(list.add(network(NETWORKS_MAX), 5), Err(FULL));
        assert_eq!(list.add(network(7), FOR_EVER), Ok(()));
        assert_eq!(list.add(Banned::parse("client", "c").unwrap(), 5), Ok(()));
        list.prune(5);
        assert_eq!(list.to_text(), "address 10.0.7.0/24\n");
    }

    proptest! {
        #[test]
        fn lists_are_read_as_they_were_written(
            names in proptest::collection::vec((any::<String>(), 0_u64..253_402_300_799), 0..8),
            odd in "[ \"a-c\\\\\n#]{1,6}( until [0-9])?",
            bits in 0_u8..=32,
        ) {
            let mut list = BanList::default();
            for (name, until) in names.iter().map(|(name, until)| (name.as_str(), *until))
                .chain([(odd.as_str(), FOR_EVER)]).filter(|(name, _)| !name.is_empty())
            {
                let client = Banned::parse("client", name).unwrap();
                let user = Banned::parse("user", name).unwrap();
                list.add(client.clone().in_namespace("red").unwrap(), 9).unwrap();
                list.add(client, until).unwrap();
                list.add(user.in_namespace("b.c-d_e").unwrap(), FOR_EVER).unwrap();
            }
            list.add(Banned::parse("address", &format!("10.0.0.0/{bits}")).unwrap(), 7).unwrap();
            list.add(Banned::parse("address", "::1").unwrap(), FOR_EVER).unwrap();
            prop_assert_eq!(BanList::parse(&list.to_text()), Ok(list.clone()));
            // In pages of two nothing is listed twice or left out.
            let all: Vec<_> = list.all().collect();
            let mut paged: Vec<(Banned, u64)> = Vec::new();
            loop {
                let page: Vec<_> =
                    list.behind(paged.last().map(|(banned, _)| banned)).take(2).collect();
                if page.is_empty() {
                    break;
                }
                paged.extend(page);
            }
            prop_assert_eq!(paged, all);
        }
    }
}
