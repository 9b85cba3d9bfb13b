//! The secret of a cluster with several cells, by which its nodes know each other: the key `secret`
//! of its bucket. `quelea cluster init` writes it once.

use std::fmt;

use anyhow::Context as _;

use super::engine::Engine;

/// 64 hexadecimal digits.
pub(super) const SECRET_KEY: &str = "secret";
const SECRET_BYTES: usize = 32;

/// It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret([u8; SECRET_BYTES]);

impl Secret {
    pub(crate) const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    fn read(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim_end();
        let is_whole =
            text.len() == 2 * SECRET_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut secret = [0; SECRET_BYTES];
        for (place, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
        }
        is_whole.then_some(Self(secret))
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Makes one if there is none.
///
/// # Errors
///
/// When the key is malformed, or the engine does not answer.
pub(super) async fn ensure(engine: &Engine) -> anyhow::Result<()> {
    if engine.get(SECRET_KEY).await?.is_none() {
        let new = Secret(base::random());
        // Another process may be faster: its secret counts.
        engine.put_if(SECRET_KEY, 0, new.to_bytes()).await.context("cannot write the secret")?;
    }
    of(engine.get(SECRET_KEY).await?).map(drop)
}

/// The secret in the key as it was found.
///
/// # Errors
///
/// When there is none, or it is malformed.
pub(super) fn of(found: Option<(u64, Vec<u8>)>) -> anyhow::Result<Secret> {
    let (_, value) = found.context("the cluster has no secret: run `quelea cluster init` again")?;
    Secret::read(&value).context("the key 'secret' of the bucket must have 64 hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_as_written_and_never_shown() {
        let secret = Secret(base::random());
        assert_eq!(Secret::read(&secret.to_bytes()), Some(secret.clone()));
        assert_eq!(format!("{secret:?}"), "Secret");
        let line_feed = [secret.to_bytes(), b"\n".to_vec()].concat();
        assert_eq!(Secret::read(&line_feed), Some(secret), "as an editor writes it");
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let digits = "0".repeat(2 * SECRET_BYTES);
        for wrong in ["", "0", &digits[1..], &format!("{digits}0"), &digits.replace('0', "g")] {
            assert_eq!(Secret::read(wrong.as_bytes()), None, "{wrong}");
        }
        let sign = format!("+1{}", &digits[2..]);
        assert_eq!(Secret::read(sign.as_bytes()), None);
    }
}
