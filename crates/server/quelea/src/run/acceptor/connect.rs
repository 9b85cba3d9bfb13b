//! The handshake of a connection and its CONNECT, up to the request for authentication.

use broker::admission::{self, Admission, Credentials};
use codec::Reason;
use net::{Foreign, Handshake, PeerInfo, Progress, Stream};

use super::arrival::{Stage, ip, origin_of, refusal};
use super::first_packet::{Outcome, read_packet};
use super::mailbox::AcceptorItem;
use super::{Acceptor, BANNED};
use crate::life_cycle::line_pace::About;
use crate::run::identity::{assigned_client_id, of_certificate};
use crate::run::limiter::TurnedAway;
use base::shown;
use driver::{Purpose, Short};
use identity::auth::bans::Visitor;
use identity::auth::{AuthRequest, TOKEN_METHOD};

const NAMELESS_CERTIFICATE: &str =
    "the client certificate lacks the field of identity_from_certificate";

/// It counts by its thumbprint, and for nothing else.
const UNISSUED: &str = "no known authority has issued the client certificate, and an \
                        authentication method was asked for";

impl Acceptor {
    pub(super) fn on_handshake(&mut self, key: usize, mut handshake: Box<Handshake>) {
        match handshake.advance(&mut self.scratch) {
            Ok(Progress::Pending) => self.set(key, Stage::Handshake(handshake)),
            Ok(Progress::Done(stream, peer)) => {
                self.on_connect_bytes(key, stream, peer, Vec::new());
            }
            Err(error) => {
                let peer = handshake.peer().address;
                let listener = &self.arrivals[key].listener.name;
                if self.may_log(About::Handshake, ip(&peer), "-", "handshake") {
                    let hint = error.broker_hint();
                    let error = error.to_string();
                    let error = format_args!("{}{hint}", shown(&error));
                    tracing::info!(address = %peer, listener, %error, "handshake failed");
                }
                self.turn_away(key, TurnedAway::Handshake);
            }
        }
    }

    pub(super) fn on_connect_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        peer: Box<PeerInfo>,
        mut bytes: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let listener = arrival.listener.clone();
        let limits = &listener.limits;
        let bytes_max = limits.connect_bytes_max.min(limits.packet_bytes_max);
        arrival.charge.move_to(origin_of(&peer.address));
        let charge = &mut arrival.charge;
        let outcome = read_packet(&mut stream, &mut bytes, &mut self.scratch, charge, bytes_max);
        let peer_name = peer.address.to_string();
        if let Outcome::Short(short) = outcome {
            let (reason, detail) = shortage(short);
            let refusal = admission::refuse_first(&bytes, reason, detail);
            return self.refuse(key, stream, &peer_name, None, &refusal, None);
        }
        let shared = &self.context.shared;
        match admission::admit(&bytes, limits, &peer_name, || assigned_client_id(shared)) {
            Admission::NeedMore if outcome == Outcome::Open => {
                self.set(key, Stage::Connect { stream, peer, bytes });
            }
            Admission::NeedMore => self.turn_away(key, TurnedAway::Closed),
            Admission::Refuse(mut refusal) => {
                let foreign = Foreign::of(&bytes).filter(|foreign| *foreign != Foreign::Mqtt);
                refusal.detail = foreign.map_or(refusal.detail, Foreign::hint);
                self.refuse(key, stream, &peer_name, None, &refusal, None);
            }
            Admission::Connect(credentials, _) if self.context.entrance.is_some() => {
                self.enter(key, (stream, peer, bytes), &credentials);
            }
            Admission::Connect(credentials, packet_len) => {
                let rest = bytes[packet_len..].to_vec();
                drop(bytes);
                self.on_connect(key, stream, &peer, credentials, rest);
            }
        }
    }

    fn on_connect(
        &mut self,
        key: usize,
        stream: Stream,
        peer: &PeerInfo,
        mut credentials: Box<Credentials>,
        rest: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        arrival.host = host_of(peer).map(Into::into);
        let cluster = self.context.cluster.as_ref();
        if let Some(refusal) = cluster.and_then(|acceptor| acceptor.refusal(&credentials.request)) {
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        if let Some((reason, detail)) = self.refused_unasked(key, peer, &credentials) {
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        if self.context.self_checks.recognizes(&credentials) {
            return self.hand_over_own(key, stream, *credentials, rest);
        }
        let Some(arrival) = self.arrivals.get(key) else { return };
        let Ok(certificate_identity) = of_certificate(peer, arrival.listener.identity) else {
            let refusal = refusal(&credentials, Reason::NOT_AUTHORIZED, "", NAMELESS_CERTIFICATE);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        };
        let mut chain = arrival.listener.chain.clone();
        match credentials.request.auth_method.as_deref() {
            None => {}
            Some(TOKEN_METHOD) => {
                chain = self.context.authenticator.chain_of_tokens(&chain);
                if chain.is_empty() {
                    return self.start_exchange(key, stream, credentials, rest);
                }
                // A token takes precedence over a password.
                credentials.password = credentials.auth_data.take();
            }
            Some(_) => return self.start_exchange(key, stream, credentials, rest),
        }
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let bytes = held_bytes(&credentials) + rest.len() as u64;
        if let Err(short) = arrival.charge.raise(bytes, Purpose::Whole) {
            let (reason, detail) = shortage(short);
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        let (origin, generation) = (*arrival.charge.sharer(), arrival.generation);
        let listener = arrival.listener.clone();
        let request = AuthRequest {
            origin,
            ticket: self.ticket(generation),
            chain: Some(chain),
            client_id: credentials.request.client_id.as_ref().to_owned(),
            username: credentials.request.username.as_deref().map(str::to_owned),
            password: credentials.password.as_deref().map(<[u8]>::to_vec),
            certificate_identity,
            certificate: peer.tls.as_ref().and_then(|tls| tls.certificate.clone()),
            peer_host: ip(&peer.address).map(|ip| ip.to_string()).unwrap_or_default(),
            allow_anonymous: listener.allow_anonymous && credentials.request.auth_method.is_none(),
            has_token_method: credentials.request.auth_method.is_some(),
        };
        let mailbox = self.mailbox.clone();
        let answer = Box::new(move |verdict| {
            mailbox.put(AcceptorItem::Verdict { key, generation, verdict });
        });
        self.set(key, Stage::Checking { stream, credentials, rest });
        if let Some(verdict) = self.context.authenticator.clone().check(request, answer) {
            self.on_verdict(key, generation, verdict);
        }
    }

    /// Why a client is refused before its credentials are checked.
    fn refused_unasked(
        &self,
        key: usize,
        peer: &PeerInfo,
        credentials: &Credentials,
    ) -> Option<(Reason, &'static str)> {
        let arrival = self.arrivals.get(key)?;
        if arrival.permit.is_none() {
            return Some((Reason::SERVER_BUSY, "connection limit reached"));
        }
        if self.context.shared.memory_is_out() {
            return Some((Reason::SERVER_BUSY, "memory limit reached"));
        }
        let certificate = peer.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let is_unissued = certificate.is_some_and(|certificate| certificate.is_unissued);
        if is_unissued && credentials.request.auth_method.is_some() {
            return Some((Reason::NOT_AUTHORIZED, UNISSUED));
        }
        let visitor = Visitor {
            namespace: arrival.listener.belonging.only(),
            client_id: Some(&credentials.request.client_id),
            address: ip(&peer.address),
            username: None,
        };
        let is_banned =
            arrival.listener.limiter.bans.keeps_out(visitor, self.context.clock.wall_secs());
        is_banned.then_some((Reason::BANNED, BANNED))
    }
}

/// The host name that a client has asked for: by the SNI of its TLS, or as a trusted proxy reports
/// it.
fn host_of(peer: &PeerInfo) -> Option<&str> {
    let own = peer.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
    own.or(peer.proxy_authority.as_deref())
}

/// The answer to a client when the memory for connections that are not admitted is used up.
pub(super) fn shortage(short: Short) -> (Reason, &'static str) {
    match short {
        Short::Share => (
            Reason::QUOTA_EXCEEDED,
            "the unfinished connections of the address use too much memory (arrivals_bytes_per_address_max)",
        ),
        Short::All => {
            (Reason::SERVER_BUSY, "unfinished connections use too much memory (arrivals_bytes_max)")
        }
    }
}

/// Memory of a CONNECT while it is checked. The authenticator has its own copy of name and
/// password.
fn held_bytes(credentials: &Credentials) -> u64 {
    let request = &credentials.request;
    let text = |text: Option<&str>| text.map_or(0, str::len);
    let will = request.will.as_ref().map_or(0, |will| {
        will.topic.len() + will.payload.len() + will.properties.len() + size_of_val(&**will)
    });
    let secret = credentials.password.as_ref().map_or(0, |password| password.len());
    let twice = text(request.username.as_deref()) + secret;
    let bytes = size_of::<Credentials>() + request.client_id.len() + will + 2 * twice;
    bytes as u64
}
