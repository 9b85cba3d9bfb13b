//! Log-in sessions of the API: a caller shows its password or the token once, and gets a secret
//! that ends by itself. The dashboard keeps that secret, never the password.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use web::axum::http::StatusCode;

use super::call::Call;
use super::problem::Problem;
use super::route::{GET, Method, Outcome, Route};
use super::schema::{Described as _, record};
use super::{Api, json, token};
use identity::auth::passwords::User;

/// A session ends when it is not used for so long.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// A session ends so long after its log-in, whatever it is used for.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Sessions of one owner. A further one ends the session of the owner that was used least recently.
const OF_OWNER_MAX: usize = 16;

/// Sessions of all owners. A further one ends a session of the owner with the most.
const ALL_MAX: usize = 256;

/// How long a log-in link can be used.
pub(crate) const LINK_AGE_MAX: Duration = Duration::from_secs(10 * 60);

/// Unused links. A further one replaces the oldest.
const LINKS_MAX: usize = 16;

type Digest = [u8; 32];

/// The sessions and the links that are valid. Secrets are kept as digests.
#[derive(Debug, Default)]
pub(crate) struct LogIns(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    sessions: HashMap<Digest, Session>,
    links: HashMap<Digest, Link>,
}

/// Whose rights a session has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Owner {
    /// Whoever has the token.
    Token,
    /// A user, with the secret that was right at the log-in: another password ends the session.
    User(String, User),
}

/// What a caller has shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Proof {
    /// The token or a password.
    Secret(Owner),
    /// A log-in link, which is good for a session only.
    Link(Digest),
    /// A session.
    Session(Digest),
    /// A client certificate alone. It begins no session: it would outlive its revocation.
    Certificate {
        /// How often files had been reloaded: an authority or a revocation list may be another one
        /// since.
        reloads: u64,
    },
}

#[derive(Debug)]
struct Session {
    owner: Owner,
    began: Instant,
    used: Instant,
}

#[derive(Debug)]
struct Link {
    owner: Owner,
    made: Instant,
}

record! {
    /// A new log-in session.
    LogIn {
        /// The secret, for the header `Authorization: Bearer`.
        token: String,
        /// The username, or `token`.
        name: String,
        /// `viewer`, `operator` or `admin`.
        role: String,
        /// The session ends after this time without a request.
        idle_secs: u64,
        /// The session ends after this time.
        expires_in_secs: u64,
    }
}

record! {
    /// A link that logs in once.
    LogInLink {
        /// The secret: the dashboard opens with it at `/#login=CODE`.
        code: String,
        /// The link is valid for this time.
        expires_in_secs: u64,
    }
}

impl LogIns {
    /// Begins a session, and gives its secret.
    pub(crate) fn begin(&self, owner: Owner, now: Instant) -> String {
        let (secret, mut tables) = (token::fresh(), self.lock());
        tables.forget_old(now);
        let sessions = &mut tables.sessions;
        let count = |owner: &Owner| sessions.values().filter(|it| it.owner == *owner).count();
        let crowded = match count(&owner) >= OF_OWNER_MAX {
            true => Some(owner.clone()),
            false if sessions.len() >= ALL_MAX => {
                let owners = sessions.values().map(|session| &session.owner);
                owners.max_by_key(|owner| count(owner)).cloned()
            }
            false => None,
        };
        if let Some(crowded) = crowded {
            let own = sessions.iter().filter(|(_, session)| session.owner == crowded);
            let oldest = own.min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
            if let Some(key) = oldest {
                sessions.remove(&key);
            }
        }
        sessions.insert(digest(&secret), Session { owner, began: now, used: now });
        secret
    }

    /// The owner of a session that has not ended, and what stands for its secret.
    pub(crate) fn find(&self, secret: &str, now: Instant) -> Option<(Digest, Owner)> {
        let (key, mut tables) = (digest(secret), self.lock());
        let session = tables.sessions.get_mut(&key)?;
        if session.is_over(now) {
            tables.sessions.remove(&key);
            return None;
        }
        session.used = now;
        Some((key, session.owner.clone()))
    }

    /// The owner of a session that has not ended. To look does not use it.
    pub(crate) fn owner_of(&self, key: &Digest, now: Instant) -> Option<Owner> {
        let tables = self.lock();
        let session = tables.sessions.get(key).filter(|session| !session.is_over(now))?;
        Some(session.owner.clone())
    }

    /// False: it had ended.
    pub(crate) fn end(&self, key: &Digest) -> bool {
        self.lock().sessions.remove(key).is_some()
    }

    /// A link that begins one session, and gives its secret.
    pub(crate) fn link(&self, owner: Owner, now: Instant) -> String {
        let (secret, mut tables) = (token::fresh(), self.lock());
        tables.forget_old(now);
        let oldest = tables.links.iter().min_by_key(|(_, link)| link.made).map(|(key, _)| *key);
        if let Some(key) = oldest.filter(|_| tables.links.len() >= LINKS_MAX) {
            tables.links.remove(&key);
        }
        tables.links.insert(digest(&secret), Link { owner, made: now });
        secret
    }

    /// The owner of a link that was not used, which stays usable.
    pub(crate) fn of_link(&self, secret: &str, now: Instant) -> Option<(Digest, Owner)> {
        let (key, tables) = (digest(secret), self.lock());
        let link = tables.links.get(&key).filter(|link| !link.is_over(now))?;
        Some((key, link.owner.clone()))
    }

    /// Uses a link up. None: another caller was faster, or it is too old.
    fn take_link(&self, key: &Digest, now: Instant) -> Option<Owner> {
        let link = self.lock().links.remove(key)?;
        (!link.is_over(now)).then_some(link.owner)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Each change is whole, whoever panicked behind it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn forget_old(&mut self, now: Instant) {
        self.sessions.retain(|_, session| !session.is_over(now));
        self.links.retain(|_, link| !link.is_over(now));
    }
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE_MAX || now.duration_since(self.began) >= AGE_MAX
    }
}

impl Link {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.made) >= LINK_AGE_MAX
    }
}

/// Log-in sessions of the node that is asked.
pub(super) const ROUTES: &[Route] = &[
    Route {
        method: Method::Post,
        path: "/sessions",
        about: "Begins a log-in session: later requests use its token instead of a password. \
                It ends after 30 minutes without a request, and after 12 hours.",
        answer: Some(LogIn::schema),
        run: |api, call| Box::pin(async move { log_in(&api, &call) }),
        without_shards: true,
        takes_link: true,
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/sessions",
        about: "Ends the log-in session of this request.",
        run: |api, call| Box::pin(async move { log_out(&api, &call) }),
        without_shards: true,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/sessions/link",
        about: "Makes a link to the dashboard that begins one log-in session, within 10 minutes.",
        answer: Some(LogInLink::schema),
        run: |api, call| Box::pin(async move { make_link(&api, &call) }),
        without_shards: true,
        ..GET
    },
];

/// A session is no way to another one: its end would be worth nothing.
pub(crate) fn log_in(api: &Api, call: &Call) -> Outcome {
    let log_ins = &api.authenticator.log_ins;
    let owner = match &call.proof {
        Some(Proof::Secret(owner)) => Some(owner.clone()),
        Some(Proof::Link(key)) => log_ins.take_link(key, Instant::now()),
        Some(Proof::Session(_) | Proof::Certificate { .. }) | None => None,
    };
    let Some(owner) = owner else {
        let detail = "a log-in session cannot begin another one, and a link works once";
        let fix = "send the token, or username and password";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).fix(fix));
    };
    json(&LogIn {
        token: log_ins.begin(owner, Instant::now()),
        name: call.caller.name.clone(),
        role: call.caller.role.clone(),
        idle_secs: IDLE_MAX.as_secs(),
        expires_in_secs: AGE_MAX.as_secs(),
    })
}

pub(crate) fn log_out(api: &Api, call: &Call) -> Outcome {
    match &call.proof {
        Some(Proof::Session(key)) => {
            api.authenticator.log_ins.end(key);
            Ok(None)
        }
        _ => {
            let detail = "the request has no log-in session";
            let fix = "send the token that POST /sessions has given";
            Err(Problem::bad("header Authorization", detail).fix(fix))
        }
    }
}

/// Needs the token or a password, as a log-in does.
pub(crate) fn make_link(api: &Api, call: &Call) -> Outcome {
    let Some(Proof::Secret(owner)) = &call.proof else {
        let detail = "a log-in session cannot make a link";
        let fix = "send the token, or username and password";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail).fix(fix));
    };
    let code = api.authenticator.log_ins.link(owner.clone(), Instant::now());
    json(&LogInLink { code, expires_in_secs: LINK_AGE_MAX.as_secs() })
}

/// Secrets are random, so that a digest needs no salt.
fn digest(secret: &str) -> Digest {
    Sha256::digest(secret).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Owner {
        Owner::User(name.to_owned(), User::default())
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_logged_out() {
        let (log_ins, start) = (LogIns::default(), Instant::now());
        let secret = log_ins.begin(Owner::Token, start);
        let mut now = start;
        while now + IDLE_MAX / 2 < start + AGE_MAX {
            now += IDLE_MAX / 2;
            assert!(log_ins.find(&secret, now).is_some(), "it is used");
        }
        assert!(log_ins.find(&secret, start + AGE_MAX).is_none());
        assert!(log_ins.find(&secret, start).is_none(), "it does not come back");

        let idle = log_ins.begin(Owner::Token, start);
        assert!(log_ins.find(&idle, start + IDLE_MAX).is_none());

        let ended = log_ins.begin(user("anna"), start);
        let (key, owner) = log_ins.find(&ended, start).unwrap();
        assert_eq!(owner, user("anna"));
        assert_eq!(log_ins.owner_of(&key, start), Some(owner));
        assert_eq!(log_ins.owner_of(&key, start + IDLE_MAX), None);
        assert!(log_ins.end(&key) && !log_ins.end(&key));
        assert_eq!(log_ins.owner_of(&key, start), None);
        assert!(log_ins.find(&ended, start).is_none());
        assert!(log_ins.find("", start).is_none());
    }

    #[test]
    fn one_owner_cannot_push_out_the_sessions_of_another() {
        let (log_ins, start) = (LogIns::default(), Instant::now());
        let other = log_ins.begin(user("otto"), start);
        let own: Vec<String> =
            (0..=OF_OWNER_MAX).map(|_| log_ins.begin(user("anna"), start)).collect();
        let open = |secret: &String| log_ins.find(secret, start).is_some();
        assert_eq!(own.iter().filter(|secret| open(secret)).count(), OF_OWNER_MAX);
        assert!(open(own.last().unwrap()) && open(&other));

        let mut all = Vec::new();
        for owner in 0..2 * ALL_MAX / OF_OWNER_MAX {
            let owner = format!("user {owner}");
            all.extend((0..OF_OWNER_MAX).map(|_| log_ins.begin(user(&owner), start)));
        }
        assert_eq!(log_ins.lock().sessions.len(), ALL_MAX);
        assert!(open(&other), "the one with the fewest keeps its own");
    }

    #[test]
    fn a_link_works_once_and_for_a_while() {
        let (log_ins, start) = (LogIns::default(), Instant::now());
        let code = log_ins.link(user("anna"), start);
        let (key, owner) = log_ins.of_link(&code, start).unwrap();
        assert_eq!(owner, user("anna"));
        assert!(log_ins.find(&code, start).is_none(), "it is no session");
        assert_eq!(log_ins.take_link(&key, start), Some(owner));
        assert_eq!(log_ins.take_link(&key, start), None);
        assert!(log_ins.of_link(&code, start).is_none());

        let old = log_ins.link(Owner::Token, start);
        assert!(log_ins.of_link(&old, start + LINK_AGE_MAX).is_none());
        let codes: Vec<String> = (1..=LINKS_MAX as u64)
            .map(|secs| log_ins.link(Owner::Token, start + Duration::from_secs(secs)))
            .collect();
        let later = start + Duration::from_secs(LINKS_MAX as u64);
        assert!(log_ins.of_link(&old, later).is_none(), "the oldest is replaced");
        assert!(codes.iter().all(|code| log_ins.of_link(code, later).is_some()));
    }
}
