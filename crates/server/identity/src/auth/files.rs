//! The password file as a provider: passwords are hashed on threads of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codec::Reason;

use super::cache::{Digest, VerdictCache};
use super::doubts::Standing;
use super::fair_queue::{Asks, FairQueue, Next};
use super::pace::{Attempt, Pace};
use super::passwords::{PasswordFile, PasswordFileError, Scratch};
use super::scram::{Credentials, Exchange, ScramError, Success};
use super::{AuthRequest, Later, Opinion, Proof, Step, lock};
use base::memory;
use base::random;
use config::Auth;
use driver::Origin;

/// Where clients without a name are admitted, one that states an empty name has none, as in
/// mosquitto: a password file has no password for it, so there is nothing to check. Another
/// provider may take what comes with it.
pub(super) fn forget_empty_name(request: &mut AuthRequest, chain: &[Step]) {
    let is_empty = request.username.as_deref() == Some("");
    if is_empty && request.allow_anonymous && chain.iter().all(|step| *step == Step::File) {
        (request.username, request.password) = (None, None);
    }
}

/// Checks passwords.
#[derive(Clone)]
pub(super) struct Passwords {
    shared: Arc<Shared>,
}

/// The threads that do, to be ended in order.
pub(super) struct Threads(Vec<JoinHandle<()>>);

/// So many bytes of memory are for password checks, as a part of `memory_bytes_max`: where each
/// takes much, fewer are done at a time, and one in any case.
const CHECKS_PART: u64 = 8;

/// A thread that has checked nothing for so long gives back what that took. Not sooner: the next
/// check would pay for getting it again, as much as for half a hash.
const GIVES_BACK_AFTER: Duration = Duration::from_millis(250);

/// No thread sleeps for less.
const WAIT_LEAST: Duration = Duration::from_millis(1);

struct Shared {
    /// Makes the decoys of users that do not exist, see [`Credentials::decoy`]. `None`: the digest
    /// of the password file does.
    decoy_secret: Option<[u8; 32]>,
    /// `None`: there is no password file, so nobody can show a right password.
    passwords: RwLock<Option<Arc<PasswordFile>>>,
    cache: Mutex<VerdictCache>,
    queue: Mutex<Queue>,
    wake: Condvar,
    pace: Arc<Mutex<Pace>>,
    threads: usize,
    memory_bytes_max: AtomicU64,
}

struct Queue {
    questions: FairQueue<Question>,
    is_closed: bool,
    /// So many threads check: for those behind them there is no memory.
    threads_max: usize,
}

/// One password to check.
struct Question {
    request: Arc<AuthRequest>,
    digest: Digest,
    attempt: Arc<Attempt>,
    later: Later,
}

impl Asks for Question {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }
}

impl Passwords {
    /// Reads the password file and starts the threads.
    pub(super) fn start(
        config: &Auth,
        decoy_secret: Option<[u8; 32]>,
        pace: &Arc<Mutex<Pace>>,
    ) -> Result<(Self, Threads), PasswordFileError> {
        let passwords = load(config)?;
        let lifetime = Duration::from_secs(config.cache_secs.into());
        let cache = VerdictCache::new(config.cache_entries_max as usize, lifetime, Instant::now());
        let threads = usize::from(config.threads);
        // Checks are short, and origins take turns: one may have all threads.
        let questions = FairQueue::new(Step::File, config.queue_max as usize, usize::MAX, pace);
        let shared = Arc::new(Shared {
            decoy_secret,
            passwords: RwLock::new(passwords),
            cache: Mutex::new(cache),
            queue: Mutex::new(Queue { questions, is_closed: false, threads_max: threads }),
            wake: Condvar::new(),
            pace: pace.clone(),
            threads,
            memory_bytes_max: AtomicU64::new(u64::MAX),
        });
        let spawn = |index: u16| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("auth-{index}"))
                .spawn(move || work(&shared, index.into()))
        };
        let path = || config.password_file.as_deref().unwrap_or_else(|| "".as_ref());
        let threads =
            (0..config.threads).map(spawn).collect::<Result<_, _>>().map_err(|cause| {
                PasswordFileError::Read { path: path().display().to_string(), cause }
            })?;
        Ok((Self { shared }, Threads(threads)))
    }

    /// Reads the password file again and forgets remembered verdicts. One that cannot be used
    /// changes nothing.
    pub(super) fn reload(&self, config: &Auth) -> Result<(), PasswordFileError> {
        let passwords = load(config)?;
        *self.shared.passwords.write().unwrap_or_else(PoisonError::into_inner) = passwords;
        lock(&self.shared.cache).clear();
        self.shared.set_memory_apart();
        Ok(())
    }

    /// So much memory there is in all, for checks and everything else.
    pub(super) fn fit_into(&self, memory_bytes_max: u64) {
        self.shared.memory_bytes_max.store(memory_bytes_max, Ordering::Relaxed);
        self.shared.set_memory_apart();
    }

    /// Where another provider comes behind this one, users that are not in the file are left to it.
    /// That takes no time, and so tells who is in the file: the last one does not tell.
    pub(super) fn ask(
        &self,
        request: &Arc<AuthRequest>,
        attempt: &Arc<Attempt>,
        is_last: bool,
        later: Later,
    ) -> Option<Opinion> {
        let Some(passwords) = self.passwords() else { return Some(Opinion::NotMine) };
        let Some(username) = &request.username else { return Some(Opinion::NotMine) };
        if !is_last && !passwords.knows(username) {
            return Some(Opinion::NotMine);
        }
        // As mosquitto does: an empty password opens nothing, and a missing one is not even that.
        let Some(password) = request.password.as_deref().filter(|it| !it.is_empty()) else {
            return Some(Opinion::No("the CONNECT has no password".into()));
        };
        let digest = lock(&self.shared.cache).digest(username, password);
        if attempt.has_begun() && self.shared.knows(&digest, attempt) {
            return Some(proved(username));
        }
        let (request, attempt, ticket) = (request.clone(), attempt.clone(), request.ticket);
        let question = Question { request, digest, attempt, later };
        let crowded_out = lock(&self.shared.queue).questions.put(ticket, question, Instant::now());
        self.shared.wake.notify_all();
        if let Some(question) = crowded_out {
            (question.later)(Opinion::Busy);
        }
        None
    }

    pub(super) fn wake(&self) {
        self.shared.wake.notify_all();
    }

    pub(super) fn forget(&self, origin: Origin, ticket: u64) {
        let gone = lock(&self.shared.queue).questions.forget((0, origin), ticket);
        drop(gone);
    }

    pub(super) fn start_scram(
        &self,
        client_first: &[u8],
    ) -> Result<(Exchange, Vec<u8>), ScramError> {
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

    /// Of those that were wrong only so many of an origin are heard in a second.
    pub(super) fn finish_scram(
        &self,
        origin: Origin,
        exchange: Exchange,
        client_final: &[u8],
    ) -> Result<Success, Reason> {
        let now = Instant::now();
        if lock(&self.shared.pace).begin(origin, Step::File, now).is_err() {
            return Err(Reason::SERVER_BUSY);
        }
        let finished = exchange.finish(client_final);
        lock(&self.shared.pace).end(origin, Step::File, finished.is_ok(), now);
        self.shared.wake.notify_all();
        finished.map_err(|error| {
            tracing::debug!(%error, "SCRAM failed");
            Reason::NOT_AUTHORIZED
        })
    }

    pub(super) fn has_file(&self) -> bool {
        self.passwords().is_some()
    }

    fn passwords(&self) -> Option<Arc<PasswordFile>> {
        self.shared.passwords.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Threads {
    /// Ends the threads; what still waits is answered.
    pub(super) fn end(&mut self, passwords: &Passwords) {
        let shared = &passwords.shared;
        let waiting = {
            let mut queue = lock(&shared.queue);
            queue.is_closed = true;
            queue.questions.take_all()
        };
        shared.wake.notify_all();
        for question in waiting {
            (question.later)(Opinion::Busy);
        }
        for thread in self.0.drain(..) {
            // A thread that panicked has reported it itself.
            let _ = thread.join();
        }
    }
}

fn proved(username: &str) -> Opinion {
    Opinion::Yes(Proof { username: Some(username.into()), ..Proof::default() })
}

fn load(config: &Auth) -> Result<Option<Arc<PasswordFile>>, PasswordFileError> {
    let path = config.password_file.as_deref();
    path.map(|path| PasswordFile::load(path).map(Arc::new)).transpose()
}

/// An auth thread: takes questions until the queue is closed.
fn work(shared: &Shared, index: usize) {
    let mut scratch = Scratch::default();
    while let Some(question) = next_question(shared, index, &mut scratch) {
        let passwords = shared.passwords.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Question { request, digest, attempt, later } = question;
        let username = request.username.as_deref().unwrap_or_default();
        let password = request.password.as_deref().unwrap_or_default();
        let is_right = shared.knows(&digest, &attempt)
            || passwords.as_ref().is_some_and(|file| {
                file.verify_with(&mut scratch, username, password, &shared.decoy_secret(file))
            });
        lock(&shared.queue).questions.end(attempt.origin, Standing::Trusted);
        if is_right {
            shared.remember(digest, passwords.as_ref());
            later(proved(username));
        } else {
            // As mosquitto answers. Code 4 of 3.1.1 is for a name that is not well formed.
            later(Opinion::No("wrong username or password".into()));
        }
    }
}

impl Shared {
    fn decoy_secret(&self, file: &PasswordFile) -> [u8; 32] {
        self.decoy_secret.unwrap_or_else(|| file.digest())
    }

    /// Sets memory apart for as many checks at a time as may be.
    fn set_memory_apart(&self) {
        let passwords = self.passwords.read().unwrap_or_else(PoisonError::into_inner).clone();
        let each = passwords.map_or(0, |file| file.check_bytes_max());
        let all = self.memory_bytes_max.load(Ordering::Relaxed) / CHECKS_PART;
        let checks_max = checks_at_a_time(all, each, self.threads);
        memory::set_apart(each * checks_max as u64);
        lock(&self.queue).threads_max = checks_max;
        self.wake.notify_all();
    }

    /// Was this right not long ago? It has been tried then.
    fn knows(&self, digest: &Digest, attempt: &Attempt) -> bool {
        attempt.note_tried();
        lock(&self.cache).knows(digest, Instant::now())
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

/// Of so many bytes, of which each takes so many.
fn checks_at_a_time(all: u64, each: u64, threads: usize) -> usize {
    let fit = all.checked_div(each).and_then(|checks| usize::try_from(checks).ok());
    fit.unwrap_or(threads).clamp(1, threads)
}

/// When there has been none for a while, what checks took is given back: it is set apart, and not
/// to be counted a second time.
fn next_question(shared: &Shared, index: usize, scratch: &mut Scratch) -> Option<Question> {
    loop {
        memory::purge_if_asked();
        let mut queue = lock(&shared.queue);
        if queue.is_closed {
            return None;
        }
        let now = Instant::now();
        let next = match index < queue.threads_max {
            true => queue.questions.take(now),
            false => Next::Later(None),
        };
        let due = match next {
            Next::Item(question, _) => return Some(question),
            Next::Later(due) => due,
        };
        let due = due.map(|due| due.saturating_duration_since(now).max(WAIT_LEAST));
        let idle = (!scratch.is_empty()).then_some(GIVES_BACK_AFTER);
        let Some(wait) = due.into_iter().chain(idle).min() else {
            drop(shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner));
            continue;
        };
        let woken = shared.wake.wait_timeout(queue, wait);
        let is_over = woken.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if is_over && Some(wait) == idle {
            *scratch = Scratch::default();
            memory::purge();
        }
    }
}

/// Printable and without a comma, as RFC 5802 asks.
const NONCE_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_take_a_part_of_the_memory_and_one_is_always_done() {
        let argon2 = 19 << 20;
        assert_eq!(checks_at_a_time((1 << 30) / CHECKS_PART, argon2, 2), 2);
        assert_eq!(checks_at_a_time((200 << 20) / CHECKS_PART, argon2, 2), 1);
        assert_eq!(checks_at_a_time((56 << 20) / CHECKS_PART, argon2, 2), 1, "more than its part");
        assert_eq!(checks_at_a_time((16 << 30) / CHECKS_PART, argon2, 4), 4, "as many as threads");
        assert_eq!(checks_at_a_time((56 << 20) / CHECKS_PART, 0, 4), 4, "they take none");
    }
}
