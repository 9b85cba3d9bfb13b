//! The verdict of the authenticator, and enhanced authentication.

use std::io::IoSlice;

use broker::admission::{self, AuthStep, Credentials};
use codec::Reason;
use net::Stream;

use super::Acceptor;
use super::arrival::{Stage, refusal};
use super::connect::shortage;
use super::first_packet::{Outcome, read_packet};
use crate::run::limiter::TurnedAway;
use base::shown;
use identity::auth::scram::{self, Exchange};
use identity::auth::{Denial, Step, Verdict};

const NO_ROOM: &str = "the AUTH packet of the broker exceeds the maximum packet size of the client";

impl Acceptor {
    pub(super) fn on_verdict(&mut self, key: usize, generation: u64, verdict: Verdict) {
        let Some((stream, mut credentials, rest)) = self.unpark(key, generation) else { return };
        match verdict {
            Verdict::Admitted { username, principal } => {
                credentials.request.username = username.map(Into::into);
                credentials.request.principal = principal;
                self.hand_over(key, stream, credentials, rest);
            }
            Verdict::Unproved { username } => {
                credentials.request.username = Some(username.into());
                credentials.request.is_proved = false;
                self.hand_over(key, stream, credentials, rest);
            }
            Verdict::Refused(reason) => {
                let refusal = refusal(&credentials, reason, "", "authentication failed");
                self.refuse_connect(key, stream, &credentials, &refusal);
            }
            Verdict::Denied(denial) => self.refuse_denied(key, stream, &credentials, &denial),
        }
    }

    fn refuse_denied(
        &mut self,
        key: usize,
        stream: Stream,
        credentials: &Credentials,
        denial: &Denial,
    ) {
        let refusal = refusal(credentials, Reason::NOT_AUTHORIZED, "", "authentication failed");
        let address = &credentials.request.peer;
        self.refuse(key, stream, address, Some(credentials), &refusal, Some(denial));
    }

    /// Enhanced authentication (section 4.12): the CONNECT carries the client's first message.
    pub(super) fn start_exchange(
        &mut self,
        key: usize,
        mut stream: Stream,
        credentials: Box<Credentials>,
        bytes: Vec<u8>,
    ) {
        let authenticator = self.context.authenticator.clone();
        let method = credentials.request.auth_method.as_deref().unwrap_or_default();
        let arrival = self.arrivals.get(key);
        let knows_passwords =
            arrival.is_some_and(|arrival| arrival.listener.chain.contains(&Step::File));
        let is_offered = knows_passwords && authenticator.offers_scram();
        let refused = if method != scram::METHOD || !is_offered {
            let reason = Reason::BAD_AUTHENTICATION_METHOD;
            Err(refusal(&credentials, reason, "MQTT-4.12.0-1", "authentication method not offered"))
        } else {
            let data = credentials.auth_data.as_deref().unwrap_or_default();
            authenticator.start_scram(data).map_err(|error| {
                let client = shown(&credentials.request.client_id);
                tracing::debug!(client_id = &*client, %error, "SCRAM refused");
                refusal(&credentials, Reason::NOT_AUTHORIZED, "", "authentication failed")
            })
        };
        match refused {
            Err(refusal) => self.refuse_connect(key, stream, &credentials, &refusal),
            Ok((exchange, challenge)) => {
                let Some(packet) = admission::auth_continue(&credentials.request, &challenge)
                else {
                    let refusal =
                        refusal(&credentials, Reason::PACKET_TOO_LARGE, "MQTT-3.1.2-24", NO_ROOM);
                    return self.refuse_connect(key, stream, &credentials, &refusal);
                };
                if stream.write(&[IoSlice::new(&packet)]).is_err() {
                    return self.turn_away(key, TurnedAway::Closed);
                }
                let exchange = Box::new(exchange);
                self.on_exchange_bytes(key, stream, credentials, exchange, bytes);
            }
        }
    }

    pub(super) fn on_exchange_bytes(
        &mut self,
        key: usize,
        mut stream: Stream,
        mut credentials: Box<Credentials>,
        exchange: Box<Exchange>,
        mut bytes: Vec<u8>,
    ) {
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let limits = &credentials.request.limits;
        let bytes_max = limits.connect_bytes_max.min(limits.packet_bytes_max);
        let charge = &mut arrival.charge;
        let origin = *charge.sharer();
        let outcome = read_packet(&mut stream, &mut bytes, &mut self.scratch, charge, bytes_max);
        if let Outcome::Short(short) = outcome {
            let (reason, detail) = shortage(short);
            let refusal = refusal(&credentials, reason, "", detail);
            return self.refuse_connect(key, stream, &credentials, &refusal);
        }
        match admission::auth_step(&bytes, &credentials.request, bytes_max) {
            AuthStep::NeedMore if outcome == Outcome::Open => {
                self.set(key, Stage::Exchange { stream, credentials, exchange, bytes });
            }
            AuthStep::NeedMore => self.turn_away(key, TurnedAway::Closed),
            AuthStep::Refuse(refusal) => {
                self.refuse_connect(key, stream, &credentials, &refusal);
            }
            AuthStep::Data(data, packet_len) => {
                match self.context.authenticator.finish_scram(origin, *exchange, &data) {
                    Ok(success) => {
                        bytes.drain(..packet_len);
                        match self.context.authenticator.registered(&success.username) {
                            Ok(principal) => credentials.request.principal = principal,
                            Err(denial) => {
                                return self.refuse_denied(key, stream, &credentials, &denial);
                            }
                        }
                        credentials.request.username = Some(success.username.into());
                        credentials.request.auth_data = Some(success.server_final.into());
                        self.hand_over(key, stream, credentials, bytes);
                    }
                    Err(reason) => {
                        let refusal = refusal(&credentials, reason, "", "authentication failed");
                        self.refuse_connect(key, stream, &credentials, &refusal);
                    }
                }
            }
        }
    }
}
