//! The last checks of an authenticated client, and its way to a worker.

use std::sync::atomic::Ordering;
use std::time::Instant;

use broker::ConnectRequest;
use broker::admission::Credentials;
use codec::Reason;
use net::Stream;
use policy::Principal;

use super::arrival::refusal;
use super::{Acceptor, BANNED};
use crate::run::mailbox::{Handover, Item};
use crate::run::self_check::SCOPE;
use crate::run::worker::Line;
use identity::auth::bans::Visitor;

const LONG_NAME: &str = "the username of the credential is longer than username_bytes_max";

impl Acceptor {
    /// Whether the authenticated client is banned.
    fn is_banned(&self, key: usize, request: &ConnectRequest) -> bool {
        let Some(arrival) = self.arrivals.get(key) else { return false };
        let bans = &arrival.listener.limiter.bans;
        let namespace = self.context.namespaces.name_of(request.scope);
        let visitor = Visitor {
            namespace: Some(&namespace),
            client_id: Some(&request.client_id),
            username: request.proved_username(),
            address: None,
        };
        bans.keeps_out(visitor, self.context.clock.wall_secs())
            || bans.keeps_off(request.name(), request.proved_username(), Instant::now())
    }

    /// Admitted: from here on the connection belongs to the worker of its session's shard.
    pub(super) fn hand_over(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: Box<Credentials>,
        rest: Vec<u8>,
    ) {
        if has_long_name(&credentials.request) {
            let refusal = refusal(&credentials, Reason::BAD_USER_NAME_OR_PASSWORD, "", LONG_NAME);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let Some((stream, credentials, rest)) = self.place(key, stream, credentials, rest) else {
            return;
        };
        if self.is_banned(key, &credentials.request) {
            let refusal = refusal(&credentials, Reason::BANNED, "", BANNED);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        self.pass_on(key, stream, credentials.request, rest);
    }

    /// The client of the self-check has a scope of its own, and no user name. No rule is for it.
    pub(super) fn hand_over_own(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: Credentials,
        rest: Vec<u8>,
    ) {
        let mut request = credentials.request;
        request.username = None;
        request.scope = SCOPE;
        request.principal =
            Some(Box::new(Principal { is_superuser: true, ..Principal::default() }));
        self.pass_on(key, stream, request, rest);
    }

    fn pass_on(
        &mut self,
        key: usize,
        mut stream: Stream,
        mut request: ConnectRequest,
        rest: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.try_remove(key) else { return };
        let Some(permit) = arrival.permit else { return };
        arrival.listener.counts.admitted.fetch_add(1, Ordering::Relaxed);
        if arrival.is_watched && self.poll.registry().deregister(&mut stream).is_err() {
            return;
        }
        request.origin = arrival.charge.sharer().to_string().into();
        let shard = self.context.shared.place_of_client(request.name());
        let worker = usize::from(shard) % self.context.mailboxes.len();
        let (socket, charge) = (Line(stream), arrival.charge);
        let handover = Handover { socket, shard, request, rest, permit, charge };
        self.context.mailboxes[worker].put(Item::Connection(Box::new(handover)));
    }
}

/// A credential may contain a longer user name than a CONNECT may.
fn has_long_name(request: &ConnectRequest) -> bool {
    let len = request.username.as_ref().map_or(0, |name| name.len());
    len > usize::from(request.limits.username_bytes_max)
}
