//! Settings that change while the broker runs: by a reload of the configuration, and by the API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use config::changes::{self, RunningKey, WHILE_RUNNING};
use config::{Config, ConfigError, Loaded, Machine, Settings};

use super::limiter::ConnectionLimiter;
use crate::life_cycle::line_pace::LinePace;
use crate::logging::Logging;

/// The settings in force. What was set while running is in memory only. It ends with a restart, and
/// with a reload that finds another value of the key in the configuration than before.
#[derive(Debug)]
pub(crate) struct LiveSettings {
    limiter: Arc<ConnectionLimiter>,
    /// Of the workers that have started: those of each cell, where there are several.
    line_paces: Mutex<Vec<Weak<LinePace>>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// As the broker started, with the keys that reloads have brought since.
    configured: Arc<Loaded>,
    /// Texts of keys of [`WHILE_RUNNING`]: so many at most.
    changes: BTreeMap<&'static str, String>,
    /// Both together.
    in_force: Arc<Loaded>,
}

/// Why a setting was not set.
#[derive(Debug)]
pub(crate) enum SetError {
    /// There is a key of this name, but a restart takes it over only.
    NeedsRestart,
    UnknownKey,
    Refused(ConfigError),
}

impl LiveSettings {
    pub(super) fn new(loaded: Arc<Loaded>, limiter: Arc<ConnectionLimiter>) -> Self {
        let (configured, changes) = (loaded.clone(), BTreeMap::new());
        let inner = Inner { configured, changes, in_force: loaded }.into();
        Self { limiter, line_paces: Mutex::default(), inner }
    }

    pub(super) fn add_line_pace(&self, line_pace: &Arc<LinePace>) {
        let inner = self.lock();
        line_pace.set_per_second_max(inner.in_force.config.log.client_lines_per_second_max);
        let mut all = self.line_paces.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(line_pace));
    }

    pub(crate) fn in_force(&self) -> Arc<Loaded> {
        self.lock().in_force.clone()
    }

    /// A value of the configuration in force.
    pub(crate) fn get<T>(&self, value: impl FnOnce(&Config) -> T) -> T {
        value(&self.lock().in_force.config)
    }

    /// Sets a key, or takes back what was set.
    ///
    /// # Errors
    ///
    /// The key does not change while the broker runs, or the value is refused. Nothing has changed.
    pub(crate) fn set(&self, key: &str, text: Option<String>) -> Result<(), SetError> {
        let mut inner = self.lock();
        let known = WHILE_RUNNING.iter().find(|(known, _)| *known == key);
        let Some((known, _)) = known else {
            let is_key = inner.configured.settings.known(key).is_some();
            return Err(if is_key { SetError::NeedsRestart } else { SetError::UnknownKey });
        };
        let mut changes = inner.changes.clone();
        match text {
            Some(text) => changes.insert(known, text),
            None => changes.remove(known),
        };
        let fresh = inner.configured.with_changes(&changes, &Machine::here());
        let fresh = fresh.map_err(SetError::Refused)?;
        inner.changes = changes;
        self.take(&mut inner, fresh);
        Ok(())
    }

    /// Takes over what the configuration has now, and returns the keys whose set value ended.
    ///
    /// # Errors
    ///
    /// The values contradict what a restart would change only. Nothing has changed.
    pub(super) fn reload(&self, fresh: &Settings) -> Result<Vec<String>, ConfigError> {
        let mut inner = self.lock();
        let machine = Machine::here();
        let configured = inner.configured.taking_over(fresh, &machine)?;
        let (before, mut taken_back) = (inner.configured.clone(), Vec::new());
        let mut changes = inner.changes.clone();
        changes.retain(|key, _| {
            let stays = changes::is_same(key, &before.settings, fresh);
            if !stays {
                taken_back.push((*key).to_owned());
            }
            stays
        });
        let in_force = configured.with_changes(&changes, &machine)?;
        inner.configured = Arc::new(configured);
        inner.changes = changes;
        self.take(&mut inner, in_force);
        Ok(taken_back)
    }

    fn take(&self, inner: &mut Inner, fresh: Loaded) {
        let before = std::mem::replace(&mut inner.in_force, Arc::new(fresh));
        for (key, what) in WHILE_RUNNING {
            if !changes::is_same(key, &before.settings, &inner.in_force.settings) {
                self.apply(key, what, &inner.in_force);
            }
        }
    }

    fn apply(&self, key: &str, what: RunningKey, fresh: &Loaded) {
        let config = &fresh.config;
        match what {
            RunningKey::ConnectionsMax => {
                self.limiter.set_connections_max(config.limits.connections_max);
            }
            RunningKey::LogLevel => {
                if let Err(error) = Logging::configure_level(config.log.level) {
                    tracing::error!(%error, "the log level was not changed");
                }
            }
            RunningKey::ClientLines => {
                let all = self.line_paces.lock().unwrap_or_else(PoisonError::into_inner);
                for line_pace in all.iter().filter_map(Weak::upgrade) {
                    line_pace.set_per_second_max(config.log.client_lines_per_second_max);
                }
            }
            // The ticker of the control plane reads it at its next look.
            RunningKey::SysInterval => {}
        }
        let value = fresh.settings.known(key).map(|setting| setting.value.to_string());
        let origin = fresh.settings.place(key);
        tracing::info!(key, value, origin, "setting changed");
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{SourceFile, Sources, load};

    fn loaded(text: &str) -> Loaded {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        load(&Sources { file: Some(file), ..Sources::default() }, &Machine::here()).unwrap()
    }

    fn live(text: &str) -> LiveSettings {
        LiveSettings::new(Arc::new(loaded(text)), Arc::new(ConnectionLimiter::new(7)))
    }

    const MAX: &str = "limits.connections_max";

    #[test]
    fn a_set_value_ends_when_the_configuration_has_another_than_before() {
        let live = live("[limits]\nconnections_max = 7\n");
        let max = || live.get(|config| config.limits.connections_max);
        live.set(MAX, Some("9".into())).unwrap();
        let same = loaded("[limits]\nconnections_max = 7\n[sys]\ninterval_secs = 3\n");
        assert_eq!(live.reload(&same.settings).unwrap(), Vec::<String>::new());
        assert_eq!((max(), live.get(|config| config.sys.interval_secs)), (9, 3));
        let other = loaded("[limits]\nconnections_max = 8\n");
        assert_eq!(live.reload(&other.settings).unwrap(), [MAX]);
        assert_eq!(max(), 8);
        live.set(MAX, Some("5".into())).unwrap();
        live.set(MAX, None).unwrap();
        assert_eq!(max(), 8);
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let live = live("[limits]\nconnections_max = 7\n");
        let refused = live.set(MAX, Some("many".into()));
        assert!(matches!(refused, Err(SetError::Refused(error)) if error.problems.len() == 1));
        let restart = live.set("limits.qos_max", Some("1".into()));
        assert!(matches!(restart, Err(SetError::NeedsRestart)));
        assert!(matches!(live.set("limits.qos", None), Err(SetError::UnknownKey)));
        assert_eq!(live.get(|config| config.limits.connections_max), 7);
        assert!(live.lock().changes.is_empty());
    }
}
