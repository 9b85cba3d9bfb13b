//! Connections that are not admitted: refused, timed out, closed.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use broker::admission::{Credentials, Refusal};
use net::{Read, Stream};

use super::arrival::Stage;
use super::{Acceptor, Deadlines};
use crate::life_cycle::line_pace::About;
use crate::life_cycle::{ClientRefused, Subject};
use crate::run::limiter::TurnedAway;
use crate::run::mailbox::Item;
use base::shown;
use identity::auth::Denial;

/// How long a refused client may take to read why.
const REFUSAL_MS: u64 = 1000;

/// How often slow connections are looked for while memory is short.
const SLOW_CHECK_MS: u64 = 250;

impl Acceptor {
    pub(super) fn refuse_connect(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: &Credentials,
        refusal: &Refusal,
    ) {
        let address = &credentials.request.peer;
        self.refuse(key, stream, address, Some(credentials), refusal, None);
    }

    /// Refuses a connection: without credentials, if there was no complete CONNECT; with a denial,
    /// if a provider refused it.
    pub(super) fn refuse(
        &mut self,
        key: usize,
        mut stream: Stream,
        address: &str,
        credentials: Option<&Credentials>,
        refusal: &Refusal,
        denial: Option<&Denial>,
    ) {
        self.report_refusal(key, address, credentials, refusal, denial);
        if let Some(arrival) = self.arrivals.get(key) {
            arrival.listener.counts.refuse(refusal.reason);
        }
        let is_answered = !refusal.answer.is_empty()
            && stream.write(&[IoSlice::new(&refusal.answer)]).is_ok()
            && stream.shutdown().is_ok();
        if !is_answered {
            return self.turn_away(key, TurnedAway::Refused);
        }
        // Closing now would take the answer away from a client that has more bytes on the way.
        self.generation += 1;
        let deadline_ms = self.now_ms + REFUSAL_MS;
        self.refusals.push_back((deadline_ms, key, self.generation));
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.generation = self.generation;
            arrival.listener.counts.turn_away(TurnedAway::Refused);
        }
        self.drain(key, stream);
    }

    fn report_refusal(
        &self,
        key: usize,
        address: &str,
        credentials: Option<&Credentials>,
        refusal: &Refusal,
        denial: Option<&Denial>,
    ) {
        let (context, request) = (&self.context, credentials.map(|it| &it.request));
        let Some(arrival) = self.arrivals.get(key) else { return };
        let client = request.map_or("-".into(), |request| shown(&request.client_id));
        let what = if refusal.clause.is_empty() { refusal.detail } else { refusal.clause };
        let ip = address.parse().ok().map(|address: SocketAddr| address.ip());
        let is_logged = self.may_log(About::Refused, ip, &client, what);
        if !is_logged && context.life_cycle.is_unheard() {
            return;
        }
        let only = arrival.listener.belonging.only().map(Into::into);
        let placed = request.map(|request| request.scope).filter(|scope| !scope.is_first());
        let clause = format!("{}: {}", refusal.clause, refusal.detail);
        let detail = if refusal.clause.is_empty() { refusal.detail } else { &clause };
        let chain = &arrival.listener.chain;
        let username = request.and_then(|request| request.username.as_deref());
        // A token is a secret: it is neither logged nor reported.
        let username = username.filter(|name| !context.authenticator.is_token_in(chain, name));
        let refused = ClientRefused {
            client_id: request.map(|request| &*request.client_id),
            username,
            address,
            listener: &arrival.listener.name,
            namespace: only.or_else(|| placed.map(|scope| context.namespaces.name_of(scope))),
            provider: denial.map(|denial| &*denial.provider),
            reason_code: refusal.reason,
            detail: denial.map_or(detail, |denial| &denial.reason),
        };
        if let Some(message) = context.life_cycle.on_refused(&refused, is_logged, self.now_ms) {
            // The listeners of a node with cells have none.
            if let Some(first) = context.mailboxes.first() {
                first.put(Item::Publish(0, message));
            }
        }
    }

    /// Whether a log line about a client that is not admitted may be written now.
    pub(super) fn may_log(
        &self,
        about: About,
        peer: Option<IpAddr>,
        client: &str,
        what: &'static str,
    ) -> bool {
        let visitor = Subject::of_visitor(about, peer, client, what);
        self.context.line_pace.allows_of(visitor, 1, self.now_ms)
    }

    pub(super) fn drain(&mut self, key: usize, mut stream: Stream) {
        loop {
            match stream.read(&mut self.scratch) {
                Ok(Read::Bytes(_)) => {}
                Ok(Read::WouldBlock) => return self.set(key, Stage::Refused(stream)),
                Ok(Read::Closed) | Err(_) => {
                    self.arrivals.try_remove(key);
                    return;
                }
            }
        }
    }

    /// Closes without an answer, and cancels the check of its credentials.
    pub(super) fn turn_away(&mut self, key: usize, why: TurnedAway) {
        if let Some(arrival) = self.arrivals.try_remove(key) {
            arrival.listener.counts.turn_away(why);
            if matches!(arrival.stage, Stage::Checking { .. }) {
                let ticket = self.ticket(arrival.generation);
                self.context.authenticator.forget(*arrival.charge.sharer(), ticket);
            }
        }
    }

    /// Closes connections that took too long.
    pub(super) fn give_up_late(&mut self) {
        let mut deadlines = std::mem::take(&mut self.deadlines);
        self.give_up_on(&mut deadlines);
        self.deadlines = deadlines;
        let mut refusals = std::mem::take(&mut self.refusals);
        self.give_up_on(&mut refusals);
        self.refusals = refusals;
        if self.now_ms >= self.slow_checked_at_ms && self.context.allowance.is_short() {
            self.slow_checked_at_ms = self.now_ms + SLOW_CHECK_MS;
            self.give_up_slow();
        }
    }

    /// Memory is short: clients that have not sent their CONNECT time out earlier.
    fn give_up_slow(&mut self) {
        let until_ms = self.now_ms + self.context.connect_timeout_ms / 4 * 3;
        let due = self.deadlines.iter().take_while(|(deadline_ms, ..)| *deadline_ms <= until_ms);
        let due: Vec<_> = due.map(|(_, key, generation)| (*key, *generation)).collect();
        for (key, generation) in due {
            let Some(arrival) = self.arrivals.get(key) else { continue };
            let is_slow = matches!(arrival.stage, Stage::Handshake(_) | Stage::Connect { .. });
            if is_slow && arrival.generation == generation {
                self.turn_away(key, TurnedAway::Timeout);
            }
        }
    }

    fn give_up_on(&mut self, deadlines: &mut Deadlines) {
        while let Some((deadline_ms, key, generation)) = deadlines.front().copied() {
            let arrival = self.arrivals.get(key).filter(|arrival| arrival.generation == generation);
            if let Some(arrival) = arrival {
                if deadline_ms > self.now_ms {
                    return;
                }
                if !matches!(arrival.stage, Stage::Refused(_)) {
                    let address = arrival.stage.peer();
                    let ip = address.parse().ok().map(|address: SocketAddr| address.ip());
                    if self.may_log(About::Handshake, ip, "-", "timeout") {
                        let listener = &arrival.listener.name;
                        let late = late(&arrival.stage);
                        tracing::info!(listener, address, "connection closed: {late}");
                    }
                    self.turn_away(key, TurnedAway::Timeout);
                }
                // A refused one is counted already.
                self.arrivals.try_remove(key);
            }
            deadlines.pop_front();
        }
    }
}

/// What has not come in time.
const fn late(stage: &Stage) -> &'static str {
    match stage {
        Stage::Checking { .. } => "the login was not decided in time",
        _ => "no complete CONNECT in time",
    }
}
