//! Tokens as a provider, and where their keys come from: files, secrets, and key sets that are
//! fetched.
//!
//! A token that names a key which is not known has the key set fetched anew, and waits for that:
//! keys rotate. That happens at most every ten seconds, whatever tokens name; the set is fetched
//! at its own pace, too. One that cannot be fetched leaves the keys that there are in force, and
//! until it can be again, no token waits for it: the next provider is asked.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use tokio::runtime::Handle;

use super::fetch::{AskError, Client, Question};
use super::jwt::{Outcome, check};
use super::keys::KeySet;
use super::{AuthRequest, Later, Opinion, lock};
use base::Clock;
use config::{JwtConfig, TokenField};
use driver::Origin;

/// How often a key set is fetched at most, whoever asks for keys that it does not have.
const FETCH_EVERY_MIN: Duration = Duration::from_secs(10);

/// Tokens that wait for a key set. For further ones it is down: the next provider is asked.
const WAITING_MAX: usize = 10_000;

/// The part of these that one origin may have.
const ORIGIN_PART: usize = 16;

/// Tokens that are checked in one go, so that others on the thread get their turn.
const CHECKS_PER_TURN: usize = 32;

const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks tokens with keys that may change meanwhile.
pub(super) struct Jwt {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    config: JwtConfig,
    clock: Clock,
    /// Those of files, and those that were fetched last.
    keys: RwLock<(Arc<KeySet>, Arc<KeySet>)>,
    remote: Option<(Client, Handle)>,
    fetching: Mutex<Fetching>,
}

#[derive(Default)]
struct Fetching {
    is_under_way: bool,
    began: Option<Instant>,
    /// The key set has been there at least once.
    has_set: bool,
    /// The last time it could not be fetched.
    has_failed: bool,
    waiting: Queue,
    is_closed: bool,
}

/// Tokens that wait, with how many there are of each origin.
#[derive(Default)]
struct Queue {
    tokens: VecDeque<PendingToken>,
    of_origin: HashMap<Origin, usize>,
}

struct PendingToken {
    request: Arc<AuthRequest>,
    later: Later,
}

impl Jwt {
    /// Reads the keys of files, and begins to fetch the others.
    ///
    /// # Errors
    ///
    /// A file that cannot be used.
    pub(super) fn start(
        name: &str,
        config: &JwtConfig,
        handle: Option<&Handle>,
        clock: Clock,
    ) -> Result<Self, String> {
        let keys = RwLock::new((Arc::new(load(config)?), Arc::default()));
        let remote = client(config)?.zip(handle.cloned());
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            config: config.clone(),
            clock,
            keys,
            remote,
            fetching: Mutex::default(),
        });
        if let Some((_, handle)) = &shared.remote {
            let keeping = shared.clone();
            handle.spawn(async move { keeping.keep_fresh().await });
        }
        Ok(Self { shared })
    }

    /// Reads the keys of files again, and fetches the others; those that cannot be used change
    /// nothing.
    pub(super) fn reload(&self) -> Result<(), String> {
        let files = Arc::new(load(&self.shared.config)?);
        self.shared.keys.write().unwrap_or_else(PoisonError::into_inner).0 = files;
        lock(&self.shared.fetching).began = None;
        self.shared.fetch_soon();
        Ok(())
    }

    pub(super) fn ask(&self, request: &Arc<AuthRequest>, later: Later) -> Option<Opinion> {
        match self.shared.check(request) {
            Outcome::NoKey if self.shared.remote.is_some() => {
                self.shared.wait_for_keys(request.clone(), later)
            }
            outcome => Some(outcome.into()),
        }
    }

    /// Are tokens in the user name?
    pub(super) fn takes_username(&self) -> bool {
        self.shared.config.demands.from == Some(TokenField::Username)
    }

    /// Without waiting for keys.
    pub(super) fn ask_now(&self, request: &AuthRequest) -> Opinion {
        self.shared.check(request).into()
    }

    pub(super) fn forget(&self, ticket: u64) {
        if self.shared.remote.is_some() {
            let gone = lock(&self.shared.fetching).waiting.remove(ticket);
            drop(gone);
        }
    }

    /// What waits is answered; nothing is fetched any more.
    pub(super) fn close(&self) {
        let waiting = {
            let mut fetching = lock(&self.shared.fetching);
            fetching.is_closed = true;
            std::mem::take(&mut fetching.waiting)
        };
        for waiting in waiting.tokens {
            (waiting.later)(Opinion::Busy);
        }
    }
}

impl Shared {
    fn check(&self, request: &AuthRequest) -> Outcome {
        let (files, fetched) = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        let now_secs = self.clock.wall_secs();
        check(request, &[&files, &fetched], &self.config.demands, now_secs)
    }

    fn wait_for_keys(self: &Arc<Self>, request: Arc<AuthRequest>, later: Later) -> Option<Opinion> {
        let at_once = lock(&self.fetching).wait(PendingToken { request, later });
        self.fetch_soon();
        at_once
    }

    fn fetch_soon(self: &Arc<Self>) {
        if let Some((_, handle)) = &self.remote
            && lock(&self.fetching).begin()
        {
            let shared = self.clone();
            handle.spawn(async move { shared.fetch().await });
        }
    }

    async fn keep_fresh(self: Arc<Self>) {
        loop {
            let mut pause = Duration::from_secs(self.config.jwks_refresh_secs.into());
            let begins = {
                let mut fetching = lock(&self.fetching);
                if fetching.is_closed {
                    return;
                }
                fetching.begin()
            };
            if begins && !self.fetch().await {
                pause = pause.min(FETCH_EVERY_MIN);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Whoever calls it has begun. True: the key set is there.
    async fn fetch(self: &Arc<Self>) -> bool {
        let fetched = self.fetch_keys().await;
        let is_there = match fetched {
            Ok(keys) => {
                self.keys.write().unwrap_or_else(PoisonError::into_inner).1 = Arc::new(keys);
                tracing::debug!(provider = self.name, "key set fetched");
                true
            }
            Err(why) => {
                let why = base::shown(&why);
                let text = "cannot fetch the key set; the present keys stay in use";
                tracing::warn!(provider = self.name, detail = &*why, "{text}");
                false
            }
        };
        let waiting = {
            let mut fetching = lock(&self.fetching);
            fetching.note_fetched(is_there);
            std::mem::take(&mut fetching.waiting)
        };
        for (number, waiting) in waiting.tokens.into_iter().enumerate() {
            if number % CHECKS_PER_TURN == CHECKS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
            (waiting.later)(match self.check(&waiting.request) {
                Outcome::NoKey if !is_there => Opinion::Down,
                outcome => outcome.into(),
            });
        }
        is_there
    }

    async fn fetch_keys(&self) -> Result<KeySet, String> {
        let Some((client, _)) = &self.remote else { return Ok(KeySet::default()) };
        let target = self.config.jwks_url.as_ref().map_or_else(String::new, |it| it.path.clone());
        let (headers, body) = (HeaderMap::new(), String::new());
        let question = Question { is_get: true, target, headers, content_type: "", body };
        let reply = client.ask(&question).await.map_err(AskError::into_text)?;
        if reply.status != hyper::StatusCode::OK {
            return Err(format!("it answers {}", reply.status));
        }
        let keys = KeySet::of_public_jwks(&reply.body)?;
        // An empty one is what a service shows that has lost its keys, not one that has new ones.
        if keys.is_empty() { Err("the key set has no key for signatures".into()) } else { Ok(keys) }
    }
}

impl Fetching {
    fn may_begin(&self) -> bool {
        let is_early = self.began.is_some_and(|began| began.elapsed() < FETCH_EVERY_MIN);
        !self.is_under_way && !self.is_closed && !is_early
    }

    /// True: the caller fetches.
    fn begin(&mut self) -> bool {
        let begins = self.may_begin();
        if begins {
            self.is_under_way = true;
            self.began = Some(Instant::now());
        }
        begins
    }

    fn note_fetched(&mut self, is_there: bool) {
        self.is_under_way = false;
        self.has_set |= is_there;
        self.has_failed = !is_there;
    }

    /// `None`: the token waits for the set that is fetched, or soon is. Where the set could not be
    /// fetched the last time, no token waits: that could take as long as the time-out.
    fn wait(&mut self, token: PendingToken) -> Option<Opinion> {
        let is_awaited = self.is_under_way || self.may_begin();
        if !is_awaited || self.has_failed {
            return Some(self.without_key());
        }
        // There may be such a key: where nobody else knows the client, it may try again.
        self.waiting.push(token).err().map(|_| Opinion::Down)
    }

    /// A set that cannot be fetched may have the key by now.
    fn without_key(&self) -> Opinion {
        let is_current = self.has_set && !self.has_failed;
        if is_current { Outcome::NoKey.into() } else { Opinion::Down }
    }
}

impl Queue {
    /// Err: it is full, or its origin has its part of it.
    fn push(&mut self, token: PendingToken) -> Result<(), PendingToken> {
        let origin = token.request.origin;
        let own = self.of_origin.get(&origin).copied().unwrap_or(0);
        if self.tokens.len() >= WAITING_MAX || own >= WAITING_MAX / ORIGIN_PART {
            return Err(token);
        }
        self.of_origin.insert(origin, own + 1);
        self.tokens.push_back(token);
        Ok(())
    }

    /// To be dropped without the lock.
    fn remove(&mut self, ticket: u64) -> Option<PendingToken> {
        let place = self.tokens.iter().position(|token| token.request.ticket == ticket)?;
        let gone = self.tokens.remove(place)?;
        if let Some(own) = self.of_origin.get_mut(&gone.request.origin) {
            *own -= 1;
            if *own == 0 {
                self.of_origin.remove(&gone.request.origin);
            }
        }
        Some(gone)
    }
}

/// Fetches the key set, if there is one to fetch. Also for the check of a configuration.
pub(super) fn client(config: &JwtConfig) -> Result<Option<Client>, String> {
    let ca = config.ca.as_deref();
    let client = |url| Client::new(url, &[], ca, FETCH_TIMEOUT, 1);
    config.jwks_url.as_ref().map(client).transpose()
}

/// The keys of all files. Also for the check of a configuration.
pub(super) fn load(config: &JwtConfig) -> Result<KeySet, String> {
    let mut keys = KeySet::default();
    if let Some(path) = &config.secret_file {
        let bytes = read(path)?;
        // Editors end a file with a line break, which nobody means to be part of the secret.
        let secret = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        let decoded = match config.secret_base64_encoded {
            true => Some(STANDARD.decode(secret).map_err(|error| {
                in_file(path)(format!("secret_base64_encoded needs base64 with padding: {error}"))
            })?),
            false => None,
        };
        let secret = decoded.as_deref().unwrap_or(secret);
        keys.append(KeySet::of_secret(secret).map_err(in_file(path))?);
    }
    if let Some(path) = &config.key_file {
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        keys.append(KeySet::of_pem(&text).map_err(in_file(path))?);
    }
    if let Some(path) = &config.jwks_file {
        let listed = KeySet::of_jwks(&read(path)?).map_err(in_file(path))?;
        if listed.is_empty() {
            return Err(in_file(path)("the key set has no key for signatures".into()));
        }
        keys.append(listed);
    }
    Ok(keys)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| in_file(path)(error.to_string()))
}

fn in_file(path: &Path) -> impl Fn(String) -> String + '_ {
    move |detail| format!("{}: {detail}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);

    fn token(origin: Origin, ticket: u64) -> PendingToken {
        let request = AuthRequest { origin, ticket, ..AuthRequest::default() };
        PendingToken { request: Arc::new(request), later: Box::new(|_| {}) }
    }

    #[test]
    fn a_secret_may_be_base64() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let load_as = |text: String, encoded| {
            std::fs::write(&path, text).unwrap();
            let config = JwtConfig {
                secret_file: Some(path.clone()),
                secret_base64_encoded: encoded,
                ..JwtConfig::default()
            };
            load(&config).map(|keys| !keys.is_empty())
        };
        let long = STANDARD.encode([7; 32]);
        assert_eq!(load_as(format!("{long}\n"), true), Ok(true));
        assert_eq!(load_as(long.clone(), false), Ok(true), "the text itself is the secret");
        let short = STANDARD.encode([7; 31]);
        assert!(short.len() > 32 && load_as(short.clone(), false).is_ok());
        assert!(load_as(short, true).unwrap_err().contains("at least 32 bytes"));
        for wrong in [long.trim_end_matches('=').to_owned(), format!("-{long}"), "\u{e4}".into()] {
            assert!(load_as(wrong, true).unwrap_err().contains("base64 with padding"));
        }
    }

    #[test]
    fn no_token_waits_for_a_set_that_could_not_be_fetched() {
        let mut fetching = Fetching::default();
        assert!(fetching.begin());
        assert_eq!(fetching.wait(token(ONE, 1)), None, "the first set is waited for");
        fetching.note_fetched(true);
        assert_eq!(fetching.wait(token(ONE, 2)), Some(Opinion::NotMine), "the set is current");
        fetching.began = None;
        assert_eq!(fetching.wait(token(ONE, 3)), None, "it may have changed");
        assert!(fetching.begin());
        fetching.note_fetched(false);
        assert_eq!(fetching.wait(token(ONE, 4)), Some(Opinion::Down), "it may have the key by now");
        fetching.began = None;
        assert_eq!(fetching.wait(token(ONE, 5)), Some(Opinion::Down), "a fetch may begin");
        assert!(fetching.begin());
        assert_eq!(fetching.wait(token(ONE, 6)), Some(Opinion::Down), "a fetch hangs");
        fetching.note_fetched(true);
        assert_eq!(fetching.wait(token(ONE, 7)), Some(Opinion::NotMine), "it is current again");
        let mut fetching = Fetching { has_failed: true, is_under_way: true, ..Fetching::default() };
        assert_eq!(fetching.wait(token(ONE, 8)), Some(Opinion::Down), "there never was a set");
    }

    #[test]
    fn one_origin_has_a_part_of_the_tokens_that_wait() {
        let mut fetching = Fetching { is_under_way: true, ..Fetching::default() };
        let part = (WAITING_MAX / ORIGIN_PART) as u64;
        for ticket in 0..part {
            assert_eq!(fetching.wait(token(ONE, ticket)), None);
        }
        assert_eq!(fetching.wait(token(ONE, part)), Some(Opinion::Down), "0x88 at the end");
        assert!(fetching.waiting.remove(7).is_some() && fetching.waiting.remove(7).is_none());
        assert_eq!(fetching.wait(token(ONE, part)), None, "one has left");
        let mut waiting = part as usize;
        for number in 0..=WAITING_MAX as u32 {
            let other = Origin::V4((0x0A00_0000 + number).to_be_bytes());
            waiting += usize::from(fetching.wait(token(other, 1_000_000)).is_none());
        }
        assert_eq!(waiting, WAITING_MAX);
        for ticket in (0..=part).filter(|ticket| *ticket != 7) {
            assert!(fetching.waiting.remove(ticket).is_some());
        }
        assert!(!fetching.waiting.of_origin.contains_key(&ONE));
    }
}
