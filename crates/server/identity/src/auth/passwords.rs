//! The password file: one `user:secret` per line, as `quelea passwd` and `mosquitto_passwd` write
//! it.
//!
//! A secret is one of
//!
//! - `$argon2id$v=19$m=..,t=..,p=..$salt$hash`, what `quelea passwd` writes;
//! - `{SCRAM-SHA-256}iterations,salt,stored key,server key`, for enhanced authentication;
//! - `$7$iterations$salt$hash` (PBKDF2-SHA-512) and `$6$salt$hash` (SHA-512), mosquitto's;
//! - `PBKDF2$...` and `$2b$...`, those of plugins: see `plugin_hashes.rs`.
//!
//! A user may have one SCRAM line and one line of another kind.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::Mac;
use sha2::{Digest, Sha512};

use super::cache::keyed;
use super::plugin_hashes::{ITERATIONS_MAX, PluginHash};
use super::scram::Credentials;
use base::memory::Loan;
use base::{equal_in_constant_time, random};

/// All users of a password file.
#[derive(Clone, Debug, Default)]
pub struct PasswordFile {
    users: HashMap<String, User>,
    /// A stand-in for each kind of secret in the file, and how many users have it.
    decoys: Vec<(Decoy, u64)>,
    /// The same of SCRAM secrets: their iterations.
    scram_decoys: Vec<(u32, u64)>,
    /// As hard to guess as the secrets in the file, and the same as long as they are.
    digest: [u8; 32],
}

/// What stands for the secret of a user that does not exist: costs as much to check as a real one,
/// and no password is right.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decoy {
    Hash(Hash),
    /// The iterations.
    Scram(u32),
}

/// What is known of one user: equal as long as its password stays the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    hash: Option<Hash>,
    scram: Option<Credentials>,
}

/// A password hash of one of the known kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    Argon2id {
        memory_kib: u32,
        passes: u32,
        lanes: u32,
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    /// mosquitto's `$7$`.
    Pbkdf2Sha512 {
        iterations: u32,
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    /// mosquitto's `$6$`. Quick to guess; read, never written.
    Sha512 {
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
    /// Of a plugin of mosquitto. Read, never written.
    Plugin(PluginHash),
}

/// A password file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    #[error("cannot read password file {path}: {cause}{}", remedy(.cause))]
    Read { path: String, cause: std::io::Error },
    #[error("{path}:{line}: {detail}")]
    Line { path: String, line: usize, detail: &'static str },
}

/// What to do about it.
fn remedy(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::NotFound => "; create it with `quelea passwd`",
        std::io::ErrorKind::PermissionDenied => {
            "; the user of the broker must be able to read it and its directory: chgrp it to the \
             group of that user, and chmod 640"
        }
        _ => "",
    }
}

/// Memory of checks, one after the other: as much as the costliest of them took. It is of what is
/// set apart for them.
#[derive(Debug, Default)]
pub struct Scratch {
    blocks: Vec<Block>,
    loan: Option<Loan>,
}

impl Scratch {
    fn blocks(&mut self, count: usize) -> &mut [Block] {
        if self.blocks.len() < count {
            // Not beside what there was.
            *self = Self::default();
            self.loan = Some(Loan::of((count * Block::SIZE) as u64));
            self.blocks = vec![Block::default(); count];
        }
        &mut self.blocks[..count]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl PasswordFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or at the first line that is not understood: a user left out by
    /// mistake would be locked out silently.
    pub fn load(path: &Path) -> Result<Self, PasswordFileError> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| PasswordFileError::Read { path: shown(), cause })?;
        Self::parse(&text).map_err(|(line, detail)| PasswordFileError::Line {
            path: shown(),
            line,
            detail,
        })
    }

    /// Parses the text of a file. The error is a line number, from 1, and what is wrong there.
    ///
    /// # Errors
    ///
    /// The first line that is not understood.
    pub fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut file = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end_matches('\r');
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |detail| (index + 1, detail);
            let (name, secret) = split_line(line).ok_or(fail("write user:secret"))?;
            check_username(name).map_err(fail)?;
            let user = file.users.entry(name.into()).or_default();
            let is_second = match secret.strip_prefix(SCRAM_PREFIX) {
                Some(scram) => {
                    let scram =
                        Credentials::parse(scram).ok_or(fail("the SCRAM secret is damaged"))?;
                    user.scram.replace(scram).is_some()
                }
                None => user.hash.replace(Hash::parse(secret).map_err(fail)?).is_some(),
            };
            if is_second {
                return Err(fail("this user already has such a line"));
            }
        }
        file.digest = sha2::Sha256::digest(text).into();
        file.make_decoys();
        Ok(file)
    }

    /// Checks a password. Takes as long for a user that does not exist as for one that does: those
    /// that do not are shared out among the kinds of secrets as those are that do.
    pub fn verify(&self, username: &str, password: &[u8], decoy_secret: &[u8; 32]) -> bool {
        self.verify_with(&mut Scratch::default(), username, password, decoy_secret)
    }

    /// The same, with memory that is kept for the next check.
    pub fn verify_with(
        &self,
        scratch: &mut Scratch,
        username: &str,
        password: &[u8],
        decoy_secret: &[u8; 32],
    ) -> bool {
        let decoy = self.decoy_of(username, decoy_secret);
        let user = self.users.get(username);
        match user.map(|user| (&user.hash, &user.scram)) {
            Some((Some(hash), _)) => hash.verify_with(scratch, password),
            Some((None, Some(scram))) => scram.verify(password),
            _ => {
                match decoy {
                    Decoy::Hash(hash) => hash.verify_with(scratch, password),
                    Decoy::Scram(iterations) => {
                        Credentials { iterations, ..Credentials::decoy(decoy_secret, username) }
                            .verify(password)
                    }
                };
                false
            }
        }
    }

    /// SCRAM credentials for a user that has none: such as the others have, and none are right.
    pub fn scram_decoy(&self, username: &str, decoy_secret: &[u8; 32]) -> Credentials {
        let decoy = Credentials::decoy(decoy_secret, username);
        let share = share_of(username, decoy_secret);
        let iterations = pick(&self.scram_decoys, share).copied().unwrap_or(decoy.iterations);
        Credentials { iterations, ..decoy }
    }

    /// What the decoys of users that do not exist may be made from, where nothing else is kept.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn make_decoys(&mut self) {
        for user in self.users.values() {
            let decoy = match (&user.hash, &user.scram) {
                (Some(hash), _) => Decoy::Hash(hash.decoy()),
                (None, Some(scram)) => Decoy::Scram(scram.iterations),
                (None, None) => continue,
            };
            count(&mut self.decoys, decoy);
            if let Some(scram) = &user.scram {
                count(&mut self.scram_decoys, scram.iterations);
            }
        }
        // The order of a hash table is another one each time.
        self.decoys.sort_by_key(|(decoy, _)| format!("{decoy:?}"));
        self.scram_decoys.sort_unstable();
    }

    fn decoy_of(&self, username: &str, decoy_secret: &[u8; 32]) -> Decoy {
        let decoy = pick(&self.decoys, share_of(username, decoy_secret));
        decoy.cloned().unwrap_or_else(|| Decoy::Hash(Hash::new_decoy()))
    }

    /// The SCRAM credentials of a user that has them.
    pub fn scram(&self, username: &str) -> Option<&Credentials> {
        self.users.get(username)?.scram.as_ref()
    }

    /// The most memory that one check takes, in bytes: that of the costliest hash.
    pub fn check_bytes_max(&self) -> u64 {
        let of_users = self.users.values().filter_map(|user| user.hash.as_ref());
        of_users.map(Hash::check_bytes).max().unwrap_or(0)
    }

    pub fn knows(&self, username: &str) -> bool {
        self.users.contains_key(username)
    }

    pub fn user(&self, username: &str) -> Option<&User> {
        self.users.get(username)
    }

    /// The names of all users, in no order, each with whether it has credentials for SCRAM.
    pub fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        self.users.iter().map(|(name, user)| (name.as_str(), user.scram.is_some()))
    }

    pub fn user_count(&self) -> usize {
        self.users.len()
    }
}

impl Hash {
    /// Hashes a password the way new ones are stored, with a random salt.
    pub fn new(password: &[u8]) -> Self {
        let salt = random::<SALT_BYTES>().to_vec();
        let mut new = Self::Argon2id {
            memory_kib: Params::DEFAULT_M_COST,
            passes: Params::DEFAULT_T_COST,
            lanes: Params::DEFAULT_P_COST,
            salt,
            hash: vec![0; ARGON2_HASH_BYTES],
        };
        let computed = new.compute(&mut Scratch::default(), password).unwrap_or_default();
        if let Self::Argon2id { hash, .. } = &mut new {
            *hash = computed;
        }
        new
    }

    /// What a check takes of memory, beside a few bytes.
    fn check_bytes(&self) -> u64 {
        match self {
            Self::Argon2id { memory_kib, .. } => u64::from(*memory_kib) * 1024,
            Self::Pbkdf2Sha512 { .. } | Self::Sha512 { .. } | Self::Plugin(_) => 0,
        }
    }

    /// Reads the text after `user:`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let fields: Vec<&str> = text.split('$').collect();
        if let Some(parsed) = PluginHash::parse(&fields) {
            return parsed.map(Self::Plugin);
        }
        let parsed = match fields.as_slice() {
            ["", "argon2id", "v=19", costs, salt, hash] => parse_argon2id(costs, salt, hash),
            ["", "7", iterations, salt, hash] => parse_pbkdf2(iterations, salt, hash),
            ["", "6", salt, hash] => {
                decode_pair(salt, hash).map(|(salt, hash)| Self::Sha512 { salt, hash })
            }
            [_] => {
                return Err("the password is not hashed; write the line with `quelea passwd` or \
                            hash a whole file with `mosquitto_passwd -U`");
            }
            ["", "argon2i" | "argon2d", ..] => {
                return Err("only argon2id is read; write the line with `quelea passwd`");
            }
            _ => return Err("the secret is of an unknown kind; write it with `quelea passwd`"),
        };
        parsed.ok_or("the secret is damaged")
    }

    /// Compares in constant time.
    pub fn verify(&self, password: &[u8]) -> bool {
        self.verify_with(&mut Scratch::default(), password)
    }

    fn verify_with(&self, scratch: &mut Scratch, password: &[u8]) -> bool {
        let hash = match self {
            Self::Argon2id { hash, .. }
            | Self::Pbkdf2Sha512 { hash, .. }
            | Self::Sha512 { hash, .. } => hash,
            Self::Plugin(own) => {
                let mut computed = own.compute(password).into_iter();
                return computed.any(|computed| equal_in_constant_time(&computed, own.hash()));
            }
        };
        self.compute(scratch, password)
            .is_some_and(|computed| equal_in_constant_time(&computed, hash))
    }

    fn compute(&self, scratch: &mut Scratch, password: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Argon2id { memory_kib, passes, lanes, salt, hash } => {
                let params = Params::new(*memory_kib, *passes, *lanes, Some(hash.len())).ok()?;
                let mut computed = vec![0; hash.len()];
                let blocks = scratch.blocks(params.block_count());
                Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                    .hash_password_into_with_memory(password, salt, &mut computed, blocks)
                    .ok()?;
                Some(computed)
            }
            Self::Pbkdf2Sha512 { iterations, salt, hash } => {
                let mut computed = vec![0; hash.len()];
                pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, *iterations, &mut computed);
                Some(computed)
            }
            Self::Sha512 { salt, .. } => {
                Some(Sha512::new().chain_update(password).chain_update(salt).finalize().to_vec())
            }
            Self::Plugin(own) => own.compute(password).into_iter().next(),
        }
    }

    /// One that costs as much to check, and for which no password is right.
    fn decoy(&self) -> Self {
        let mut decoy = self.clone();
        match &mut decoy {
            Self::Argon2id { salt, hash, .. }
            | Self::Pbkdf2Sha512 { salt, hash, .. }
            | Self::Sha512 { salt, hash } => {
                salt.fill(0);
                hash.fill(0);
            }
            Self::Plugin(own) => *own = own.decoy(),
        }
        decoy
    }

    /// The same of the kind that new ones are.
    fn new_decoy() -> Self {
        Self::Argon2id {
            memory_kib: Params::DEFAULT_M_COST,
            passes: Params::DEFAULT_T_COST,
            lanes: Params::DEFAULT_P_COST,
            salt: vec![0; SALT_BYTES],
            hash: vec![0; ARGON2_HASH_BYTES],
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argon2id { memory_kib, passes, lanes, salt, hash } => {
                let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
                write!(f, "$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}")
            }
            Self::Pbkdf2Sha512 { iterations, salt, hash } => {
                write!(f, "$7${iterations}${}${}", STANDARD.encode(salt), STANDARD.encode(hash))
            }
            Self::Sha512 { salt, hash } => {
                write!(f, "$6${}${}", STANDARD.encode(salt), STANDARD.encode(hash))
            }
            Self::Plugin(own) => own.fmt(f),
        }
    }
}

/// The text of a file with the lines of one user replaced by `lines`, or taken out if there are
/// none. Everything else stays as it is, comments included.
pub fn with_user(text: &str, username: &str, lines: &[String]) -> String {
    let is_other = |line: &&str| !is_of(line, username);
    let mut kept: Vec<&str> = Vec::new();
    let mut at = None;
    for line in text.lines() {
        if is_other(&line) {
            kept.push(line);
        } else {
            at.get_or_insert(kept.len());
        }
    }
    let at = at.unwrap_or(kept.len());
    kept.splice(at..at, lines.iter().map(String::as_str));
    kept.iter().map(|line| format!("{line}\n")).collect()
}

/// Is the line of a file about this user?
pub fn is_of(line: &str, username: &str) -> bool {
    split_line(line).is_some_and(|(name, _)| name == username)
}

/// User name and secret. A name may have colons in it, as those with a namespace do: a secret
/// begins with a sign that does not follow a colon in a name.
fn split_line(line: &str) -> Option<(&str, &str)> {
    let at = SECRET_BEGINS.iter().filter_map(|begin| line.find(begin)).min();
    let at = at.or_else(|| line.find(':'))?;
    Some((&line[..at], &line[at + 1..]))
}

/// The secrets of a new or changed user as lines of the file.
pub fn user_lines(username: &str, password: &[u8], with_scram: bool) -> Vec<String> {
    let mut lines = vec![format!("{username}:{}", Hash::new(password))];
    if with_scram {
        let scram = Credentials::new(password, random(), super::scram::ITERATIONS);
        lines.push(format!("{username}:{SCRAM_PREFIX}{scram}"));
    }
    lines
}

/// What a line of the file can hold as a user name.
///
/// # Errors
///
/// What is wrong with the name.
pub fn check_username(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the username is empty"),
        _ if name.contains(['\n', '\r', '\0']) => {
            Err("a username cannot contain a line break or U+0000")
        }
        _ if name.ends_with(':') || SECRET_BEGINS.iter().any(|begin| name.contains(begin)) => {
            Err("a username cannot end with a colon, or have $, { or PBKDF2$ after one")
        }
        _ if name.starts_with('#') => Err("a username cannot begin with #, which begins a comment"),
        _ => codec::check_name(name).map_err(|error| error.detail),
    }
}

fn count<T: PartialEq>(kinds: &mut Vec<(T, u64)>, kind: T) {
    match kinds.iter_mut().find(|(known, _)| *known == kind) {
        Some((_, count)) => *count += 1,
        None => kinds.push((kind, 1)),
    }
}

/// One of the kinds, each as often as it was counted, by any number.
fn pick<T>(kinds: &[(T, u64)], number: u64) -> Option<&T> {
    let total: u64 = kinds.iter().map(|(_, count)| count).sum();
    let mut share = number.checked_rem(total)?;
    for (kind, count) in kinds {
        if share < *count {
            return Some(kind);
        }
        share -= count;
    }
    None
}

/// A number for a name that nobody can tell who does not know the secret.
fn share_of(username: &str, decoy_secret: &[u8; 32]) -> u64 {
    let mut mac = keyed(decoy_secret);
    mac.update(b"share\0");
    mac.update(username.as_bytes());
    let share: [u8; 32] = mac.finalize().into_bytes().into();
    u64::from_le_bytes(share[..8].try_into().unwrap_or_default())
}

fn parse_argon2id(costs: &str, salt: &str, hash: &str) -> Option<Hash> {
    let costs: Vec<&str> = costs.split(',').collect();
    let [memory, passes, lanes] = costs.as_slice() else { return None };
    let memory_kib = memory.strip_prefix("m=")?.parse().ok()?;
    let passes = passes.strip_prefix("t=")?.parse().ok()?;
    let lanes = lanes.strip_prefix("p=")?.parse().ok()?;
    let salt = STANDARD_NO_PAD.decode(salt).ok()?;
    let hash = STANDARD_NO_PAD.decode(hash).ok()?;
    Params::new(memory_kib, passes, lanes, Some(hash.len())).ok()?;
    let is_usable = salt.len() >= argon2::MIN_SALT_LEN && memory_kib <= ARGON2_MEMORY_KIB_MAX;
    is_usable.then_some(Hash::Argon2id { memory_kib, passes, lanes, salt, hash })
}

fn parse_pbkdf2(iterations: &str, salt: &str, hash: &str) -> Option<Hash> {
    let iterations =
        iterations.parse().ok().filter(|count| (1..=ITERATIONS_MAX).contains(count))?;
    let (salt, hash) = decode_pair(salt, hash)?;
    Some(Hash::Pbkdf2Sha512 { iterations, salt, hash })
}

/// An empty hash would be equal to any other.
fn decode_pair(salt: &str, hash: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let hash = STANDARD.decode(hash).ok().filter(|hash| hash.len() == SHA512_BYTES)?;
    Some((STANDARD.decode(salt).ok()?, hash))
}

/// What stands between a name and its secret, and how that begins.
const SECRET_BEGINS: [&str; 3] = [":$", ":{", ":PBKDF2$"];

const SCRAM_PREFIX: &str = "{SCRAM-SHA-256}";
const SALT_BYTES: usize = 16;
const ARGON2_HASH_BYTES: usize = 32;
const SHA512_BYTES: usize = 64;
/// 1 GiB: more is a typing error that would stop the broker.
const ARGON2_MEMORY_KIB_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    /// Written by mosquitto_passwd 2.0: anna has "s3cret", bob (`-H sha512`) has "geheim".
    const MOSQUITTO: &str = "anna:$7$101$0vHvMFlZRbkI93IX$tFNWO2tbSkApSmgwTmGk7zh/cUex4G\
        RqB+r8OQ+5D0689dA6WpQFFb51LCQbTfIMcxvvVqVH9O2ntThAieBS3Q==\nbob:$6$eWmafxbiSztnCB68$\
        qBjiLfzHqlf7bTl6c2phq9aSyaShWQp2XZtIiU91EB7Y++1w1d+j9BKnq33hEZ+n4FBht9/nK16w/c9VK/DYgg==\n";

    #[test]
    fn mosquittos_own_file_is_understood() {
        let file = PasswordFile::parse(MOSQUITTO).unwrap();
        assert!(file.verify("anna", b"s3cret", &SECRET) && file.verify("bob", b"geheim", &SECRET));
        assert!(
            !file.verify("anna", b"geheim", &SECRET)
                && !file.verify("bob", b"", &SECRET)
                && !file.verify("eve", b"x", &SECRET)
        );
        for line in MOSQUITTO.lines() {
            let secret = line.split_once(':').unwrap().1;
            assert_eq!(Hash::parse(secret).unwrap().to_string(), secret);
        }
    }

    #[test]
    fn a_new_user_gets_in_by_both_ways() {
        let text = user_lines("zoë", "pä:ss".as_bytes(), true).join("\n");
        let file = PasswordFile::parse(&text).unwrap();
        assert!(file.verify("zoë", "pä:ss".as_bytes(), &SECRET));
        assert!(!file.verify("zoë", b"pass", &SECRET));
        assert!(file.scram("zoë").unwrap().verify("pä:ss".as_bytes()));
        assert_eq!(file.user_count(), 1);
        let only_scram = text.lines().nth(1).unwrap();
        let file = PasswordFile::parse(only_scram).unwrap();
        assert!(file.verify("zoë", "pä:ss".as_bytes(), &SECRET));
    }

    #[test]
    fn a_user_that_does_not_exist_costs_what_one_of_the_file_costs() {
        let is_mosquittos = |file: &PasswordFile, name: &str| match file.decoy_of(name, &SECRET) {
            Decoy::Hash(Hash::Pbkdf2Sha512 { iterations: 101, .. }) => true,
            Decoy::Hash(Hash::Sha512 { .. }) => false,
            other => panic!("no such secret in the file: {other:?}"),
        };
        let both = PasswordFile::parse(MOSQUITTO).unwrap();
        let only_anna = PasswordFile::parse(MOSQUITTO.lines().next().unwrap()).unwrap();
        let names: Vec<String> = (0..200).map(|number| format!("eve-{number}")).collect();
        assert!(names.iter().all(|name| is_mosquittos(&only_anna, name)));
        let count = names.iter().filter(|name| is_mosquittos(&both, name)).count();
        assert!((60..140).contains(&count), "as many as of the other kind: {count}");
        for name in &names {
            assert_eq!(both.decoy_of(name, &SECRET), both.decoy_of(name, &SECRET));
            assert!(!both.verify(name, b"", &SECRET) && !only_anna.verify(name, b"", &SECRET));
        }
    }

    #[test]
    fn a_scram_decoy_is_of_the_kind_of_the_others() {
        let lines = user_lines("zoë", b"x", true).join("\n").replace("}10000,", "}4096,");
        let file = PasswordFile::parse(&lines).unwrap();
        let decoy = file.scram_decoy("eve", &SECRET);
        assert_eq!(decoy, file.scram_decoy("eve", &SECRET));
        assert_eq!((decoy.iterations, decoy.salt.len()), (4096, 16));
        assert_ne!(decoy.salt, file.scram_decoy("eva", &SECRET).salt);
    }

    #[test]
    fn the_argon2_reference_vector_holds() {
        // From the reference implementation's test.c: version 0x13, t=2, m=65536, p=1.
        let text = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$\
                    CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let hash = Hash::parse(text).unwrap();
        assert!(hash.verify(b"password") && !hash.verify(b"passwore"));
        assert_eq!(hash.to_string(), text);
    }

    #[test]
    fn hashes_of_plugins_are_understood_beside_others() {
        let plugins = "red:carl:PBKDF2$sha512$1000$c2FsdHNhbHRzYWx0$TnMw+/KSI/zicaVZxI3ZpmNP9aiAAbV\
                       2C8xDUlebSbbj6asgjKCQ04sz6C3XOPonmEx+5cGpObApBIQ+q1OJIA==\n\
                       dora:$2b$06$abcdefghijklmnopqrstuuNOnw6EGKc3988bZtxlqHMps74iVdpdC\n";
        let file = PasswordFile::parse(&[MOSQUITTO, plugins].concat()).unwrap();
        for user in ["anna", "red:carl", "dora"] {
            assert!(file.verify(user, b"s3cret", &SECRET), "{user}");
            assert!(!file.verify(user, b"geheim", &SECRET), "{user}");
        }
        for number in 0..20 {
            assert!(!file.verify(&format!("eve-{number}"), b"", &SECRET));
        }
    }

    #[test]
    fn damaged_lines_are_named() {
        for (line, what) in [
            ("anna", "user:secret"),
            (":x", "empty"),
            ("anna:plain", "not hashed"),
            ("anna:$5$a$b", "unknown kind"),
            ("anna:$7$0$QUJD$QUJD", "damaged"),
            ("anna:$6$QUJD$", "damaged"),
            ("anna:$2b$31$abcdefghijklmnopqrstuuNOnw6EGKc3988bZtxlqHMps74iVdpdC", "cost of bcrypt"),
            ("anna:PBKDF2$sha1$1$a$QUJD", "digest of PBKDF2"),
            ("anna:$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$QUJD", "only argon2id"),
            ("anna:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$", "damaged"),
            ("anna:{SCRAM-SHA-256}1,2,3", "damaged"),
        ] {
            let (number, detail) = PasswordFile::parse(&format!("# c\n\n{line}")).unwrap_err();
            assert!(number == 3 && detail.contains(what), "{line}: {detail}");
        }
        let (line, detail) = PasswordFile::parse(&[MOSQUITTO, MOSQUITTO].concat()).unwrap_err();
        assert!(line == 3 && detail.contains("already"));
    }

    #[test]
    fn changing_a_user_leaves_the_rest_alone() {
        let text = "# people\nanna:1\nbob:2\nanna:3\nannabel:4\n";
        let changed = with_user(text, "anna", &["anna:9".into()]);
        assert_eq!(changed, "# people\nanna:9\nbob:2\nannabel:4\n");
        assert_eq!(with_user(text, "anna", &[]), "# people\nbob:2\nannabel:4\n");
        assert_eq!(with_user("", "eve", &["eve:1".into()]), "eve:1\n");
        let text = "red:$1\nred:anna:$2\nred:anna:{SCRAM-SHA-256}3\n";
        assert_eq!(with_user(text, "red", &[]), "red:anna:$2\nred:anna:{SCRAM-SHA-256}3\n");
        assert_eq!(with_user(text, "red:anna", &["red:anna:$4".into()]), "red:$1\nred:anna:$4\n");
    }

    #[test]
    fn names_that_a_line_cannot_hold_are_refused() {
        for name in ["", "a:", "a:$b", "a:{b", "a\nb", "#a"] {
            assert!(check_username(name).is_err(), "{name:?}");
        }
        assert!(check_username("anna maria").is_ok());
    }
}
