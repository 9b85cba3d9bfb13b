//! Re-authentication of connected clients (section 4.12.1).

use std::collections::HashMap;
use std::sync::Arc;

use broker::{Reauthenticate, Reauthenticated, ShardId};
use codec::Reason;

use identity::auth::scram::Exchange;
use identity::auth::{Authenticator, TOKEN_METHOD};

/// Exchanges under way on one worker; at the limit new ones are refused.
const EXCHANGES_MAX: usize = 10_000;

/// Answers AUTH packets. An exchange takes microseconds, and a token 100 at most, which its client
/// is charged for: so both happen on the worker.
pub(super) struct Reauthentication {
    authenticator: Arc<Authenticator>,
    /// By shard, slot and connection.
    exchanges: HashMap<(ShardId, u32, u64), Exchange>,
}

impl Reauthentication {
    pub(super) fn new(authenticator: Arc<Authenticator>) -> Self {
        Self { authenticator, exchanges: HashMap::new() }
    }

    pub(super) fn answer(&mut self, shard: ShardId, ask: &Reauthenticate) -> Reauthenticated {
        if &*ask.method == TOKEN_METHOD {
            let renewed = self.authenticator.renew(ask);
            let failure = Reauthenticated::Failure(Reason::NOT_AUTHORIZED);
            return renewed.map_or(failure, Reauthenticated::Renewed);
        }
        let place = (shard, ask.slot, ask.connection);
        let begun = self.exchanges.remove(&place);
        let failure = Reauthenticated::Failure(Reason::NOT_AUTHORIZED);
        match (ask.is_start, begun) {
            (true, _) if self.exchanges.len() < EXCHANGES_MAX => {
                match self.authenticator.start_scram(&ask.data) {
                    Ok((exchange, challenge)) => {
                        self.exchanges.insert(place, exchange);
                        Reauthenticated::Continue(challenge)
                    }
                    Err(_) => failure,
                }
            }
            (false, Some(exchange)) => match exchange.finish(&ask.data) {
                // A connection stays that of who opened it.
                Ok(success) if ask.username.as_deref() == Some(&*success.username) => {
                    Reauthenticated::Success(success.server_final)
                }
                _ => failure,
            },
            _ => failure,
        }
    }

    /// A connection is gone, and with it an exchange that it may have begun.
    pub(super) fn forget(&mut self, shard: ShardId, slot: u32, connection: u64) {
        if !self.exchanges.is_empty() {
            self.exchanges.remove(&(shard, slot, connection));
        }
    }
}
