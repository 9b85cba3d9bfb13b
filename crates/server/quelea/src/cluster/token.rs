//! The token of the API is the same on all nodes: the key `api.token` of the bucket. The first node
//! writes it, once. Each node reads it before its API begins, so a tool that has the token of one
//! node is let in by every node, also after a takeover.

use std::path::Path;

use anyhow::Context as _;

use super::connect::WaitReason;
use super::engine::{Engine, Put};
use crate::api::token;
use config::{Config, TOKEN_FILE};

/// The token and a line feed.
pub(super) const TOKEN_KEY: &str = "api.token";

/// Makes the cluster's token the one in this node's data directory; where the cluster has none, the
/// other way round. A file that an operator chose is left alone.
///
/// # Errors
///
/// The file cannot be used or written, or the key holds no token.
pub(super) async fn share(
    engine: &Engine,
    config: &Config,
    waiting: &WaitReason,
) -> anyhow::Result<()> {
    let directory = &config.server.data_dir;
    let Some(api) = config.api.as_ref().filter(|api| token::is_of_directory(api, directory)) else {
        return Ok(());
    };
    let path = &api.token_file;
    let own = token::known(path)?;
    let token = agreed(engine, own, waiting).await?;
    let has_changed = token::replace(path, &token);
    if has_changed.with_context(|| format!("cannot write {}", path.display()))? {
        let file = path.display();
        tracing::warn!(%file, "the token of the API was replaced by the one of the cluster");
    }
    Ok(())
}

/// The token of the cluster, which is `own` or a new one where it has none.
async fn agreed(
    engine: &Engine,
    own: Option<String>,
    waiting: &WaitReason,
) -> anyhow::Result<String> {
    let wanted = own.unwrap_or_else(token::fresh);
    loop {
        if let Some((_, value)) = waiting.answer_of(|| engine.get(TOKEN_KEY)).await {
            return read(&value);
        }
        // Another node may be faster. One of unknown fate may have been stored.
        let put = waiting.answer_of(|| engine.put_if(TOKEN_KEY, 0, value_of(&wanted)));
        if let Put::Written(_) = put.await {
            return Ok(wanted);
        }
    }
}

/// Writes the token into a directory that is exported, if the cluster has one.
///
/// # Errors
///
/// The engine does not answer, the key holds no token, or the file cannot be written.
pub(super) async fn export(engine: &Engine, directory: &Path) -> anyhow::Result<()> {
    let found = engine.get(TOKEN_KEY).await.context("cannot read the token of the API")?;
    let Some((_, value)) = found else { return Ok(()) };
    let path = directory.join(TOKEN_FILE);
    let written = token::replace(&path, &read(&value)?);
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// What the key holds for a token.
pub(super) fn value_of(token: &str) -> Vec<u8> {
    format!("{token}\n").into_bytes()
}

fn read(value: &[u8]) -> anyhow::Result<String> {
    let text = std::str::from_utf8(value).ok();
    let found = text.and_then(token::first_line).with_context(|| {
        format!(
            "the key '{TOKEN_KEY}' of the bucket holds no token: its first line must have {} \
             characters or more; put one there with `nats kv put`",
            token::CHARS_MIN
        )
    })?;
    Ok(found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(read(&value_of("0123456789abcdef")).unwrap(), "0123456789abcdef");
        assert_eq!(read(b" 0123456789abcdef").unwrap(), "0123456789abcdef", "put by hand");
        for wrong in [&b""[..], b"short\n", b"\n0123456789abcdef", b"\xff0123456789abcdef"] {
            assert!(read(wrong).unwrap_err().to_string().contains("nats kv put"));
        }
    }
}
