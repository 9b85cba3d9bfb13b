//! The other members of the cluster: which connection is that of a node and lane, when the next
//! attempt is due, and which session numbers hold. It has no sockets and no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use mio::Token;

use crate::hello::{Hello, HelloError};

/// The first attempt after a failure comes within this time. It doubles with each further one.
pub const RETRY_MS_MIN: u64 = 100;

/// The longest time between two attempts.
pub const RETRY_MS_MAX: u64 = 3000;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its certificate is issued for this name.
    pub name: String,
    /// Where it listens for links: `HOST:PORT`. A host name is resolved before each attempt.
    pub address: String,
}

/// One of the connections that two nodes have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkName {
    pub(crate) node: Arc<str>,
    pub(crate) lane: u8,
}

pub(crate) struct Peers {
    own: String,
    lanes: u8,
    link_ms: u64,
    ends: BTreeMap<LinkName, End>,
}

/// This node's end of a link, with or without a connection.
struct End {
    address: Arc<str>,
    /// None before the first connection.
    session: Option<u64>,
    /// Since when the session has no connection, counted from the last byte of the peer.
    silent_since_ms: Option<u64>,
    connection: Option<Token>,
    /// Consecutive attempts without success.
    failures: u32,
    dial: Dial,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dial {
    /// The peer connects, or there is a connection.
    None,
    DueAt(u64),
    UnderWay,
}

/// An attempt that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) link: LinkName,
    pub(crate) address: Arc<str>,
    /// Which of the addresses of the host to use, counted around.
    pub(crate) index: u32,
}

impl Peers {
    pub(crate) fn new(own: String, lanes: u8, link_ms: u64) -> Self {
        Self { own, lanes, link_ms, ends: BTreeMap::new() }
    }

    /// A member that is known gets the address. The own name is ignored.
    pub(crate) fn add(&mut self, member: &Member, now_ms: u64) {
        if member.name == self.own {
            return;
        }
        let (node, address): (Arc<str>, Arc<str>) =
            (member.name.as_str().into(), member.address.as_str().into());
        for lane in 0..self.lanes {
            let link = LinkName { node: Arc::clone(&node), lane };
            let dial = if *self.own < *node { Dial::DueAt(now_ms) } else { Dial::None };
            let end = self.ends.entry(link).or_insert_with(|| End {
                address: Arc::clone(&address),
                session: None,
                silent_since_ms: None,
                connection: None,
                failures: 0,
                dial,
            });
            end.address = Arc::clone(&address);
        }
    }

    pub(crate) fn remove(&mut self, node: &str) {
        self.ends.retain(|link, _| *link.node != *node);
    }

    /// May this node connect, and as which link?
    pub(crate) fn admit(&self, hello: &Hello) -> Result<LinkName, HelloError> {
        let (name, lane, lanes) = (hello.name.clone(), hello.lane, self.lanes);
        if *name >= *self.own {
            return Err(HelloError::Direction { name });
        }
        if lane >= lanes {
            return Err(HelloError::NoLane { name, lane, lanes });
        }
        let link = LinkName { node: name.as_str().into(), lane };
        match self.has(&link) {
            true => Ok(link),
            false => Err(HelloError::NoMember { name }),
        }
    }

    pub(crate) fn has(&self, link: &LinkName) -> bool {
        self.ends.contains_key(link)
    }

    /// The session number for a connection that begins now: `random`, unless the earlier one holds.
    pub(crate) fn session(&mut self, link: &LinkName, now_ms: u64, random: u64) -> u64 {
        let Some(end) = self.ends.get_mut(link) else { return random };
        let is_over = end
            .silent_since_ms
            .is_some_and(|since_ms| now_ms >= since_ms.saturating_add(self.link_ms));
        if is_over {
            (end.session, end.silent_since_ms) = (None, None);
        }
        *end.session.get_or_insert(random)
    }

    /// The link has this connection from now on. Returns the one that it had.
    ///
    /// # Errors
    ///
    /// The member was removed during the handshake.
    pub(crate) fn on_connected(
        &mut self,
        link: &LinkName,
        connection: Token,
    ) -> Result<Option<Token>, HelloError> {
        let Some(end) = self.ends.get_mut(link) else {
            return Err(HelloError::NoMember { name: link.node.as_ref().to_owned() });
        };
        (end.failures, end.dial, end.silent_since_ms) = (0, Dial::None, None);
        Ok(end.connection.replace(connection))
    }

    /// The link has lost this connection, on which the peer was last heard at `heard_ms`. False: it
    /// has a newer one, or its member was removed.
    pub(crate) fn on_lost(
        &mut self,
        link: &LinkName,
        connection: Token,
        (heard_ms, now_ms): (u64, u64),
        random: u64,
    ) -> bool {
        let Some(end) = self.ends.get_mut(link) else { return false };
        if end.connection != Some(connection) {
            return false;
        }
        end.connection = None;
        end.silent_since_ms = Some(heard_ms);
        if *self.own < *link.node {
            end.dial = Dial::DueAt(now_ms + retry_ms(end.failures, random));
        }
        true
    }

    /// An attempt of this node has failed.
    pub(crate) fn on_failed(&mut self, link: &LinkName, now_ms: u64, random: u64) {
        let Some(end) = self.ends.get_mut(link).filter(|end| end.dial == Dial::UnderWay) else {
            return;
        };
        end.dial = Dial::DueAt(now_ms + retry_ms(end.failures, random));
        end.failures = end.failures.saturating_add(1);
    }

    /// An attempt that is due. It is under way from now on.
    pub(crate) fn next_attempt(&mut self, now_ms: u64) -> Option<Attempt> {
        let is_due = |end: &End| matches!(end.dial, Dial::DueAt(at_ms) if at_ms <= now_ms);
        let (link, end) = self.ends.iter_mut().find(|(_, end)| is_due(end))?;
        end.dial = Dial::UnderWay;
        let (link, address) = (link.clone(), Arc::clone(&end.address));
        Some(Attempt { link, address, index: end.failures })
    }

    /// When the next attempt is due.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        let due = self.ends.values().filter_map(|end| match end.dial {
            Dial::DueAt(at_ms) => Some(at_ms),
            _ => None,
        });
        due.min()
    }
}

/// Between half and all of a time that doubles with each failure, so that nodes which lost each
/// other at once do not connect at once.
fn retry_ms(failures: u32, random: u64) -> u64 {
    let longest = RETRY_MS_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MS_MAX);
    longest / 2 + random % (longest / 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_MS: u64 = 2000;

    fn member(name: &str) -> Member {
        Member { name: name.to_owned(), address: format!("{name}:7000") }
    }

    fn peers() -> Peers {
        let mut peers = Peers::new("n2".to_owned(), 2, LINK_MS);
        ["n1", "n2", "n3"].iter().for_each(|name| peers.add(&member(name), 0));
        peers
    }

    fn link(node: &str, lane: u8) -> LinkName {
        LinkName { node: node.into(), lane }
    }

    fn hello(name: &str, lane: u8) -> Hello {
        Hello { versions: 1..=1, cluster: [0; 16], lane, session: 1, name: name.to_owned() }
    }

    fn attempts(peers: &mut Peers, now_ms: u64) -> Vec<LinkName> {
        std::iter::from_fn(|| peers.next_attempt(now_ms)).map(|attempt| attempt.link).collect()
    }

    #[test]
    fn the_node_with_the_smaller_name_connects() {
        let mut peers = peers();
        assert_eq!(attempts(&mut peers, 0), [link("n3", 0), link("n3", 1)]);
        assert_eq!((attempts(&mut peers, u64::MAX), peers.next_ms()), (vec![], None));
        assert_eq!(peers.admit(&hello("n1", 1)), Ok(link("n1", 1)));
        for name in ["n2", "n3"] {
            let refused = HelloError::Direction { name: name.to_owned() };
            assert_eq!(peers.admit(&hello(name, 0)), Err(refused));
        }
        let name = || "n1".to_owned();
        let refused = HelloError::NoLane { name: name(), lane: 2, lanes: 2 };
        assert_eq!(peers.admit(&hello("n1", 2)), Err(refused));
        peers.remove("n1");
        let refused = HelloError::NoMember { name: name() };
        assert_eq!(peers.admit(&hello("n1", 0)), Err(refused.clone()));
        assert_eq!(peers.on_connected(&link("n1", 0), Token(9)), Err(refused));
    }

    #[test]
    fn attempts_come_later_with_each_failure_and_use_the_next_address() {
        let mut peers = peers();
        peers.next_attempt(0).expect("due");
        let (mut now_ms, mut waited) = (0, Vec::new());
        for failures in 1..9 {
            peers.on_failed(&link("n3", 0), now_ms, u64::MAX / 2);
            let at_ms = peers.ends[&link("n3", 0)].dial;
            let Dial::DueAt(at_ms) = at_ms else { panic!("{at_ms:?}") };
            waited.push(at_ms - now_ms);
            now_ms = at_ms;
            let found = std::iter::from_fn(|| peers.next_attempt(now_ms));
            let index = found.filter(|found| found.link.lane == 0).map(|found| found.index);
            assert_eq!(index.last(), Some(failures));
        }
        assert!(waited.windows(2).all(|two| two[0] <= two[1]), "{waited:?}");
        assert!(waited[0] >= RETRY_MS_MIN / 2 && waited[7] <= RETRY_MS_MAX);
        assert_eq!((retry_ms(99, 0), retry_ms(0, 50)), (RETRY_MS_MAX / 2, RETRY_MS_MIN));
        peers.on_connected(&link("n3", 0), Token(9)).expect("a member");
        peers.on_lost(&link("n3", 0), Token(9), (now_ms, now_ms), 0);
        assert_eq!(peers.next_ms(), Some(now_ms + RETRY_MS_MIN / 2), "it has worked");
    }

    #[test]
    fn a_session_holds_over_a_short_loss_and_not_over_a_long_one() {
        let mut peers = peers();
        let link = link("n3", 0);
        assert_eq!(peers.session(&link, 0, 77), 77);
        assert_eq!(peers.session(&link, 9000, 78), 77, "it was not connected");
        assert_eq!(peers.on_connected(&link, Token(4)), Ok(None));
        peers.on_lost(&link, Token(4), (10_000, 10_500), 0);
        assert_eq!(peers.session(&link, 10_000 + LINK_MS - 1, 79), 77);
        assert_eq!(peers.on_connected(&link, Token(5)), Ok(None));
        assert_eq!(peers.session(&link, 99_999, 79), 77, "it has a connection");
        peers.on_lost(&link, Token(5), (100_000, 101_000), 0);
        assert_eq!(peers.session(&link, 100_000 + LINK_MS, 80), 80);
    }

    #[test]
    fn a_newer_connection_replaces_the_older_and_its_end_counts_for_nothing() {
        let mut peers = peers();
        let link = link("n1", 0);
        assert_eq!(peers.on_connected(&link, Token(4)), Ok(None));
        assert_eq!(peers.on_connected(&link, Token(5)), Ok(Some(Token(4))));
        peers.on_lost(&link, Token(4), (0, 0), 0);
        assert_eq!(peers.ends[&link].connection, Some(Token(5)));
    }

    #[test]
    fn a_member_gets_a_new_address_and_keeps_its_link() {
        let mut peers = peers();
        peers.on_connected(&link("n3", 1), Token(4)).expect("a member");
        let moved = Member { address: "elsewhere:1".to_owned(), ..member("n3") };
        peers.add(&moved, 9);
        let attempt = peers.next_attempt(9).expect("due");
        assert_eq!((attempt.link, &*attempt.address), (link("n3", 0), "elsewhere:1"));
        assert_eq!(peers.next_attempt(9), None);
    }
}
