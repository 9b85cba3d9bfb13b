//! Files that concern a process as a whole, read again: who is let in, who is not, and the
//! certificates of listeners.

use std::sync::Arc;

use net::TlsContext;

use super::file_watch::Part;
use super::limiter::ConnectionLimiter;
use super::mailbox::Item;
use super::worker::Order;
use crate::api::ApiAuthenticator;
use config::Config;
use identity::auth::Authenticator;

/// What they are read into.
pub(super) struct OwnFiles<'a> {
    pub(super) config: &'a Config,
    pub(super) authenticator: &'a Authenticator,
    pub(super) limiter: &'a ConnectionLimiter,
    /// Of the API, if it is on.
    pub(super) api_authenticator: Option<&'a ApiAuthenticator>,
    pub(super) tls: &'a [(String, Arc<TlsContext>)],
    /// Puts an item into the mailbox of each worker.
    pub(super) tell_workers: &'a dyn Fn(&dyn Fn() -> Item),
}

impl OwnFiles<'_> {
    /// Reads the files of a part again: all of it, or nothing. Parts that concern shards are passed
    /// over.
    ///
    /// # Errors
    ///
    /// What is wrong with a file. What was read before stays in force.
    pub(super) fn reload(&self, part: &Part) -> anyhow::Result<()> {
        match part {
            Part::Passwords => {
                self.authenticator.reload(&self.config.auth)?;
                tracing::info!("passwords and keys reloaded");
            }
            Part::Registries => self.reload_registries()?,
            Part::Bans => self.reload_bans()?,
            Part::ApiUsers => {
                let users = self.api_authenticator.map_or(Ok(false), ApiAuthenticator::reload);
                if users? {
                    tracing::info!("users of the API reloaded");
                }
            }
            Part::Tls(listener) => {
                for (_, tls) in self.tls.iter().filter(|(name, _)| name == listener) {
                    tls.reload()?;
                    tracing::info!(listener, "certificates reloaded");
                }
            }
            Part::Rules | Part::Routing => {}
        }
        Ok(())
    }

    fn reload_bans(&self) -> anyhow::Result<()> {
        let listed = self.limiter.bans.reload().map_err(anyhow::Error::msg)?;
        let Some(listed) = listed else { return Ok(()) };
        let bans = || Item::Order(Order::Bans { listed: listed.clone(), ends: true });
        (self.tell_workers)(&bans);
        tracing::info!(bans = listed.file.len(), "bans reloaded");
        Ok(())
    }

    /// Connections that rely on what is not registered any more end. Those that are on their way
    /// to a worker come there after this, or are refused there.
    fn reload_registries(&self) -> anyhow::Result<()> {
        let (revoked, read) = self.authenticator.reload_registries();
        if revoked > 0 {
            (self.tell_workers)(&|| Item::Order(Order::Revoked));
        }
        read?;
        tracing::info!(revoked, "registries reloaded");
        Ok(())
    }
}
