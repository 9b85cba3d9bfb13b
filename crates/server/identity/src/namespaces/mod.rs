//! The namespaces of a running broker: what they are called, which number each is known by inside
//! and in the logs, and who belongs to which.
//!
//! A number is given once. With a data directory it stands in a file there before anything is
//! written under it, so that the logs mean the same after a restart (`names`).

mod maker;
mod names;
mod placing;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use broker::{Quota, Scope, Shared, Space};

use config::{Namespace, NamespaceState, namespaces::DEFAULT};
use data::Stamps;

pub use maker::Maker as NameMaker;
use names::{Entry, Maker, Names};
pub use placing::{Belonging, Misplaced, NOT_MADE, Placement};

/// The most namespaces that clients may make by asking for them.
const MADE_BY_CLIENTS_MAX: usize = 10_000;

/// All of them. Acceptors look up each client, so a look-up is short.
#[derive(Debug)]
pub struct Namespaces {
    table: RwLock<Table>,
    /// Held by who changes it, so that whoever looks meanwhile waits for no disk.
    changes: Mutex<()>,
    /// What the configuration says is not in force: the disk is full since the start.
    is_unsettled: AtomicBool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Table {
    names: Names,
    by_name: BTreeMap<Box<str>, Scope>,
    /// By the host names that lead there.
    hosts: BTreeMap<String, Scope>,
    /// Of deleted ones, found at the start.
    remains: BTreeSet<Scope>,
    /// The names that were written down when the logs were last written.
    kept: Names,
}

/// One as others see it.
#[derive(Clone, Debug)]
pub struct View {
    pub name: Box<str>,
    pub scope: Scope,
    pub state: NamespaceState,
    /// Who wanted it.
    pub maker: &'static str,
    pub space: Arc<Space>,
}

impl Namespaces {
    /// Those of a data directory, and those of the configuration.
    ///
    /// # Errors
    ///
    /// When the file of names cannot be read or written.
    pub fn open(
        directory: Option<&Path>,
        stamps: &Stamps,
        shared: &Arc<Shared>,
        configured: &[Namespace],
    ) -> anyhow::Result<Self> {
        let names = Names::open(directory, stamps)?;
        let kept = names.clone();
        let by_name = names.iter().map(|entry| (entry.name.clone(), entry.scope)).collect();
        for entry in names.iter() {
            set_state(&open_space(shared, entry), entry.state());
        }
        let table =
            Table { names, by_name, hosts: BTreeMap::new(), remains: BTreeSet::new(), kept };
        let namespaces = Self {
            table: RwLock::new(table),
            changes: Mutex::default(),
            is_unsettled: AtomicBool::default(),
            shared: shared.clone(),
        };
        let names = namespaces.with(configured)?;
        namespaces.put_in_force(names, configured, |_| {});
        Ok(namespaces)
    }

    /// Takes what the configuration says now. Namespaces that it had and has no more are closed;
    /// what they have stays. `notify` hands all of them, as they will be, to who has to know before
    /// any client can come to one; it may not ask for namespaces.
    ///
    /// # Errors
    ///
    /// When the file of names cannot be written. Then nothing has changed, and `notify` is not
    /// called.
    pub fn configure(
        &self,
        configured: &[Namespace],
        notify: impl FnOnce(&[View]),
    ) -> anyhow::Result<()> {
        let _changing = self.change();
        let names = self.with(configured)?;
        self.write_down(&names)?;
        self.put_in_force(names, configured, notify);
        self.is_unsettled.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The names, with those of the configuration.
    fn with(&self, configured: &[Namespace]) -> anyhow::Result<Names> {
        let mut names = self.read().names.clone();
        let listed: BTreeSet<&str> = configured.iter().map(|own| &*own.name).collect();
        for entry in names.iter_mut() {
            let is_gone = entry.maker == Maker::Configuration && !listed.contains(&*entry.name);
            if is_gone && entry.state == NamespaceState::Open {
                entry.state = NamespaceState::Suspended;
            }
        }
        for own in configured {
            let is_known = names.iter().any(|entry| *entry.name == *own.name);
            // There is nothing to delete of one that has never been, or is gone.
            if is_known || own.state != NamespaceState::Deleted {
                names.put(&own.name, Maker::Configuration, own.state)?;
            }
        }
        Ok(names)
    }

    fn put_in_force(&self, names: Names, configured: &[Namespace], notify: impl FnOnce(&[View])) {
        let mut table = self.write();
        table.take(names);
        notify(&self.views(&table));
        table.hosts.clear();
        for own in configured {
            if let Some(scope) = table.by_name.get(&*own.name).copied() {
                table.hosts.extend(own.hosts.iter().map(|host| (host.clone(), scope)));
            }
        }
        for entry in table.names.iter() {
            let space = open_space(&self.shared, entry);
            set_state(&space, entry.state());
            let own = configured.iter().find(|own| *own.name == *entry.name);
            let limits = own.map_or(&[][..], |own| &own.limits);
            for quota in Quota::ALL {
                let set = limits.iter().find(|(limited, _)| *limited == quota);
                space.set_limit(quota, set.map(|(_, max)| *max));
            }
        }
    }

    /// Suspends a namespace, or ends that, whatever the configuration says of it. The caller
    /// disconnects its clients. None: there is no such namespace, or it is the default one.
    ///
    /// # Errors
    ///
    /// When the file of names cannot be written. Then nothing has changed.
    pub fn hold(&self, name: &str, is_held: bool) -> anyhow::Result<Option<View>> {
        let _changing = self.change();
        let mut names = self.read().names.clone();
        let Some(entry) = names.iter_mut().find(|entry| *entry.name == *name) else {
            return Ok(None);
        };
        entry.is_held = is_held;
        let (scope, state) = (entry.scope, entry.state());
        self.write_down(&names)?;
        let mut table = self.write();
        table.take(names);
        set_state(&self.shared.spaces.open(scope), state);
        Ok(table.names.get(scope).map(|entry| self.view(entry)))
    }

    /// Whether clients may be in it. A name that does not exist has none.
    pub fn is_open(&self, name: &str) -> bool {
        name == DEFAULT || self.get(name).is_some_and(|own| own.state == NamespaceState::Open)
    }

    /// The number behind a name.
    pub fn scope_of(&self, name: &str) -> Option<Scope> {
        match name {
            DEFAULT => Some(Scope::FIRST),
            name => self.read().by_name.get(name).copied(),
        }
    }

    pub fn name_of(&self, scope: Scope) -> Box<str> {
        match scope {
            Scope::FIRST => DEFAULT.into(),
            scope => {
                let table = self.read();
                table.names.get(scope).map_or_else(|| "?".into(), |entry| entry.name.clone())
            }
        }
    }

    /// All but the default one, by their numbers.
    pub fn all(&self) -> Vec<View> {
        self.views(&self.read())
    }

    /// The first so many behind a name, by their names; but the default one.
    pub fn behind(&self, name: Option<&str>, count: usize) -> Vec<View> {
        let table = self.read();
        let first = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = table.by_name.range::<str, _>((first, Bound::Unbounded));
        let entries = names.filter_map(|(_, scope)| table.names.get(*scope));
        entries.take(count).map(|entry| self.view(entry)).collect()
    }

    /// The one of this name, if it is not the default one.
    pub fn get(&self, name: &str) -> Option<View> {
        let table = self.read();
        let entry = table.names.get(*table.by_name.get(name)?)?;
        Some(self.view(entry))
    }

    /// The host names that lead to these, each with where it leads.
    pub fn hosts_of(&self, scopes: &BTreeSet<Scope>) -> Vec<(Scope, String)> {
        let table = self.read();
        let own = table.hosts.iter().filter(|(_, scope)| scopes.contains(scope));
        own.map(|(host, scope)| (*scope, host.clone())).collect()
    }

    fn views(&self, table: &Table) -> Vec<View> {
        table.names.iter().map(|entry| self.view(entry)).collect()
    }

    fn view(&self, entry: &Entry) -> View {
        View {
            name: entry.name.clone(),
            scope: entry.scope,
            state: entry.state(),
            maker: entry.maker.as_str(),
            space: self.shared.spaces.open(entry.scope),
        }
    }

    /// Those of which nothing is to stay.
    pub fn deleted(&self) -> Vec<Scope> {
        let table = self.read();
        let deleted = table.names.iter().filter(|entry| entry.state == NamespaceState::Deleted);
        deleted.map(|entry| entry.scope).chain(table.remains.iter().copied()).collect()
    }

    /// Nothing is left of one that was to be deleted: its name is free, its number is not.
    ///
    /// # Errors
    ///
    /// When the file of names cannot be written.
    pub fn forget(&self, scope: Scope) -> anyhow::Result<()> {
        let _changing = self.change();
        let mut names = self.read().names.clone();
        names.remove(scope);
        self.write_down(&names)?;
        let mut table = self.write();
        table.take(names);
        table.hosts.retain(|_, own| *own != scope);
        table.remains.remove(&scope);
        self.shared.close_space(scope);
        Ok(())
    }

    /// The logs have been read, and speak of these: only now new names may have numbers. Writes
    /// them down. On a full disk they get none: what the configuration says of namespaces waits for
    /// [`Namespaces::configure`].
    ///
    /// # Errors
    ///
    /// The logs speak of a namespace that never got a number here: the files of names are not those
    /// of these logs. Or they cannot be written.
    pub fn settle(&self, used: &BTreeSet<Scope>) -> anyhow::Result<()> {
        if let Some(scope) = self.lacks_name(used) {
            anyhow::bail!(
                "the logs have data of namespace number {}, which the file `namespaces` does not name; restore all files of a backup",
                scope.number()
            );
        }
        let _changing = self.change();
        let (names, kept) = (self.read().names.clone(), self.read().kept.clone());
        if names == kept {
            return Ok(());
        }
        match names.write() {
            Ok(()) => self.write().kept = names,
            Err(error) if data::lacks_space(error.as_ref()) => self.take_back(names, kept.last()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A number that is not on the disk may be given to another name by the next start.
    fn take_back(&self, mut names: Names, last: Scope) {
        for entry in names.iter().filter(|entry| entry.scope > last) {
            self.shared.spaces.close(entry.scope);
        }
        names.remove_above(last);
        let mut table = self.write();
        table.hosts.retain(|_, scope| *scope <= last);
        table.take(names);
        self.is_unsettled.store(true, Ordering::Relaxed);
    }

    /// What the configuration says waits for space on the disk.
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    /// Whether the names could be written now.
    ///
    /// # Errors
    ///
    /// They cannot.
    pub fn try_space(&self) -> anyhow::Result<()> {
        let _changing = self.change();
        let names = self.read().names.clone();
        names.write()
    }

    /// Of those that were deleted something may be back after a crash: it is deleted again.
    fn lacks_name(&self, used: &BTreeSet<Scope>) -> Option<Scope> {
        let _changing = self.change();
        let mut table = self.write();
        let last = table.kept.last();
        let kept = table.names.iter().map(|entry| entry.scope).filter(|scope| *scope <= last);
        let known: BTreeSet<Scope> = kept.chain([Scope::FIRST]).collect();
        table.remains = used.difference(&known).copied().collect();
        table.remains.iter().copied().find(|scope| *scope > last)
    }

    /// The thread that makes the namespaces that clients ask for.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn start_maker(self: &Arc<Self>) -> std::io::Result<NameMaker> {
        let namespaces = self.clone();
        NameMaker::start(Box::new(move |names| namespaces.make_for_clients(names)))
    }

    /// Makes those that there are not yet, with one write, and says of each whether it is there.
    fn make_for_clients(&self, wanted: &[Box<str>]) -> Vec<bool> {
        let _changing = self.change();
        let mut names = self.read().names.clone();
        let mut count = names.iter().filter(|entry| entry.maker == Maker::Client).count();
        let mut faults = Vec::new();
        for name in wanted.iter().filter(|name| self.scope_of(name).is_none()) {
            if count >= MADE_BY_CLIENTS_MAX {
                faults
                    .push(anyhow::anyhow!("clients have created {count} namespaces, the maximum"));
            } else if let Err(error) = names.put(name, Maker::Client, NamespaceState::Open) {
                faults.push(error);
            } else {
                count += 1;
            }
        }
        match self.write_down(&names) {
            Ok(()) => self.open_for_clients(names),
            Err(error) => faults.push(error),
        }
        if let Some(first) = faults.first() {
            let error = format!("{first:#}");
            tracing::warn!(count = faults.len(), error, "cannot create namespaces for clients");
        }
        wanted.iter().map(|name| self.scope_of(name).is_some()).collect()
    }

    fn open_for_clients(&self, names: Names) {
        let last = self.read().names.last();
        for entry in names.iter().filter(|entry| entry.scope > last) {
            self.shared.spaces.open(entry.scope).set_name(&entry.name);
            let number = entry.scope.number();
            tracing::info!(namespace = &*entry.name, number, "namespace created for a client");
        }
        self.write().take(names);
    }

    /// New names are on disk before anybody goes by them.
    fn write_down(&self, names: &Names) -> anyhow::Result<()> {
        match *names == self.read().names && !self.is_unsettled() {
            true => Ok(()),
            false => names.write(),
        }
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        // Each change is whole, whoever panicked behind it.
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What of a configuration can be in force at a start. A namespace that is to be deleted and was
/// not yet is suspended, until it is known that nothing waits to be sent from it.
///
/// # Errors
///
/// When the file of names cannot be read.
pub fn without_new_deletions(
    directory: Option<&Path>,
    stamps: &Stamps,
    configured: &[Namespace],
) -> anyhow::Result<Vec<Namespace>> {
    let names = Names::open(directory, stamps)?;
    let mut configured = configured.to_vec();
    for own in configured.iter_mut().filter(|own| own.state == NamespaceState::Deleted) {
        let known = names.iter().find(|entry| *entry.name == *own.name);
        if known.is_some_and(|entry| entry.state != NamespaceState::Deleted) {
            own.state = NamespaceState::Suspended;
        }
    }
    Ok(configured)
}

impl Table {
    /// From now on these are the names.
    fn take(&mut self, names: Names) {
        self.names = names;
        let entries = self.names.iter();
        self.by_name = entries.map(|entry| (entry.name.clone(), entry.scope)).collect();
    }
}

fn open_space(shared: &Shared, entry: &Entry) -> Arc<Space> {
    // Clients make as many as they like: those have no reserve.
    let space = match entry.maker {
        Maker::Client => shared.spaces.open(entry.scope),
        Maker::Configuration | Maker::Operator => shared.open_space(entry.scope),
    };
    space.set_name(&entry.name);
    space
}

fn set_state(space: &Space, state: NamespaceState) {
    space.set_closed(state != NamespaceState::Open);
}

#[cfg(test)]
mod tests;
