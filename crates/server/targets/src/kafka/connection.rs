//! A producer of the library, with the relay that it connects through.

use std::sync::Arc;
use std::time::Duration;

use krafka::auth::{AuthConfig, OAuthBearerToken};
use krafka::producer::Producer;
use krafka::{CloseOptions, Kafka, KrafkaError, ProxyConfig};
use tokio::time::timeout;

use super::settings::{Compression, Login, Settings};
use super::token::Tokens;
use crate::dial::Dialer;
use crate::relay::{LastFault, Relay};

/// A producer that is logged in.
pub(super) struct Connection {
    pub producer: Producer,
    relay: Relay,
}

impl Connection {
    /// # Errors
    ///
    /// Why there is none, in words: addresses, TLS, login, or no answer.
    pub(super) async fn open(
        settings: &Settings,
        dialer: &Dialer,
        tokens: Option<&Arc<Tokens>>,
    ) -> Result<Self, Arc<str>> {
        let relay = Relay::start(dialer.clone())
            .await
            .map_err(|error| format!("cannot start the relay for Kafka: {error}"))?;
        let opening = open_producer(settings, &relay, tokens);
        match timeout(2 * settings.request_time_max, opening).await {
            Ok(Ok(producer)) => Ok(Self { producer, relay }),
            Ok(Err(error)) => Err(explain(&error, relay.last_fault())),
            Err(_) => Err(explain(&KrafkaError::timeout("connecting"), relay.last_fault())),
        }
    }

    pub(super) fn last_fault(&self) -> &LastFault {
        self.relay.last_fault()
    }

    /// Fails what it still has, and ends.
    pub(super) async fn close(&self, time_max: Duration) {
        // What it could not send has an answer by then.
        let _ = self.producer.close_with(CloseOptions::new().timeout(time_max)).await;
    }
}

/// The library's error, and why the relay had no connection for it.
pub(super) fn explain(error: &KrafkaError, last_fault: &LastFault) -> Arc<str> {
    match (error, last_fault.get()) {
        // The relay knows more.
        (KrafkaError::Network(_) | KrafkaError::Timeout { .. }, Some(fault)) => fault,
        (error, Some(fault)) => format!("{error}; last connection: {fault}").into(),
        (error, None) => error.to_string().into(),
    }
}

async fn open_producer(
    settings: &Settings,
    relay: &Relay,
    tokens: Option<&Arc<Tokens>>,
) -> krafka::Result<Producer> {
    let (name, password) = relay.login();
    let proxy = ProxyConfig::with_credentials(relay.address().to_string(), name, password);
    let mut builder = Kafka::builder(settings.servers.join(","))
        .client_id(&settings.client_id)
        .proxy(proxy)
        .tcp_keepalive(None)
        .connect_timeout(settings.request_time_max)
        .request_timeout(settings.request_time_max)
        .connections_max_idle(Some(IDLE_TIME_MAX))
        .max_response_size(RESPONSE_BYTES_MAX);
    if let Some(tokens) = tokens {
        builder = builder.security(tokens_of(Arc::clone(tokens)));
    } else if let Some(login) = &settings.login {
        builder = builder.security(security(login)?);
    }
    let record_bytes = settings.record_bytes_max + RECORD_OVERHEAD;
    let producer = builder.connect().await?.producer();
    producer
        .compression(compression(settings.compression))
        .batch_size(BATCH_BYTES)
        .linger(settings.linger)
        .delivery_timeout(settings.delivery_time_max)
        .max_block(settings.request_time_max)
        .max_request_size(REQUEST_BYTES.max(record_bytes))
        .buffer_memory(BUFFER_BYTES.max(record_bytes))
        .metrics_push(false)
        .build()
        .await
}

/// The relay adds TLS.
fn security(login: &Login) -> krafka::Result<AuthConfig> {
    let read = |secret: &crate::Secret| {
        secret.read().map_err(|error| KrafkaError::auth(error.to_string()))
    };
    Ok(match login {
        Login::Plain { username, password } => AuthConfig::sasl_plain(username, read(password)?),
        Login::ScramSha256 { username, password } => {
            AuthConfig::sasl_scram_sha256(username, read(password)?)
        }
        Login::ScramSha512 { username, password } => {
            AuthConfig::sasl_scram_sha512(username, read(password)?)
        }
        Login::OAuthBearerFrom(_) => return Err(KrafkaError::config("no token endpoint")),
        Login::OAuthBearer { token } => {
            let token = token.clone();
            AuthConfig::sasl_oauthbearer_provider(move || {
                let read = token.read().map_err(|error| KrafkaError::auth(error.to_string()));
                std::future::ready(read.map(OAuthBearerToken::new))
            })
        }
    })
}

fn tokens_of(tokens: Arc<Tokens>) -> AuthConfig {
    AuthConfig::sasl_oauthbearer_provider(move || {
        let tokens = Arc::clone(&tokens);
        async move {
            let token = tokens.token().await;
            token.map(OAuthBearerToken::new).map_err(|error| KrafkaError::auth(error.to_string()))
        }
    })
}

fn compression(compression: Compression) -> krafka::Compression {
    match compression {
        Compression::None => krafka::Compression::None,
        Compression::Gzip => krafka::Compression::Gzip,
        Compression::Lz4 => krafka::Compression::Lz4,
        Compression::Zstd => krafka::Compression::Zstd,
    }
}

/// Event Hubs closes idle connections after four minutes.
const IDLE_TIME_MAX: Duration = Duration::from_secs(180);
/// Of one partition. A record with more bytes is alone in its batch, so a server that accepts this
/// much refuses large records only, and no record beside them.
pub(super) const BATCH_BYTES: usize = 256 * 1024;
/// Of all partitions of a server.
const REQUEST_BYTES: usize = 8 * 1024 * 1024;
/// Records in the library, of all batches.
const BUFFER_BYTES: usize = 32 * 1024 * 1024;
/// Lengths, times and headers of the protocol around a record.
const RECORD_OVERHEAD: usize = 64 * 1024;
/// Metadata of clusters with many partitions.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
