//! Who a client is: an asynchronous question, asked by an acceptor and answered through a callback.
//!
//! Each listener has a chain of providers. They are asked one after the other: the first that says
//! yes or no has decided, and what none of them knows is refused. Checking a password costs tens of
//! milliseconds of one core, and a service is another machine. So the acceptor only hands a
//! question over ([`Authenticator::check`]) and goes on; the answer comes from another thread. What
//! can be answered at once is: anonymous clients, identities proved by TLS, tokens, and credentials
//! that were right a moment ago.
//!
//! A provider that is slow holds up who asks it, and nobody else: each has a queue of its own, and
//! log-ins of an address are under way at the provider that is asked. Failed ones are paced over
//! all providers.

mod acl_claim;
pub mod acl_file;
pub mod authorizer;
pub mod bans;
mod breaker;
mod cache;
mod doubts;
mod fair_queue;
mod fetch;
mod file_changes;
mod files;
mod jwks;
mod jwt;
mod keys;
mod pace;
pub mod password_changes;
pub mod passwords;
mod plugin_hashes;
pub mod policy_file;
pub mod refusal_lines;
mod registry;
pub mod registry_changes;
mod request;
pub mod rules;
pub mod scram;
pub mod secret;
mod service;
mod service_queue;
mod template;
mod token_test;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use broker::Reauthenticate;
use codec::Reason;
use policy::{Attributes, OwnRules, Principal, Revocation};

use acl_claim::Subject;
use base::Clock;
use base::shown;
use config::template::Template;
use config::{Auth, FILE, Method, Provider};
use driver::Origin;
use fetch::Net;
pub use file_changes::ReplaceError;
use files::Passwords;
use jwks::Jwt;
pub use jwt::written_attributes;
use net::Thumbprints;
use pace::{Attempt, Pace};
use passwords::PasswordFileError;
use refusal_lines::RefusalLines;
use registry::{DISABLED, Registry, User};
use scram::{Exchange, ScramError, Success};
use service::Service;
pub use template::is_name;
use template::value_of;
pub use token_test::{TokenCheck, TokenHolder, TokenLogin, read_token, written_rules};

/// A client that connects, and its credentials.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuthRequest {
    /// Where it comes from: origins take turns.
    pub origin: Origin,
    /// Of the one who asks, for [`Authenticator::forget`].
    pub ticket: u64,
    /// Who is asked. None: everybody there is.
    pub chain: Option<Chain>,
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    /// The user name that a checked client certificate stands for, where the listener takes it.
    pub certificate_identity: Option<String>,
    /// The checked certificate.
    pub certificate: Option<Box<net::CertificateInfo>>,
    /// The address without the port.
    pub peer_host: String,
    /// Whether the listener admits clients that show nothing.
    pub allow_anonymous: bool,
    /// The password is a token that has come by [`TOKEN_METHOD`].
    pub has_token_method: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Welcome, under this user name (`None`: anonymous).
    Admitted { username: Option<String>, principal: Option<Box<Principal>> },
    /// Welcome, as anonymous: nobody can check the name that is stated.
    Unproved { username: String },
    /// For the CONNACK: 0x86, 0x87, 0x88 or 0x89.
    Refused(Reason),
    /// 0x87: somebody who was asked says no.
    Denied(Box<Denial>),
}

/// Who says no, and why. Not for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    pub provider: String,
    pub reason: String,
}

/// Takes the verdict on whatever thread reached it. It should only put it somewhere and wake the
/// acceptor.
pub type Answer = Box<dyn FnOnce(Verdict) + Send>;

/// The method of enhanced authentication by which a token comes as data, as Event Grid calls it.
pub const TOKEN_METHOD: &str = "OAUTH2-JWT";

/// Those who are asked on a listener, in this order.
pub type Chain = Arc<[Step]>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The password file.
    File,
    /// By its place in the configuration.
    Provider(usize),
}

/// What a provider says of a client.
#[derive(Debug, PartialEq)]
pub enum Opinion {
    Yes(Proof),
    /// For the log.
    No(String),
    /// There is no room for the question.
    Busy,
    /// What is shown is not for this provider.
    NotMine,
    /// The provider cannot be asked: it has reported so, or too many wait for its keys.
    Down,
    /// The provider has answered, with what is no answer, and has reported so.
    Unclear,
}

/// What somebody has proved to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proof {
    pub username: Option<String>,
    pub attributes: Attributes,
    /// In seconds since 1970.
    pub expires_at_secs: Option<u64>,
    pub is_superuser: bool,
    /// Access rules that its credential states.
    pub rules: OwnRules,
    /// Of registries, which may take back what they have said.
    pub revocations: Vec<Revocation>,
}

/// Takes the opinion of a provider.
pub type Later = Box<dyn FnOnce(Opinion) + Send>;

/// What the configuration asks for cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error(transparent)]
    Passwords(#[from] PasswordFileError),
    #[error("authentication '{name}': {detail}")]
    Provider { name: String, detail: String },
}

/// Asks providers who a client is. Dropping it ends their threads; questions that still wait are
/// answered with 0x89.
pub struct Authenticator {
    parts: Arc<Parts>,
    passwords: files::Threads,
    offers_scram: bool,
    /// None: no provider asks over the network.
    _net: Option<Net>,
}

/// What questions that are under way hold on to.
struct Parts {
    passwords: Passwords,
    providers: Vec<(String, ProviderKind)>,
    /// All that there are, in their order.
    whole: Chain,
    clock: Clock,
    refusal_lines: Mutex<RefusalLines>,
    pace: Arc<Mutex<Pace>>,
    /// Makes numbers of user names.
    users: RandomState,
}

/// A provider by what it does.
enum ProviderKind {
    Jwt(Jwt),
    Http(Service),
    Certificate { username: Template, attributes: Vec<(String, Template)> },
    Registry(Registry),
}

impl AuthRequest {
    /// Was a certificate shown that no known authority has issued?
    fn has_unissued_certificate(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.is_unissued)
    }

    /// Whom access rules are read for.
    fn subject<'a>(&'a self, username: Option<&'a str>) -> Subject<'a> {
        let common_name = self.certificate.as_ref().map(|own| own.common_name.as_str());
        Subject { client_id: &self.client_id, username, common_name }
    }
}

/// A question on its way along a chain.
struct Asking {
    request: Arc<AuthRequest>,
    chain: Chain,
    parts: Arc<Parts>,
    attempt: Arc<Attempt>,
    answer: Mutex<Option<Answer>>,
}

/// Why the end of a chain may not be its fault.
#[derive(Clone, Copy, Default)]
struct Missed {
    /// A provider could not be asked.
    was_down: bool,
    /// A provider has given no clear answer.
    was_unclear: bool,
    /// A service was asked, and does not know the client.
    was_refused: bool,
}

impl Authenticator {
    /// Reads the files of all providers and starts their threads. What clients see of users that do
    /// not exist is made from `decoy_secret`, so that it stays the same as long as that does;
    /// without one, as long as the password file does.
    ///
    /// # Errors
    ///
    /// When a file cannot be used.
    pub fn start(
        config: &Auth,
        providers: &[Provider],
        decoy_secret: Option<[u8; 32]>,
        clock: Clock,
    ) -> Result<Self, AuthError> {
        let pace = Arc::new(Mutex::new(Pace::new(config.failures_per_second_max)));
        let (passwords, threads) = Passwords::start(config, decoy_secret, &pace)?;
        let mut net = None;
        let mut made = Vec::new();
        for provider in providers {
            let name = &provider.name;
            let fail = |detail| AuthError::Provider { name: name.clone(), detail };
            if provider.method.asks_over_network() && net.is_none() {
                net = Some(Net::start().map_err(|error| fail(error.to_string()))?);
            }
            let handle = net.as_ref().map(Net::handle);
            let kind = match &provider.method {
                Method::Jwt(own) => {
                    ProviderKind::Jwt(Jwt::start(name, own, handle, clock).map_err(fail)?)
                }
                Method::Http(own) => {
                    let Some(handle) = handle else { continue };
                    let named = (&**name, Step::Provider(made.len()));
                    let service = Service::new(named, own, config, &pace, handle, clock);
                    ProviderKind::Http(service.map_err(fail)?)
                }
                Method::Certificate { username, attributes } => ProviderKind::Certificate {
                    username: username.clone(),
                    attributes: attributes.clone(),
                },
                Method::Registry(own) => ProviderKind::Registry(Registry::load(own).map_err(fail)?),
            };
            made.push((provider.name.clone(), kind));
        }
        let file = config.password_file.is_some().then_some(Step::File);
        let whole = (0..made.len()).map(Step::Provider).chain(file).collect();
        let parts = Parts {
            passwords,
            providers: made,
            whole,
            clock,
            refusal_lines: Mutex::default(),
            pace,
            users: RandomState::new(),
        };
        let parts = Arc::new(parts);
        Ok(Self { parts, passwords: threads, offers_scram: config.scram, _net: net })
    }

    /// So much memory there is in all: password checks take no more than a part of it at a time.
    pub fn fit_into(&self, memory_bytes_max: u64) {
        self.parts.passwords.fit_into(memory_bytes_max);
    }

    /// Forgets the answers of services that are remembered: they can be asked for again. Returns
    /// how many bytes that frees.
    pub fn free_memory(&self) -> usize {
        let of_kind = |kind: &ProviderKind| {
            if let ProviderKind::Http(service) = kind { service.clear() } else { 0 }
        };
        self.parts.providers.iter().map(|(_, kind)| of_kind(kind)).sum()
    }

    /// Reads the files of all providers again and forgets remembered verdicts. Each is replaced
    /// whole or not at all.
    ///
    /// # Errors
    ///
    /// The first file that cannot be used; what it holds then stays in force.
    pub fn reload(&self, config: &Auth) -> Result<(), AuthError> {
        let passwords = self.parts.passwords.reload(config).map_err(AuthError::from);
        let mut outcome = passwords;
        for (name, kind) in &self.parts.providers {
            let read = match kind {
                ProviderKind::Jwt(jwt) => jwt.reload(),
                ProviderKind::Http(service) => {
                    service.clear();
                    Ok(())
                }
                ProviderKind::Certificate { .. } | ProviderKind::Registry(_) => Ok(()),
            };
            if let Err(detail) = read {
                outcome = outcome.and(Err(AuthError::Provider { name: name.clone(), detail }));
            }
        }
        outcome
    }

    /// Reads the registries again, each whole or not at all. Returns how many log-ins they have
    /// revoked: their connections have to be ended.
    ///
    /// # Errors
    ///
    /// The first registry that cannot be used, with the number of all others; it stays in force.
    pub fn reload_registries(&self) -> (usize, Result<(), AuthError>) {
        let (mut revoked, mut outcome) = (0, Ok(()));
        for (name, kind) in &self.parts.providers {
            let ProviderKind::Registry(registry) = kind else { continue };
            match registry.reload() {
                Ok(count) => revoked += count,
                Err(detail) => {
                    let error = AuthError::Provider { name: name.clone(), detail };
                    outcome = outcome.and(Err(error));
                }
            }
        }
        (revoked, outcome)
    }

    /// Is there a registry?
    pub fn has_registry(&self) -> bool {
        let is_one = |(_, kind): &(String, ProviderKind)| matches!(kind, ProviderKind::Registry(_));
        self.parts.providers.iter().any(is_one)
    }

    /// Those of a listener, by their names; none: all that there are.
    pub fn chain(&self, names: &[String]) -> Chain {
        if names.is_empty() {
            return self.parts.whole.clone();
        }
        let providers = &self.parts.providers;
        let step = |name: &String| match &**name {
            FILE => Some(Step::File),
            name => providers.iter().position(|(own, _)| own == name).map(Step::Provider),
        };
        names.iter().filter_map(step).collect()
    }

    /// Asks who this is. `Some`: the verdict, at once. `None`: `answer` will be called with it,
    /// once.
    pub fn check(&self, mut request: AuthRequest, answer: Answer) -> Option<Verdict> {
        if request.has_unissued_certificate() {
            // Nobody has verified what it says, so that no other provider is to rely on it.
            let asked = request.chain.as_ref().unwrap_or(&self.parts.whole);
            request.chain = Some(self.registries_of(asked));
            (request.certificate_identity, request.allow_anonymous) = (None, false);
        }
        if let Some(identity) = request.certificate_identity.take() {
            return Some(Verdict::Admitted { username: Some(identity), principal: None });
        }
        let chain = request.chain.clone().unwrap_or_else(|| self.parts.whole.clone());
        files::forget_empty_name(&mut request, &chain);
        let (request, parts) = (Arc::new(request), self.parts.clone());
        let user = parts.users.hash_one(&request.username);
        let attempt = Arc::new(Attempt::new(&parts.pace, request.origin, user));
        let answer = Mutex::new(Some(answer));
        Arc::new(Asking { request, chain, parts, attempt, answer }).go_on(0, Missed::default())
    }

    /// The thumbprints of all registries of a chain, as they are at any time.
    pub fn thumbprints(&self, chain: &Chain) -> Vec<Thumbprints> {
        let registries = chain.iter().filter_map(|step| self.registry_of(*step));
        registries.map(Registry::thumbprints).collect()
    }

    fn registries_of(&self, chain: &Chain) -> Chain {
        chain.iter().copied().filter(|step| self.registry_of(*step).is_some()).collect()
    }

    fn registry_of(&self, step: Step) -> Option<&Registry> {
        let Step::Provider(place) = step else { return None };
        match self.parts.providers.get(place) {
            Some((_, ProviderKind::Registry(registry))) => Some(registry),
            _ => None,
        }
    }

    /// Those of a chain that take tokens, for [`TOKEN_METHOD`].
    pub fn chain_of_tokens(&self, chain: &Chain) -> Chain {
        let takes = |step: &Step| match step {
            Step::File => false,
            Step::Provider(place) => {
                matches!(self.parts.providers.get(*place), Some((_, ProviderKind::Jwt(_))))
            }
        };
        chain.iter().copied().filter(takes).collect()
    }

    /// Is the user name a token that one of the chain takes from there? Then it is a secret.
    pub fn is_token_in(&self, chain: &Chain, username: &str) -> bool {
        let takes = |step: &Step| match step {
            Step::File => false,
            Step::Provider(place) => match self.parts.providers.get(*place) {
                Some((_, ProviderKind::Jwt(jwt))) => jwt.takes_username(),
                _ => false,
            },
        };
        chain.iter().any(takes) && jwt::is_token(username)
    }

    /// A client that has come in with a token shows a newer one, in an AUTH packet. It has to be
    /// for the same provider, and to name the same user; a key that is not known is not waited for.
    pub fn renew(&self, ask: &Reauthenticate) -> Option<Box<Principal>> {
        let place = ask.provider?;
        let Some((name, ProviderKind::Jwt(jwt))) = self.parts.providers.get(place as usize) else {
            return None;
        };
        let request = AuthRequest {
            client_id: ask.client_id.as_ref().to_owned(),
            username: ask.username.as_deref().map(str::to_owned),
            password: Some(ask.data.to_vec()),
            has_token_method: true,
            ..AuthRequest::default()
        };
        let why = match jwt.ask_now(&request) {
            Opinion::Yes(proof) if proof.username.as_deref() == ask.username.as_deref() => {
                return self.parts.principal(&proof, Step::Provider(place as usize));
            }
            Opinion::Yes(_) => "the new token is for another user".into(),
            Opinion::No(why) => why,
            _ => "the password is not a token: re-authentication needs a JSON Web Token".into(),
        };
        let client = shown(&ask.client_id);
        tracing::debug!(client_id = &*client, provider = name, detail = why, "new token refused");
        None
    }

    /// The threads look whether memory is asked for.
    pub fn wake(&self) {
        self.parts.passwords.wake();
    }

    /// Who asked is gone: what waits is not checked, and nobody is answered.
    pub fn forget(&self, origin: Origin, ticket: u64) {
        self.parts.passwords.forget(origin, ticket);
        for (_, kind) in &self.parts.providers {
            match kind {
                ProviderKind::Jwt(jwt) => jwt.forget(ticket),
                ProviderKind::Http(service) => service.forget(origin, ticket),
                ProviderKind::Certificate { .. } | ProviderKind::Registry(_) => {}
            }
        }
    }

    /// A log-in with right credentials was refused for what it asked for: a failed one, too.
    pub fn note_refused(&self, origin: Origin) {
        lock(&self.parts.pace).count_failure(origin, Instant::now());
    }

    /// Begins enhanced authentication with the client's first message: the exchange and the data of
    /// the AUTH packet that answers it. Takes microseconds.
    ///
    /// # Errors
    ///
    /// See [`Exchange::start`].
    pub fn start_scram(&self, client_first: &[u8]) -> Result<(Exchange, Vec<u8>), ScramError> {
        self.parts.passwords.start_scram(client_first)
    }

    /// Ends an exchange with the client's final message. Of those that were wrong only so many of
    /// an origin are heard in a second.
    ///
    /// # Errors
    ///
    /// For the CONNACK: 0x87 or 0x89.
    pub fn finish_scram(
        &self,
        origin: Origin,
        exchange: Exchange,
        client_final: &[u8],
    ) -> Result<Success, Reason> {
        self.parts.passwords.finish_scram(origin, exchange, client_final)
    }

    /// What is known of a user whose password was right, beyond the name.
    ///
    /// # Errors
    ///
    /// The user is registered, and disabled.
    pub fn registered(&self, username: &str) -> Result<Option<Box<Principal>>, Denial> {
        let mut proof = Proof { username: Some(username.to_owned()), ..Proof::default() };
        match self.parts.add_registered(&mut proof) {
            Ok(()) => Ok(self.parts.principal(&proof, Step::File)),
            Err(reason) => Err(Denial { provider: FILE.to_owned(), reason: reason.to_owned() }),
        }
    }

    /// Whether the method [`scram::METHOD`] is offered.
    pub fn offers_scram(&self) -> bool {
        self.offers_scram && self.parts.passwords.has_file()
    }
}

impl Drop for Authenticator {
    fn drop(&mut self) {
        for (_, kind) in &self.parts.providers {
            match kind {
                ProviderKind::Jwt(jwt) => jwt.close(),
                ProviderKind::Http(service) => service.close(),
                ProviderKind::Certificate { .. } | ProviderKind::Registry(_) => {}
            }
        }
        self.passwords.end(&self.parts.passwords);
    }
}

impl Parts {
    /// A log-in has ended for which another of its address has waited.
    fn wake_waiting(&self) {
        self.passwords.wake();
        for (_, kind) in &self.providers {
            if let ProviderKind::Http(service) = kind {
                service.wake();
            }
        }
    }

    fn is_service(&self, step: Step) -> bool {
        let Step::Provider(place) = step else { return false };
        matches!(self.providers.get(place), Some((_, ProviderKind::Http(_))))
    }

    /// The attributes that a registry has of a user of the password file. The first that knows the
    /// user counts; one that has disabled it does in any case.
    fn add_registered(&self, proof: &mut Proof) -> Result<(), &'static str> {
        let Some(username) = &proof.username else { return Ok(()) };
        let mut known = None;
        for (_, kind) in &self.providers {
            let ProviderKind::Registry(registry) = kind else { continue };
            let (user, revocation) = registry.user(username);
            match user {
                User::Unknown => {}
                User::Known(client) => {
                    known.get_or_insert(client);
                }
                User::Disabled => return Err(DISABLED),
            }
            proof.revocations.push(revocation);
        }
        if let Some(client) = known {
            proof.attributes = client.attributes.clone();
        }
        Ok(())
    }

    /// What a proof says beyond a user name; None: nothing.
    fn principal(&self, proof: &Proof, step: Step) -> Option<Box<Principal>> {
        let (now_ms, wall_secs) = (self.clock.now_ms(), self.clock.wall_secs());
        let broker_ms = |secs: u64| {
            now_ms.saturating_add(secs.min(LATEST_SECS).saturating_sub(wall_secs) * 1000)
        };
        let mut principal = jwt::principal(proof, proof.expires_at_secs.map(broker_ms))?;
        principal.provider = match step {
            Step::File => None,
            Step::Provider(place) => u32::try_from(place).ok(),
        };
        Some(principal)
    }
}

impl Drop for Asking {
    /// Without a verdict its client has left.
    fn drop(&mut self) {
        self.end(None);
    }
}

impl Asking {
    /// What the log-in was for the pace of its address.
    fn end(&self, is_right: Option<bool>) {
        if self.attempt.end(is_right) {
            self.parts.wake_waiting();
        }
    }

    /// Asks from one place of the chain on. `None`: somebody will answer later.
    fn go_on(self: &Arc<Self>, from: usize, mut missed: Missed) -> Option<Verdict> {
        for (at, step) in self.chain.iter().enumerate().skip(from) {
            let is_last = at + 1 == self.chain.len();
            let later: Later = {
                let asking = self.clone();
                Box::new(move |opinion| asking.on_opinion(at, opinion, missed))
            };
            match self.conclude(*step, self.ask(*step, is_last, later)?, missed) {
                Ok(verdict) => return Some(verdict),
                Err(all) => missed = all,
            }
        }
        let verdict = self.nobody_knows(missed);
        // A guess at one service is one, also while another service is away.
        let was_unreachable = missed.was_down && !missed.was_unclear && !missed.was_refused;
        self.end(Some(was_unreachable || !matches!(verdict, Verdict::Refused(_))));
        Some(verdict)
    }

    fn on_opinion(self: &Arc<Self>, at: usize, opinion: Opinion, missed: Missed) {
        let verdict = match self.conclude(self.chain[at], opinion, missed) {
            Ok(verdict) => Some(verdict),
            Err(missed) => self.go_on(at + 1, missed),
        };
        let answer = verdict.and_then(|verdict| Some((lock(&self.answer).take()?, verdict)));
        if let Some((answer, verdict)) = answer {
            answer(verdict);
        }
    }

    fn ask(&self, step: Step, is_last: bool, later: Later) -> Option<Opinion> {
        if self.attempt.enter(step) {
            self.parts.wake_waiting();
        }
        let kind = match step {
            Step::File => {
                return self.parts.passwords.ask(&self.request, &self.attempt, is_last, later);
            }
            Step::Provider(place) => self.parts.providers.get(place).map(|(_, kind)| kind),
        };
        match kind {
            Some(ProviderKind::Jwt(jwt)) => jwt.ask(&self.request, later),
            Some(ProviderKind::Http(service)) => service.ask(&self.request, &self.attempt, later),
            Some(ProviderKind::Certificate { username, attributes }) => {
                Some(by_certificate(&self.request, username, attributes))
            }
            Some(ProviderKind::Registry(registry)) => Some(registry.ask(&self.request)),
            None => Some(Opinion::NotMine),
        }
    }

    /// Err: the next is asked, and what was missed up to now.
    fn conclude(&self, step: Step, opinion: Opinion, missed: Missed) -> Result<Verdict, Missed> {
        let name = match step {
            Step::File => FILE,
            Step::Provider(place) => self.parts.providers.get(place).map_or("", |(name, _)| name),
        };
        let opinion = match opinion {
            Opinion::Yes(mut proof) if step == Step::File => {
                match self.parts.add_registered(&mut proof) {
                    Ok(()) => Opinion::Yes(proof),
                    Err(why) => Opinion::No(why.into()),
                }
            }
            opinion => opinion,
        };
        match opinion {
            Opinion::Yes(proof) => {
                self.end(Some(true));
                let principal = self.parts.principal(&proof, step);
                Ok(Verdict::Admitted { username: proof.username, principal })
            }
            Opinion::No(why) => {
                self.log_refused(name, &why);
                self.end(Some(false));
                let denial = Denial { provider: name.to_owned(), reason: shown(&why).into_owned() };
                Ok(Verdict::Denied(Box::new(denial)))
            }
            Opinion::Busy => Ok(Verdict::Refused(Reason::SERVER_BUSY)),
            Opinion::NotMine => {
                let was_refused = missed.was_refused || self.parts.is_service(step);
                Err(Missed { was_refused, ..missed })
            }
            Opinion::Down => Err(Missed { was_down: true, ..missed }),
            Opinion::Unclear => Err(Missed { was_unclear: true, ..missed }),
        }
    }

    /// The reason goes into the log, and not to the client.
    fn log_refused(&self, name: &str, why: &str) {
        let (client, why) = (shown(&self.request.client_id), shown(why));
        let now_secs = self.parts.clock.wall_secs();
        if lock(&self.parts.refusal_lines).allows(&client, name, &why, now_secs) {
            tracing::info!(client_id = &*client, provider = name, detail = &*why, "login refused");
        } else {
            tracing::debug!(client_id = &*client, provider = name, detail = &*why, "login refused");
        }
    }

    /// The chain has come to its end. Who could have been known if all had been there may try
    /// again.
    fn nobody_knows(&self, missed: Missed) -> Verdict {
        let is_open = self.chain.is_empty();
        let has_no_credential = self.request.password.is_none();
        match &self.request.username {
            _ if missed.was_down || missed.was_unclear => {
                Verdict::Refused(Reason::SERVER_UNAVAILABLE)
            }
            Some(username) if is_open && self.request.allow_anonymous => {
                Verdict::Unproved { username: username.clone() }
            }
            // A credential that nobody takes is a wrong one.
            None if self.request.allow_anonymous && (is_open || has_no_credential) => {
                Verdict::Admitted { username: None, principal: None }
            }
            _ => Verdict::Refused(Reason::NOT_AUTHORIZED),
        }
    }
}

/// Reads the files of providers, for the check of a configuration.
///
/// # Errors
///
/// The first that cannot be used.
pub fn check_files(providers: &[Provider]) -> Result<(), AuthError> {
    for provider in providers {
        let fail = |detail| AuthError::Provider { name: provider.name.clone(), detail };
        match &provider.method {
            Method::Jwt(config) => {
                jwks::load(config).map_err(fail)?;
                jwks::client(config).map_err(fail)?;
            }
            Method::Http(config) => {
                request::client(config).map_err(fail)?;
            }
            Method::Certificate { .. } => {}
            Method::Registry(config) => drop(Registry::load(config).map_err(fail)?),
        }
    }
    Ok(())
}

/// The certificate has been checked by TLS already.
fn by_certificate(
    request: &AuthRequest,
    username: &Template,
    attributes: &[(String, Template)],
) -> Opinion {
    if request.certificate.is_none() {
        return Opinion::NotMine;
    }
    let value = |name: &str| value_of(request, name);
    let Some(username) = username.fill(value).filter(|name| is_name(name)) else {
        return Opinion::No("the certificate lacks the field for the username".into());
    };
    let own = attributes.iter().filter_map(|(name, template)| {
        let text = template.fill(value)?;
        Some((name.as_str().into(), policy::Attribute::Text(text.into())))
    });
    match jwt::attributes_of(None, own) {
        Ok(attributes) => {
            Opinion::Yes(Proof { username: Some(username), attributes, ..Proof::default() })
        }
        Err(why) => Opinion::No(why),
    }
}

/// The year 9999: beyond what any arithmetic with times has to carry.
const LATEST_SECS: u64 = 253_402_300_799;

/// What these locks guard is whole between any two statements, so a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
