//! Authenticates callers of the API, by a token, by user name and password, or by a log-in session,
//! and gives their role.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use net::CertificateInfo;
use sha2::{Digest as _, Sha256};
use web::axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use web::axum::http::{HeaderMap, HeaderName, StatusCode};

use super::logins::{LogIns, Owner, Proof};
use super::password_checks::PasswordChecks;
use super::problem::Problem;
use super::route::Role;
use super::token;
use base::random;
use config::{ApiConfig, CertificateRoles, Namespace};
use driver::Origin;
use identity::auth::passwords::PasswordFile;
use identity::auth::refusal_lines::RefusalLines;

/// Wrong passwords for a user from an address in [`WINDOW`], after which no others are checked.
/// Callers with a known password or the token are not limited.
const WRONG_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Lines about refused callers in [`WINDOW`].
const LINES_MAX: u32 = 20;

/// Passwords that are known to be right, so that not every call hashes one.
const KNOWN_MAX: usize = 64;
const KNOWN_FOR: Duration = Duration::from_secs(600);

type Digest = [u8; 32];

/// Authenticates callers.
#[derive(Debug)]
pub(crate) struct ApiAuthenticator {
    /// `None`: it could not be written yet.
    token: RwLock<Option<Digest>>,
    password_file: Option<PathBuf>,
    /// Those of the file, as it was read last.
    users: RwLock<Option<Arc<PasswordFile>>>,
    /// `*`: all users of the file.
    viewers: Vec<String>,
    operators: Vec<String>,
    admins: Vec<String>,
    tenants: RwLock<Tenants>,
    certificates: CertificateRoles,
    /// Makes digests of secrets worthless to others.
    salt: Digest,
    known: Mutex<HashMap<Digest, Instant>>,
    wrong: Mutex<Wrong>,
    refusal_lines: Mutex<RefusalLines>,
    /// None: there are no users.
    checks: Option<PasswordChecks>,
    pub(crate) log_ins: LogIns,
    /// How often files were reloaded.
    reloads: AtomicU64,
}

/// The namespaces of users that belong to one, by the names of the users.
type Tenants = BTreeMap<String, String>;

/// What a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What its role allows.
    All,
    /// What users of this namespace have defined. The role does not matter.
    Namespace(String),
    Nothing,
}

/// Passwords that were wrong.
#[derive(Debug)]
struct Wrong {
    since: Instant,
    /// Lines of the log about refused callers; more are only counted.
    lines: u32,
    /// By address and user. At most as many as passwords can be checked in [`WINDOW`].
    guesses: HashMap<(Origin, Digest), u32>,
}

impl Wrong {
    fn new() -> Self {
        Self { since: Instant::now(), lines: 0, guesses: HashMap::new() }
    }

    fn forget_old(&mut self) {
        if self.since.elapsed() >= WINDOW {
            *self = Self::new();
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) reach: Reach,
    pub(crate) proof: Proof,
}

impl ApiAuthenticator {
    /// Reads the files, and makes the token where there is none.
    ///
    /// # Errors
    ///
    /// When one cannot be used, or others can read the token.
    pub(crate) fn new(config: &ApiConfig, namespaces: &[Namespace]) -> anyhow::Result<Self> {
        let users = load_users(config.password_file.as_deref(), all_named(config, namespaces))?;
        let salt: Digest = random();
        let token = token::kept(&config.token_file)?;
        let checks = config.password_file.as_ref().map(|_| PasswordChecks::start()).transpose()?;
        Ok(Self {
            token: RwLock::new(token.map(|token| digest(&salt, token.as_bytes()))),
            password_file: config.password_file.clone(),
            users: RwLock::new(users),
            viewers: config.viewers.clone(),
            operators: config.operators.clone(),
            admins: config.admins.clone(),
            tenants: RwLock::new(tenants_of(namespaces)),
            certificates: config.certificates.clone(),
            salt,
            known: Mutex::default(),
            wrong: Mutex::new(Wrong::new()),
            refusal_lines: Mutex::default(),
            checks,
            reloads: AtomicU64::new(0),
            log_ins: LogIns::default(),
        })
    }

    /// Writes down the token and where the API is, for tools on this machine.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn write_token(&self, path: &Path, url: &str) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", path.display());
        let no_space = || io::Error::from(io::ErrorKind::StorageFull);
        let token = token::kept(path)?.ok_or_else(no_space).with_context(cannot)?;
        let own = digest(&self.salt, token.as_bytes());
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(own);
        token::note_url(path, url).with_context(cannot)
    }

    /// Reads the users again. False: there is no file of them.
    ///
    /// # Errors
    ///
    /// The file cannot be used, and the old users stay.
    pub(crate) fn reload(&self) -> anyhow::Result<bool> {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        let named = named(&self.viewers, &self.operators, &self.admins);
        let users = load_users(self.password_file.as_deref(), named)?;
        let has_some = users.is_some();
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = users;
        // Known passwords may be wrong now.
        lock(&self.known).clear();
        Ok(has_some)
    }

    /// Whether the users of these namespaces have passwords, and see nothing else.
    ///
    /// # Errors
    ///
    /// The file of users lacks one, or all users are viewers since the start.
    pub(crate) fn check_tenants(&self, namespaces: &[Namespace]) -> anyhow::Result<()> {
        let Some(users) = self.users() else { return Ok(()) };
        let has_some = users_of(namespaces).next().is_some();
        if has_some && self.viewers.iter().any(|name| name == EACH) {
            bail!("api_users: restart first, as api.viewers was '*' at the start");
        }
        check_known(&users, users_of(namespaces))
    }

    /// Users belong to these namespaces from the next call on.
    pub(crate) fn set_tenants(&self, namespaces: &[Namespace]) {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        *tenants = tenants_of(namespaces);
    }

    /// Whether what a caller has shown is known to be still accepted for what users of namespaces
    /// may not see.
    pub(crate) fn still_accepts(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Secret(owner) => self.sees_all(owner),
            Proof::Session(key) => self
                .log_ins
                .owner_of(key, Instant::now())
                .is_some_and(|owner| self.sees_all(&owner)),
            Proof::Certificate { reloads } => *reloads == self.reloads.load(Ordering::Relaxed),
            Proof::Link(_) => false,
        }
    }

    fn sees_all(&self, owner: &Owner) -> bool {
        let reach = match owner {
            Owner::Token => Reach::All,
            Owner::User(name, _) => self.reach_of(name),
        };
        reach == Reach::All && self.is_current(owner)
    }

    /// The role does not matter to those who do not reach all.
    fn rights_of(&self, name: &str) -> (Role, Reach) {
        (self.role_of(name).unwrap_or(Role::Viewer), self.reach_of(name))
    }

    fn reach_of(&self, name: &str) -> Reach {
        let tenants = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        match (tenants.get(name), self.role_of(name)) {
            (Some(namespace), _) => Reach::Namespace(namespace.clone()),
            (None, Some(_)) => Reach::All,
            (None, None) => Reach::Nothing,
        }
    }

    /// False: the user is gone, or its password is another one now.
    fn is_current(&self, owner: &Owner) -> bool {
        match owner {
            Owner::Token => true,
            Owner::User(name, then) => {
                self.users().is_some_and(|users| users.user(name) == Some(then))
            }
        }
    }

    fn users(&self) -> Option<Arc<PasswordFile>> {
        self.users.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Authenticates a request by its headers, the address it comes from, and the certificate of
    /// its connection. One that shows a token or a password is judged by that alone.
    pub(crate) async fn authenticate(
        &self,
        headers: &HeaderMap,
        from: Origin,
        certificate: Option<&CertificateInfo>,
    ) -> Result<Identity, Problem> {
        if let Some(certificate) = certificate.filter(|_| !headers.contains_key(AUTHORIZATION)) {
            return self.check_certificate(certificate, headers);
        }
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, secret) = header.and_then(|text| text.split_once(' ')).unwrap_or_default();
        let is = |wanted: &str| scheme.eq_ignore_ascii_case(wanted);
        if is("bearer")
            && let Some(identity) = self.of_bearer(secret.trim())
        {
            return Ok(identity);
        }
        if let (Some(users), Some(checks)) = (self.users(), &self.checks)
            && let Some((name, password)) = basic_of(header.unwrap_or_default())
        {
            return self.check_password((checks, &users), (&name, &password), from).await;
        }
        Err(unauthorized("the request has no valid token or password"))
    }

    /// The token, a log-in session, or the link of one.
    fn of_bearer(&self, secret: &str) -> Option<Identity> {
        let token = *self.token.read().unwrap_or_else(PoisonError::into_inner);
        if token == Some(digest(&self.salt, secret.as_bytes())) {
            return self.identity(Owner::Token, Proof::Secret(Owner::Token));
        }
        let now = Instant::now();
        if let Some((key, owner)) = self.log_ins.find(secret, now) {
            let identity = self.identity(owner, Proof::Session(key));
            if identity.is_none() {
                self.log_ins.end(&key);
            }
            return identity;
        }
        let (key, owner) = self.log_ins.of_link(secret, now)?;
        self.identity(owner, Proof::Link(key))
    }

    /// None: the user is gone, or its password is another one now.
    fn identity(&self, owner: Owner, proof: Proof) -> Option<Identity> {
        if !self.is_current(&owner) {
            return None;
        }
        let (name, role, reach) = match owner {
            Owner::Token => (TOKEN_NAME.to_owned(), Role::Admin, Reach::All),
            Owner::User(name, _) => {
                let (role, reach) = self.rights_of(&name);
                (name, role, reach)
            }
        };
        Some(Identity { name, role, reach, proof })
    }

    fn check_certificate(
        &self,
        certificate: &CertificateInfo,
        headers: &HeaderMap,
    ) -> Result<Identity, Problem> {
        // A browser shows the certificate for any page that asks it to.
        if is_of_other_page(headers) {
            let detail = "a page of another site sent this request";
            let fix =
                "send a token or a password: a certificate counts for pages of this host only";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail).at("header Origin").fix(fix));
        }
        let name = &certificate.common_name;
        let has = |names: &[String]| !name.is_empty() && names.contains(name);
        let CertificateRoles { viewers, operators, admins } = &self.certificates;
        let role = match () {
            () if has(admins) => Role::Admin,
            () if has(operators) => Role::Operator,
            () if has(viewers) || viewers.iter().any(|name| name == "*") => Role::Viewer,
            () => {
                let detail = format!("the certificate of '{}' gives no role", base::shown(name));
                return Err(unauthorized(&detail));
            }
        };
        let name = if name.is_empty() { &certificate.fingerprint_sha256 } else { name };
        let name = format!("certificate:{name}");
        let reloads = self.reloads.load(Ordering::Relaxed);
        let proof = Proof::Certificate { reloads };
        Ok(Identity { name, role, reach: Reach::All, proof })
    }

    async fn check_password(
        &self,
        (checks, users): (&PasswordChecks, &Arc<PasswordFile>),
        (name, password): (&str, &str),
        from: Origin,
    ) -> Result<Identity, Problem> {
        let key = digest(&self.salt, format!("{name}\0{password}").as_bytes());
        let user = users.user(name).cloned().unwrap_or_default();
        let proof = Proof::Secret(Owner::User(name.to_owned(), user));
        let identity = || {
            let (role, reach) = self.rights_of(name);
            Identity { name: name.to_owned(), role, reach, proof }
        };
        if self.is_known(&key) {
            return Ok(identity());
        }
        let guessed = (from, digest(&self.salt, name.as_bytes()));
        self.check_rate(&guessed)?;
        let (users, salt, checked_by) = (users.clone(), self.salt, users.clone());
        let (own, password) = (name.to_owned(), password.to_owned());
        let check = move || users.verify(&own, password.as_bytes(), &salt);
        let Some(is_right) = checks.ask(from, name.to_owned(), check).await else {
            return Err(too_many("too many passwords of this address wait to be checked"));
        };
        if !is_right {
            *lock(&self.wrong).guesses.entry(guessed).or_default() += 1;
            return Err(unauthorized("wrong username or password"));
        }
        // A file that was read meanwhile may have another password.
        if self.users().is_some_and(|now| Arc::ptr_eq(&now, &checked_by)) {
            self.remember(key);
        }
        // It may belong to another namespace since the check began.
        Ok(identity())
    }

    /// A line of the log about a caller that showed something wrong: one a minute for the same
    /// address, name and reason, at most [`LINES_MAX`] in [`WINDOW`]. False: it showed nothing.
    pub(crate) fn note_refused(&self, headers: &HeaderMap, from: Origin, why: &str) -> bool {
        let Some(header) = headers.get(AUTHORIZATION) else { return false };
        let mut wrong = lock(&self.wrong);
        wrong.forget_old();
        let username = basic_of(header.to_str().unwrap_or_default()).map(|(name, _)| name);
        let username = base::shown(username.as_deref().unwrap_or_default());
        let (address, now_secs) = (from.to_string(), base::wall_ms() / 1000);
        if wrong.lines < LINES_MAX
            && lock(&self.refusal_lines).allows(&address, &username, why, now_secs)
        {
            wrong.lines += 1;
            tracing::warn!(address, username = &*username, detail = why, "API login refused");
        }
        true
    }

    /// None: the configuration gives it none.
    fn role_of(&self, name: &str) -> Option<Role> {
        let has = |list: &[String]| list.iter().any(|known| known == name);
        match name {
            _ if has(&self.admins) => Some(Role::Admin),
            _ if has(&self.operators) => Some(Role::Operator),
            _ if has(&self.viewers) || self.viewers.iter().any(|known| known == EACH) => {
                Some(Role::Viewer)
            }
            _ => None,
        }
    }

    fn is_known(&self, key: &Digest) -> bool {
        lock(&self.known).get(key).is_some_and(|since| since.elapsed() < KNOWN_FOR)
    }

    fn remember(&self, key: Digest) {
        let mut known = lock(&self.known);
        known.retain(|_, since| since.elapsed() < KNOWN_FOR);
        if known.len() < KNOWN_MAX {
            known.insert(key, Instant::now());
        }
    }

    fn check_rate(&self, guessed: &(Origin, Digest)) -> Result<(), Problem> {
        let mut wrong = lock(&self.wrong);
        wrong.forget_old();
        match wrong.guesses.get(guessed).is_some_and(|own| *own >= WRONG_MAX) {
            true => Err(too_many("too many wrong passwords for this user in the last seconds")),
            false => Ok(()),
        }
    }
}

fn too_many(detail: &str) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).fix("wait ten seconds")
}

/// Does a browser say that the request comes from a page of another host?
fn is_of_other_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_foreign = |site: &str| !matches!(site, "same-origin" | "none");
    if text(SEC_FETCH_SITE).is_some_and(is_foreign) {
        return true;
    }
    let Some(origin) = text(ORIGIN) else { return false };
    origin.split_once("://").map(|(_, authority)| authority) != text(HOST)
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// User name and password of a header.
fn basic_of(header: &str) -> Option<(String, String)> {
    let (scheme, secret) = header.split_once(' ')?;
    let bytes = BASE64_STANDARD.decode(secret.trim()).ok()?;
    let text = String::from_utf8(bytes).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    text.split_once(':').map(|(name, password)| (name.to_owned(), password.to_owned()))
}

/// In `api.viewers`: each user of the file.
const EACH: &str = "*";

/// Name of the caller that has the token, in answers and log lines.
const TOKEN_NAME: &str = "token";

/// Reads token and users as a start does, and makes nothing.
///
/// # Errors
///
/// A file cannot be used, or the file of users lacks one that the configuration names.
pub(crate) fn check_files(
    config: &ApiConfig,
    namespaces: &[Namespace],
    data_dir: &Path,
) -> anyhow::Result<()> {
    load_users(config.password_file.as_deref(), all_named(config, namespaces))?;
    // The one that nobody has named is a part of the data directory.
    if !token::is_of_directory(config, data_dir) {
        token::known(&config.token_file)?;
    }
    Ok(())
}

fn load_users<'a>(
    path: Option<&Path>,
    named: impl Iterator<Item = &'a String>,
) -> anyhow::Result<Option<Arc<PasswordFile>>> {
    let users = path.map(PasswordFile::load).transpose()?;
    if let Some(users) = &users {
        check_known(users, named)?;
    }
    Ok(users.map(Arc::new))
}

fn check_known<'a>(
    users: &PasswordFile,
    mut named: impl Iterator<Item = &'a String>,
) -> anyhow::Result<()> {
    match named.find(|name| !users.knows(name)) {
        Some(name) => {
            bail!("api: user '{name}' is not in password_file; add it with `quelea passwd`")
        }
        None => Ok(()),
    }
}

/// Users that the configuration names.
fn all_named<'a>(
    config: &'a ApiConfig,
    namespaces: &'a [Namespace],
) -> impl Iterator<Item = &'a String> {
    named(&config.viewers, &config.operators, &config.admins).chain(users_of(namespaces))
}

/// Those of the three roles.
fn named<'a>(
    viewers: &'a [String],
    operators: &'a [String],
    admins: &'a [String],
) -> impl Iterator<Item = &'a String> {
    viewers.iter().filter(|name| *name != EACH).chain(operators).chain(admins)
}

fn users_of(namespaces: &[Namespace]) -> impl Iterator<Item = &String> {
    namespaces.iter().flat_map(|own| &own.api.users)
}

fn tenants_of(namespaces: &[Namespace]) -> Tenants {
    let of = |own: &Namespace| {
        let namespace = own.name.clone();
        own.api.users.clone().into_iter().map(move |name| (name, namespace.clone()))
    };
    namespaces.iter().flat_map(of).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change is whole, whoever panicked behind it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unauthorized(detail: &str) -> Problem {
    let fix = "send `Authorization: Bearer TOKEN` with the token of the file api.token in the data \
               directory, or a user of api.password_file by Basic";
    Problem::new(StatusCode::UNAUTHORIZED, detail).at("header Authorization").fix(fix)
}

fn digest(salt: &Digest, secret: &[u8]) -> Digest {
    Sha256::new_with_prefix(salt).chain_update(secret).finalize().into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use web::axum::http::HeaderValue;

    use super::*;
    use config::ApiAddress;
    use identity::auth::passwords::user_lines;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn config(directory: &Path) -> ApiConfig {
        ApiConfig {
            listen: ApiAddress::Http,
            token_file: directory.join("below").join("api.token"),
            password_file: None,
            viewers: vec![EACH.into()],
            operators: Vec::new(),
            admins: Vec::new(),
            tls: None,
            certificates: CertificateRoles::default(),
        }
    }

    fn ask(authenticator: &ApiAuthenticator, authorization: &str) -> Result<Identity, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
        block_on(authenticator.authenticate(&headers, Origin::Local, None))
    }

    fn basic(name: &str, password: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
    }

    fn of_users(name: &str, users: &[&str]) -> Namespace {
        let mut own = Namespace::open(name);
        own.api.users = users.iter().map(|&user| user.to_owned()).collect();
        own
    }

    #[test]
    fn users_of_namespaces_see_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (file, mut config) = (directory.path().join("users"), config(directory.path()));
        let lines = ["alice", "vera"].iter().flat_map(|name| user_lines(name, b"secret", false));
        fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        config.password_file = Some(file);
        let error = ApiAuthenticator::new(&config, &[of_users("acme", &["eve"])]).unwrap_err();
        assert!(error.to_string().contains("user 'eve' is not in password_file"), "{error}");
        let all = ApiAuthenticator::new(&config, &[]).unwrap();
        let error = all.check_tenants(&[of_users("acme", &["alice"])]).unwrap_err();
        assert!(error.to_string().contains("api.viewers was '*'"), "{error}");
        assert_eq!(ask(&all, &basic("alice", "secret")).unwrap().reach, Reach::All, "a viewer");
        config.viewers = vec!["alice".into(), "vera".into()];
        let authenticator = ApiAuthenticator::new(&config, &[]).unwrap();
        let reach = |name| ask(&authenticator, &basic(name, "secret")).unwrap().reach;
        assert_eq!(reach("alice"), Reach::All, "a viewer");
        let before = ask(&authenticator, &basic("alice", "secret")).unwrap();
        assert!(authenticator.still_accepts(&before.proof));
        let Proof::Secret(owner) = before.proof.clone() else { panic!("it has shown a password") };
        let session = authenticator.log_ins.begin(owner, Instant::now());
        let of_session = || ask(&authenticator, &format!("Bearer {session}")).unwrap();
        assert!(authenticator.check_tenants(&[of_users("acme", &["eve"])]).is_err());
        authenticator.set_tenants(&[of_users("acme", &["alice"])]);
        assert_eq!(reach("alice"), Reach::Namespace("acme".into()));
        assert_eq!(of_session().reach, Reach::Namespace("acme".into()));
        assert!(!authenticator.still_accepts(&before.proof), "its event streams end");
        assert!(!authenticator.still_accepts(&of_session().proof));
        assert_eq!(reach("vera"), Reach::All);
        authenticator.set_tenants(&[of_users("zeta", &["alice"])]);
        assert_eq!(reach("alice"), Reach::Namespace("zeta".into()));
        authenticator.set_tenants(&[]);
        assert_eq!(reach("alice"), Reach::All);
        config.viewers = vec!["vera".into()];
        let authenticator = ApiAuthenticator::new(&config, &[]).unwrap();
        let nobody = ask(&authenticator, &basic("alice", "secret")).unwrap();
        assert_eq!(nobody.reach, Reach::Nothing);
        assert!(!authenticator.still_accepts(&nobody.proof));
    }

    #[test]
    fn certificates_give_the_role_that_their_name_has() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.certificates = CertificateRoles {
            viewers: vec!["eve".into()],
            operators: vec!["otto".into()],
            admins: vec!["anna".into()],
        };
        let ask = |config: &ApiConfig, name: &str, headers: &[(&'static str, &'static str)]| {
            let certificate =
                CertificateInfo { common_name: name.into(), ..CertificateInfo::default() };
            let headers = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let headers: HeaderMap = headers.collect();
            let authenticator = ApiAuthenticator::new(config, &[]).unwrap();
            let asked = authenticator.authenticate(&headers, Origin::Local, Some(&certificate));
            block_on(asked).map(|identity| (identity.name, identity.role))
        };
        for (name, role) in [("eve", Role::Viewer), ("otto", Role::Operator), ("anna", Role::Admin)]
        {
            assert_eq!(ask(&config, name, &[]).unwrap(), (format!("certificate:{name}"), role));
        }
        for name in ["mallory", "", "*", "Anna"] {
            assert_eq!(ask(&config, name, &[]).unwrap_err().status, StatusCode::UNAUTHORIZED);
        }
        // Whoever shows a wrong token gets nothing for the certificate.
        let with_token = ask(&config, "anna", &[("authorization", "Bearer x")]);
        assert_eq!(with_token.unwrap_err().status, StatusCode::UNAUTHORIZED);
        for headers in [
            &[("origin", "https://evil.example"), ("host", "broker.example:9883")][..],
            &[("origin", "null"), ("host", "broker.example:9883")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(ask(&config, "anna", headers).unwrap_err().status, StatusCode::FORBIDDEN);
        }
        let own = [("origin", "https://b:1"), ("host", "b:1"), ("sec-fetch-site", "same-origin")];
        assert!(ask(&config, "anna", &own).is_ok());
        config.certificates.viewers = vec!["*".into()];
        assert_eq!(ask(&config, "mallory", &[]).unwrap().1, Role::Viewer);
        assert_eq!(ask(&config, "", &[]).unwrap().1, Role::Viewer);
    }

    #[test]
    fn the_token_is_made_once_and_lets_an_admin_in() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let authenticator = ApiAuthenticator::new(&config, &[]).unwrap();
        token::note_url(&config.token_file, "http://127.0.0.1:1").unwrap();
        let text = fs::read_to_string(&config.token_file).unwrap();
        let token = text.lines().next().unwrap();
        assert_eq!(text.lines().nth(1), Some("http://127.0.0.1:1"));
        let mode = fs::metadata(&config.token_file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let proof = Proof::Secret(Owner::Token);
        let admin = Identity { name: "token".into(), role: Role::Admin, reach: Reach::All, proof };
        assert_eq!(ask(&authenticator, &format!("Bearer {token}")).unwrap(), admin);
        let again = ApiAuthenticator::new(&config, &[]).unwrap();
        assert_eq!(ask(&again, &format!("bearer  {token}")).unwrap(), admin);
        for wrong in ["Bearer ", "Bearer x", token, "Basic x", &basic("token", token)] {
            let status = ask(&authenticator, wrong).unwrap_err().status;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{wrong}");
        }
        assert!(
            block_on(authenticator.authenticate(&HeaderMap::new(), Origin::Local, None)).is_err()
        );
    }

    /// A session has the rights of its owner as they are now, whatever the owner is called.
    #[test]
    fn a_session_lasts_as_long_as_the_password_of_its_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        let write = |name: &str, password: &[u8]| {
            fs::write(&path, user_lines(name, password, false).join("\n")).unwrap();
        };
        write("token", b"one");
        let base = config(directory.path());
        let config = ApiConfig { password_file: Some(path.clone()), ..base };
        let authenticator = ApiAuthenticator::new(&config, &[]).unwrap();
        let log_in = || {
            let identity = ask(&authenticator, &basic("token", "one")).unwrap();
            let Proof::Secret(owner) = identity.proof else { panic!("{identity:?}") };
            format!("Bearer {}", authenticator.log_ins.begin(owner, Instant::now()))
        };
        let session = log_in();
        let identity = ask(&authenticator, &session).unwrap();
        assert_eq!(identity.role, Role::Viewer, "a user of this name is not the token");
        assert!(matches!(identity.proof, Proof::Session(_)));
        // Salts differ, so the lines are others.
        write("token", b"two");
        assert!(authenticator.reload().unwrap());
        assert!(ask(&authenticator, &session).is_err(), "another password");
        write("token", b"one");
        authenticator.reload().unwrap();
        assert!(ask(&authenticator, &session).is_err(), "it has ended");
        let session = log_in();
        write("other", b"one");
        authenticator.reload().unwrap();
        assert!(ask(&authenticator, &session).is_err(), "the user is gone");
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        ApiAuthenticator::new(&config, &[]).unwrap();
        fs::set_permissions(&config.token_file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = ApiAuthenticator::new(&config, &[]).unwrap_err().to_string();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        fs::set_permissions(&config.token_file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&config.token_file, "secret\n").unwrap();
        assert!(
            ApiAuthenticator::new(&config, &[])
                .unwrap_err()
                .to_string()
                .contains("must be a token")
        );
    }

    #[test]
    fn users_have_the_roles_that_the_configuration_gives_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        let lines: Vec<String> = ["vera", "otto", "anna"]
            .iter()
            .flat_map(|name| user_lines(name, b"right", false))
            .collect();
        fs::write(&path, lines.join("\n")).unwrap();
        let (operators, admins) = (vec!["otto".into()], vec!["anna".into()]);
        let base = config(directory.path());
        let password_file = Some(path.clone());
        let config = ApiConfig { password_file, operators, admins, ..base };
        let authenticator = ApiAuthenticator::new(&config, &[]).unwrap();
        let role = |name: &str| ask(&authenticator, &basic(name, "right")).unwrap().role;
        assert_eq!(role("vera"), Role::Viewer);
        assert_eq!(role("otto"), Role::Operator);
        assert_eq!(role("anna"), Role::Admin);

        // Guessing ends; a known password still works.
        for _ in 0..WRONG_MAX {
            let status = ask(&authenticator, &basic("anna", "wrong")).unwrap_err().status;
            assert_eq!(status, StatusCode::UNAUTHORIZED);
        }
        let status = ask(&authenticator, &basic("anna", "wrong")).unwrap_err().status;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(role("anna"), Role::Admin);

        // Neither other users nor other addresses are limited by it.
        let status = ask(&authenticator, &basic("vera", "wrong")).unwrap_err().status;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        let mut headers = HeaderMap::new();
        let wrong = HeaderValue::from_str(&basic("anna", "wrong")).unwrap();
        headers.insert(AUTHORIZATION, wrong);
        let status =
            block_on(authenticator.authenticate(&headers, Origin::V4([192, 0, 2, 1]), None));
        assert_eq!(status.unwrap_err().status, StatusCode::UNAUTHORIZED);

        // Read again, the file decides at once; one that lacks an operator is not taken.
        let [vera, otto] =
            ["vera", "otto"].map(|name| ask(&authenticator, &basic(name, "right")).unwrap().proof);
        let (accepts, token) = (|it| authenticator.still_accepts(it), Proof::Secret(Owner::Token));
        let certificate = Proof::Certificate { reloads: 0 };
        assert!(accepts(&vera) && accepts(&certificate));
        fs::write(&path, lines[1..].join("\n")).unwrap();
        assert!(authenticator.reload().unwrap() && accepts(&otto));
        assert!(!accepts(&vera) && accepts(&token) && !accepts(&certificate));
        assert!(ask(&authenticator, &basic("vera", "right")).is_err());
        fs::write(&path, lines[2..].join("\n")).unwrap();
        assert!(authenticator.reload().unwrap_err().to_string().contains("'otto'"));
        assert!(accepts(&otto));

        fs::write(&path, lines.join("\n")).unwrap();
        let unknown = ApiConfig { admins: vec!["nobody".into()], ..config };
        assert!(ApiAuthenticator::new(&unknown, &[]).unwrap_err().to_string().contains("'nobody'"));
    }
}
