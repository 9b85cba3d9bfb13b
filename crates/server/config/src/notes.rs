//! What is valid and has no effect, for `--check-config`. It is no error, because namespaces may be
//! added later.

use super::{Config, DurabilityLevel, Listener, NamespaceSource};

/// A line for each.
pub fn notes(config: &Config) -> Vec<String> {
    let goes_by_host = |own: &&Listener| own.placing.from.contains(&NamespaceSource::Host);
    let by_host: Vec<_> = config.listeners.iter().filter(goes_by_host).collect();
    let with_hosts = config.namespaces.iter().filter(|own| !own.hosts.is_empty());
    let mut notes = Vec::new();
    if by_host.is_empty() {
        let line = |name: &str| {
            format!(
                "hosts of namespace '{name}' have no effect: no listener has \"host\" in \
                namespace_from"
            )
        };
        notes.extend(with_hosts.clone().map(|own| line(&own.name)));
    }
    if with_hosts.count() == 0 {
        let line = |name: &str| {
            format!("listener '{name}' selects namespaces by host name, and no namespace has hosts")
        };
        notes.extend(by_host.iter().map(|own| line(&own.name)));
    }
    let is_shut = |own: &&Listener| !config.admits_somebody(own);
    let line = |own: &Listener| {
        format!(
            "no client can log in at listener '{}': it has no authentication provider and does \
            not allow anonymous clients",
            own.name
        )
    };
    notes.extend(config.listeners.iter().filter(is_shut).map(line));
    notes.extend(config.weaker_level().map(|word| {
        format!(
            "durability level \"{word}\" is treated as \"quorum\" because [cluster] is configured"
        )
    }));
    notes
}

impl Config {
    /// A level that a cluster serves as a firmer one, the first of those that are configured.
    fn weaker_level(&self) -> Option<&'static str> {
        let topics = self.durability.topics.iter().map(|(_, level)| *level);
        let listeners = self.listeners.iter().map(|own| own.limits.durability);
        let mut levels = [self.durability.level].into_iter().chain(topics).chain(listeners);
        let words = levels.find_map(|level| match level {
            DurabilityLevel::Disk => Some("disk"),
            DurabilityLevel::Fsync => Some("fsync"),
            DurabilityLevel::Memory | DurabilityLevel::Quorum => None,
        });
        words.filter(|_| self.cluster.is_some())
    }

    fn admits_somebody(&self, listener: &Listener) -> bool {
        let chain = &listener.authentication;
        let mut asked =
            self.authentication.iter().filter(|own| chain.is_empty() || chain.contains(&own.name));
        let asks_file = self.auth.password_file.is_some()
            && (chain.is_empty() || chain.iter().any(|name| name == super::FILE));
        listener.allow_anonymous
            || listener.names_by_certificate()
            || asks_file
            || asked.any(|own| own.can_be_asked(listener))
    }
}
