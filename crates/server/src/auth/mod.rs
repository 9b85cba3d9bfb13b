//! Who a client is: an asynchronous question, asked at the door and answered through a callback.
//!
//! Checking a password costs tens of milliseconds of one core, and later back-ends will wait for
//! other machines. So the door only hands a question over ([`Authenticator::check`]) and goes on;
//! the answer comes from another thread. What can be answered at once is: anonymous clients,
//! identities proved by TLS, and credentials that were right a moment ago.

pub mod acl_file;
mod cache;
mod lanes;
mod pace;
pub mod passwords;
mod random;
pub mod scram;
pub mod secret;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codec::Reason;

use crate::config::Auth;
use crate::memory;
use crate::origin::Origin;
use cache::{Digest, VerdictCache};
use lanes::{Asks, Lanes, Next};
use pace::Pace;
use passwords::{PasswordFile, PasswordFileError};
pub use random::random;
use scram::{Credentials, Exchange, ScramError, Success};

/// Who knocks, and what they show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthRequest {
    /// Where it comes from: origins take turns.
    pub origin: Origin,
    /// Of the one who asks, for [`Authenticator::forget`].
    pub ticket: u64,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    /// The user name that a checked client certificate stands for, where the listener takes it.
    pub certificate_identity: Option<String>,
    /// Whether the listener admits clients that show nothing.
    pub allow_anonymous: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Welcome, under this user name (`None`: anonymous).
    Admitted { username: Option<String> },
    /// Welcome, as anonymous: nobody can check the name that is stated.
    Unproved { username: String },
    /// For the CONNACK: 0x86, 0x87 or 0x89.
    Refused(Reason),
}

/// Takes the verdict on whatever thread reached it. It should only put it somewhere and wake the
/// door.
pub type Answer = Box<dyn FnOnce(Verdict) + Send>;

/// Checks credentials on threads of its own. Dropping it ends them; questions that still wait are
/// answered with 0x89.
pub struct Authenticator {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    offers_scram: bool,
}

struct Shared {
    /// Makes the decoys of users that do not exist, see [`Credentials::decoy`]. `None`: the digest
    /// of the password file does.
    decoy_secret: Option<[u8; 32]>,
    /// `None`: there is no password file, so nobody can show a right password.
    passwords: RwLock<Option<Arc<PasswordFile>>>,
    cache: Mutex<VerdictCache>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Makes numbers of user names.
    users: RandomState,
}

struct Queue {
    questions: Lanes<Question>,
    is_closed: bool,
}

/// One password to check.
struct Question {
    username: String,
    password: Vec<u8>,
    digest: Digest,
    /// See [`Asks`].
    user: u64,
    answer: Answer,
}

impl Asks for Question {
    fn user(&self) -> u64 {
        self.user
    }
}

impl Authenticator {
    /// Reads the password file and starts the threads. What clients see of users that do not exist
    /// is made from `decoy_secret`, so that it stays the same as long as that does; without one, as
    /// long as the password file does.
    ///
    /// # Errors
    ///
    /// When the password file cannot be used.
    pub fn start(config: &Auth, decoy_secret: Option<[u8; 32]>) -> Result<Self, PasswordFileError> {
        let passwords = load(config)?;
        let lifetime = Duration::from_secs(config.cache_secs.into());
        let cache = VerdictCache::new(config.cache_entries_max as usize, lifetime, Instant::now());
        let pace = Pace::new(config.failures_per_second_max);
        let questions = Lanes::new(config.queue_max as usize, pace);
        let shared = Arc::new(Shared {
            decoy_secret,
            passwords: RwLock::new(passwords),
            cache: Mutex::new(cache),
            queue: Mutex::new(Queue { questions, is_closed: false }),
            wake: Condvar::new(),
            users: RandomState::new(),
        });
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("auth-{index}")).spawn(move || work(&shared))
        };
        let path = || config.password_file.as_deref().unwrap_or_else(|| "".as_ref());
        let threads =
            (0..config.threads).map(spawn).collect::<Result<_, _>>().map_err(|cause| {
                PasswordFileError::Read { path: path().display().to_string(), cause }
            })?;
        Ok(Self { shared, threads, offers_scram: config.scram })
    }

    /// Reads the password file again and forgets remembered verdicts.
    ///
    /// # Errors
    ///
    /// When the new file cannot be used; the old one then stays in force.
    pub fn reload(&self, config: &Auth) -> Result<(), PasswordFileError> {
        let passwords = load(config)?;
        *self.shared.passwords.write().unwrap_or_else(PoisonError::into_inner) = passwords;
        lock(&self.shared.cache).clear();
        Ok(())
    }

    /// Asks who this is. `Some`: the verdict, at once. `None`: `answer` will be called with it,
    /// once.
    pub fn check(&self, request: AuthRequest, answer: Answer) -> Option<Verdict> {
        let AuthRequest { origin, ticket, username, password, certificate_identity, .. } = request;
        let allow_anonymous = request.allow_anonymous;
        if let Some(identity) = certificate_identity {
            return Some(Verdict::Admitted { username: Some(identity) });
        }
        let has_file = self.passwords().is_some();
        let username = match username {
            Some(username) if has_file => username,
            Some(username) if allow_anonymous => return Some(Verdict::Unproved { username }),
            None if allow_anonymous => return Some(Verdict::Admitted { username: None }),
            _ => return Some(Verdict::Refused(Reason::NOT_AUTHORIZED)),
        };
        let password = password.unwrap_or_default();
        let mut cache = lock(&self.shared.cache);
        let digest = cache.digest(&username, &password);
        if cache.knows(&digest, Instant::now()) {
            return Some(Verdict::Admitted { username: Some(username) });
        }
        drop(cache);
        let user = self.shared.users.hash_one(&username);
        self.ask(origin, ticket, Question { username, password, digest, user, answer });
        None
    }

    fn ask(&self, origin: Origin, ticket: u64, question: Question) {
        let crowded_out = lock(&self.shared.queue).questions.put(origin, ticket, question);
        self.shared.wake.notify_one();
        if let Some(question) = crowded_out {
            (question.answer)(Verdict::Refused(Reason::SERVER_BUSY));
        }
    }

    /// The threads look whether memory is asked for.
    pub fn wake(&self) {
        self.shared.wake.notify_all();
    }

    /// Who asked is gone: what waits is not checked, and nobody is answered.
    pub fn forget(&self, origin: Origin, ticket: u64) {
        drop(lock(&self.shared.queue).questions.forget(origin, ticket));
    }

    /// Begins enhanced authentication with the client's first message: the exchange and the data of
    /// the AUTH packet that answers it. Takes microseconds.
    ///
    /// # Errors
    ///
    /// See [`Exchange::start`].
    pub fn start_scram(&self, client_first: &[u8]) -> Result<(Exchange, Vec<u8>), ScramError> {
        let passwords = self.passwords();
        let nonce = random::<18>().map(|byte| char::from(NONCE_ALPHABET[usize::from(byte % 64)]));
        let nonce: String = nonce.iter().collect();
        Exchange::start(client_first, &nonce, |username| {
            let Some(file) = &passwords else {
                // Nobody can be checked; the method is not offered then.
                return Credentials::decoy(&random(), username);
            };
            // Made in any case: what takes longer for some names tells which they are.
            let decoy = file.scram_decoy(username, &self.shared.decoy_secret(file));
            file.scram(username).cloned().unwrap_or(decoy)
        })
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
        let now = Instant::now();
        if lock(&self.shared.queue).questions.pace.begin(origin, now).is_err() {
            return Err(Reason::SERVER_BUSY);
        }
        let finished = exchange.finish(client_final);
        lock(&self.shared.queue).questions.pace.end(origin, finished.is_ok(), now);
        self.shared.wake.notify_one();
        finished.map_err(|error| {
            tracing::debug!(%error, "SCRAM failed");
            Reason::NOT_AUTHORIZED
        })
    }

    /// Whether the method [`scram::METHOD`] is offered.
    pub fn offers_scram(&self) -> bool {
        self.offers_scram && self.passwords().is_some()
    }

    fn passwords(&self) -> Option<Arc<PasswordFile>> {
        self.shared.passwords.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Authenticator {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = lock(&self.shared.queue);
            queue.is_closed = true;
            queue.questions.take_all()
        };
        self.shared.wake.notify_all();
        for question in waiting {
            (question.answer)(Verdict::Refused(Reason::SERVER_BUSY));
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so itself.
            let _ = thread.join();
        }
    }
}

fn load(config: &Auth) -> Result<Option<Arc<PasswordFile>>, PasswordFileError> {
    let path = config.password_file.as_deref();
    path.map(|path| PasswordFile::load(path).map(Arc::new)).transpose()
}

/// An auth thread: takes questions until the queue is closed.
fn work(shared: &Shared) {
    while let Some((origin, question)) = next_question(shared) {
        let passwords = shared.passwords.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Question { username, password, digest, answer, .. } = question;
        let is_right = passwords
            .as_ref()
            .is_some_and(|file| file.verify(&username, &password, &shared.decoy_secret(file)));
        lock(&shared.queue).questions.pace.end(origin, is_right, Instant::now());
        // Another of this origin may have waited for it.
        shared.wake.notify_one();
        if is_right {
            shared.remember(digest, passwords.as_ref());
            answer(Verdict::Admitted { username: Some(username) });
        } else {
            // As mosquitto answers. Code 4 of 3.1.1 is for a name that is not well formed.
            answer(Verdict::Refused(Reason::NOT_AUTHORIZED));
        }
    }
}

impl Shared {
    fn decoy_secret(&self, file: &PasswordFile) -> [u8; 32] {
        self.decoy_secret.unwrap_or_else(|| file.digest())
    }

    /// Unless a reload came in between, which may have changed this very password.
    fn remember(&self, digest: Digest, checked_with: Option<&Arc<PasswordFile>>) {
        let passwords = self.passwords.read().unwrap_or_else(PoisonError::into_inner);
        let is_current = match (passwords.as_ref(), checked_with) {
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            _ => false,
        };
        if is_current {
            lock(&self.cache).remember(digest, Instant::now());
        }
    }
}

fn next_question(shared: &Shared) -> Option<(Origin, Question)> {
    loop {
        memory::purge_if_asked();
        let mut queue = lock(&shared.queue);
        if queue.is_closed {
            return None;
        }
        let now = Instant::now();
        drop(match queue.questions.take(now) {
            Next::Item(origin, question) => return Some((origin, question)),
            Next::Later(None) => shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Next::Later(Some(due)) => {
                let wait = due.saturating_duration_since(now).max(Duration::from_millis(1));
                let woken = shared.wake.wait_timeout(queue, wait);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        });
    }
}

/// What these locks guard is whole between any two statements, so a panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Printable and without a comma, as RFC 5802 asks.
const NONCE_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
