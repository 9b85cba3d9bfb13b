//! Who gets a topic. The subscriptions stand in one shared list; each worker keeps the routes that
//! it has asked for, until a subscription is made or lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::worker::Connection;

/// All subscriptions of a run.
#[derive(Default)]
pub(crate) struct Routes {
    subscriptions: Mutex<Vec<Subscription>>,
    /// Counts the changes.
    version: AtomicUsize,
}

struct Subscription {
    /// A topic, or everything that starts so.
    filter: Vec<u8>,
    is_prefix: bool,
    /// Of a shared one: its `$share/...` as subscribed.
    group: Option<Vec<u8>>,
    connection: Arc<Connection>,
}

impl Routes {
    pub(crate) fn subscribe(&self, filter: &[u8], connection: &Arc<Connection>) {
        let mut group = None;
        let mut bare = filter;
        if let Some(rest) = filter.strip_prefix(b"$share/") {
            group = Some(filter.to_vec());
            let name_len = rest.iter().position(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
            bare = &rest[name_len..];
        }
        let prefix = bare.strip_suffix(b"#");
        let subscription = Subscription {
            filter: prefix.unwrap_or(bare).to_vec(),
            is_prefix: prefix.is_some(),
            group,
            connection: Arc::clone(connection),
        };
        self.lock().push(subscription);
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn forget(&self, connection: &Arc<Connection>) {
        let mut subscriptions = self.lock();
        let before = subscriptions.len();
        subscriptions.retain(|known| !Arc::ptr_eq(&known.connection, connection));
        if subscriptions.len() < before {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    fn route(&self, topic: &[u8]) -> Route {
        let mut route = Route::default();
        let mut groups: Vec<(&[u8], Group)> = Vec::new();
        let subscriptions = self.lock();
        for subscription in subscriptions.iter().filter(|known| known.matches(topic)) {
            let connection = Arc::clone(&subscription.connection);
            let Some(name) = &subscription.group else {
                route.everyone.push(connection);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| known == name) {
                Some((_, group)) => group.members.push(connection),
                None => groups.push((name, Group { members: vec![connection], next: 0 })),
            }
        }
        route.groups = groups.into_iter().map(|(_, group)| group).collect();
        route
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscription>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    fn matches(&self, topic: &[u8]) -> bool {
        if self.is_prefix { topic.starts_with(&self.filter) } else { topic == self.filter }
    }
}

/// Where messages on one topic go.
#[derive(Default)]
struct Route {
    everyone: Vec<Arc<Connection>>,
    groups: Vec<Group>,
}

struct Group {
    members: Vec<Arc<Connection>>,
    next: usize,
}

/// The routes that one worker has asked for.
pub(crate) struct RouteCache {
    routes: Arc<Routes>,
    version: usize,
    known: HashMap<Vec<u8>, Route>,
}

impl RouteCache {
    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        Self { routes, version: 0, known: HashMap::new() }
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Calls `send` with each receiver of a message: every subscriber, and of each group the next.
    pub(crate) fn for_each(&mut self, topic: &[u8], mut send: impl FnMut(&Arc<Connection>)) {
        let version = self.routes.version.load(Ordering::Acquire);
        if version != self.version {
            self.known.clear();
            self.version = version;
        }
        if !self.known.contains_key(topic) {
            self.known.insert(topic.to_vec(), self.routes.route(topic));
        }
        let Some(route) = self.known.get_mut(topic) else { return };
        route.everyone.iter().for_each(&mut send);
        for group in &mut route.groups {
            group.next = (group.next + 1) % group.members.len();
            send(&group.members[group.next]);
        }
    }
}
