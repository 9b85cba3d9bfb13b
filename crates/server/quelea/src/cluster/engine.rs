//! NATS with JetStream, as far as a node needs it: fenced appends, reads by the leader, a key-value
//! store with compare-and-set, streams that are followed. What a node asks is tried once, and the
//! answer says what is known: the node decides. A command line has some patience, see
//! [`Engine::patient`].
//!
//! Requests of the JetStream API are written here and not taken from the library's stream objects,
//! because the difference between "not stored" and "unknown" must not be lost on the way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::Request as NatsRequest;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::{Client, HeaderMap, Message, RequestErrorKind, Subscriber, jetstream};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use broker::ShardId;
use bytes::Bytes;
use cluster::{
    ANSWER_MS_MAX, Answer, BlockFile, BlockRequest, Body, CELL, LeaseAnswer, LeaseRequest, Request,
    Sequence,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use base::complain;

/// A message of a stream that is followed.
pub(crate) struct Followed {
    /// Of the order to follow that it answers.
    pub(crate) round: u64,
    pub(crate) sequence: Sequence,
    pub(crate) body: Body,
}

/// Where the messages of a stream that is followed go.
pub(crate) struct FollowedBy {
    /// The name of the stream.
    pub(crate) stream: String,
    /// Messages in its midst may have been removed: then the next one on these subjects follows.
    pub(crate) over_gaps: Option<String>,
    pub(crate) round: u64,
    pub(crate) to: mpsc::Sender<Followed>,
}

impl FollowedBy {
    /// How the leader is asked for the next message.
    fn asked(&self, next: Sequence) -> Value {
        match &self.over_gaps {
            Some(subjects) => json!({ "seq": next, "next_by_subj": subjects }),
            None => json!({ "seq": next }),
        }
    }

    /// False: nobody takes them any more.
    async fn deliver(&self, sequence: Sequence, body: Body) -> bool {
        self.to.send(Followed { round: self.round, sequence, body }).await.is_ok()
    }
}

/// A message as the engine has it.
struct Stored {
    sequence: Sequence,
    headers: Vec<u8>,
    body: Vec<u8>,
}

/// What became of a compare-and-set.
pub(crate) enum Put {
    /// The new revision.
    Written(u64),
    Conflict,
}

/// The names of what a cluster has in the engine.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    cluster: Arc<str>,
}

impl Names {
    pub(crate) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into() }
    }

    /// Of what a cell of a cluster with several has: a cluster of one cell, with a name of its own.
    pub(crate) fn of_cell(cluster: &str, cell: u16) -> Self {
        Self::new(&format!("{cluster}-c{cell}"))
    }

    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The stream of all shards of the only cell.
    pub(crate) fn stream(&self) -> String {
        format!("{}-cell-{CELL:03}", self.cluster)
    }

    pub(crate) fn stream_subject(&self) -> String {
        format!("quelea.{}.cell.{CELL:03}", self.cluster)
    }

    /// The stream with the files of the MQTT streams of the only cell.
    pub(crate) fn blocks(&self) -> String {
        format!("{}-blocks-{CELL:03}", self.cluster)
    }

    /// Of all files.
    pub(crate) fn blocks_subjects(&self) -> String {
        format!("quelea.{}.blocks.{CELL:03}.>", self.cluster)
    }

    /// Of the files of one MQTT stream.
    fn subjects_of_stream(&self, stream: u32) -> String {
        format!("quelea.{}.blocks.{CELL:03}.{stream}.*", self.cluster)
    }

    fn subject_of_file(&self, file: BlockFile) -> String {
        let BlockFile { stream, file } = file;
        format!("quelea.{}.blocks.{CELL:03}.{stream}.{file}", self.cluster)
    }

    /// The stream of a shard in a cluster of format 1.
    pub(crate) fn old_stream(&self, shard: ShardId) -> String {
        format!("{}-shard-{shard:03}", self.cluster)
    }

    pub(crate) fn bucket(&self) -> String {
        format!("{}-cluster", self.cluster)
    }

    pub(crate) fn bucket_stream(&self) -> String {
        format!("KV_{}", self.bucket())
    }

    pub(crate) fn key_subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket())
    }

    /// A subject of core NATS: nothing of it is stored.
    pub(crate) fn talk_subject(&self, topic: &str) -> String {
        format!("quelea.{}.{topic}", self.cluster)
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Engine {
    client: Client,
    names: Names,
    /// For how long a request without an answer is repeated. Zero: it is not.
    patience: Duration,
}

/// Why a request has no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// Certainly nothing was done.
    #[error("the stream has no leader at present")]
    NoResponders,
    #[error("{0}")]
    Unknown(String),
    /// The engine says no.
    #[error("{description} (code {code})")]
    Refused { code: u64, description: String },
}

impl EngineError {
    /// The same request may be answered a moment later.
    fn is_passing(&self) -> bool {
        match self {
            Self::NoResponders | Self::Unknown(_) => true,
            // A server that restarts, or that others have not heard of yet, is no place for copies.
            Self::Refused { code: NO_PLACEMENT, description } => description.contains(PEER_OFFLINE),
            Self::Refused { code, .. } => *code == NOT_READY,
        }
    }
}

impl Engine {
    pub(crate) const fn new(client: Client, names: Names) -> Self {
        Self { client, names, patience: Duration::ZERO }
    }

    /// For a command line: calls of the API and writes of keys that are not answered are repeated
    /// for so long. All of them may be repeated: a stream that exists as it is wanted can be
    /// created again, and each write of a key has an identifier by which the engine knows it.
    pub(crate) fn patient(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// For a node, which has its own ways to go on without an answer.
    pub(crate) fn impatient(&self) -> Self {
        self.patient(Duration::ZERO)
    }

    /// The same connection, for a cell of this cluster.
    pub(crate) fn of_cell(&self, cell: u16) -> Self {
        Self { names: Names::of_cell(self.names.cluster(), cell), ..self.clone() }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    pub(crate) const fn names(&self) -> &Names {
        &self.names
    }

    /// Asks the stream.
    pub(crate) async fn ask(&self, request: Request) -> Answer {
        let stream = self.names.stream();
        match request {
            Request::Append { after, body } => {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Expected-Last-Sequence", after.to_string());
                let payload = Bytes::from_owner(body);
                match self.publish_acked(self.names.stream_subject(), headers, payload).await {
                    Ok(sequence) => Answer::Appended(sequence),
                    Err(error) => answer_of(error),
                }
            }
            Request::Message { sequence } => {
                match self.stored(&stream, json!({ "seq": sequence })).await {
                    Ok(found) => Answer::Message(found.map(|(_, body)| body.into())),
                    Err(error) => Answer::Unknown(error.to_string()),
                }
            }
            Request::Ends => self.ends(&stream).await,
            Request::Purge { before } => {
                let asked = json!({ "seq": before });
                match self.api(&format!("STREAM.PURGE.{stream}"), asked).await {
                    Ok(_) => Answer::Purged,
                    Err(error) => Answer::Unknown(error.to_string()),
                }
            }
        }
    }

    /// Asks where a stream begins and ends.
    pub(crate) async fn ends(&self, stream: &str) -> Answer {
        match self.api(&format!("STREAM.INFO.{stream}"), Value::Null).await {
            Ok(info) => ends(&info),
            Err(error) => Answer::Unknown(error.to_string()),
        }
    }

    /// Asks the stream with the files of MQTT streams.
    pub(crate) async fn ask_blocks(&self, request: BlockRequest) -> Answer {
        let subject = match request {
            BlockRequest::Append { file, body } => {
                let (subject, payload) =
                    (self.names.subject_of_file(file), Bytes::from_owner(body));
                return match self.publish_acked(subject, HeaderMap::new(), payload).await {
                    Ok(sequence) => Answer::Appended(sequence),
                    Err(error) => answer_of(error),
                };
            }
            BlockRequest::Remove { file } => self.names.subject_of_file(file),
            BlockRequest::RemoveStream { stream } => self.names.subjects_of_stream(stream),
        };
        let call = format!("STREAM.PURGE.{}", self.names.blocks());
        match self.api(&call, json!({ "filter": subject })).await {
            Ok(_) => Answer::Purged,
            Err(error) => Answer::Unknown(error.to_string()),
        }
    }

    /// The first message of a file from this sequence on; `None`: of any file.
    ///
    /// # Errors
    ///
    /// When the engine does not answer.
    pub(crate) async fn block_from(
        &self,
        file: Option<BlockFile>,
        from: Sequence,
    ) -> io::Result<Option<(Sequence, Vec<u8>)>> {
        let of_file = file.map(|file| self.names.subject_of_file(file));
        let subject = of_file.unwrap_or_else(|| self.names.blocks_subjects());
        let asked = json!({ "seq": from, "next_by_subj": subject });
        let found = self.stored(&self.names.blocks(), asked).await;
        found.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Whether the cluster has a stream for the files of MQTT streams.
    ///
    /// # Errors
    ///
    /// When the engine does not answer.
    pub(crate) async fn has_blocks(&self) -> io::Result<bool> {
        match self.api(&format!("STREAM.INFO.{}", self.names.blocks()), Value::Null).await {
            Ok(_) => Ok(true),
            Err(EngineError::Refused { code: NO_STREAM, .. }) => Ok(false),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// How many files the engine has, and the last sequence as of then.
    ///
    /// # Errors
    ///
    /// When the engine does not answer.
    pub(crate) async fn block_ends(&self) -> Result<(u64, Sequence), EngineError> {
        let info = self.api(&format!("STREAM.INFO.{}", self.names.blocks()), Value::Null).await?;
        let state = &info["state"];
        match (state["num_subjects"].as_u64(), state["last_seq"].as_u64()) {
            // An empty stream does not name its subjects.
            (files, Some(last)) => Ok((files.unwrap_or_default(), last)),
            _ => Err(EngineError::Unknown("the answer has no state of the stream".to_owned())),
        }
    }

    /// The files that the engine has, and the last sequence as of then.
    ///
    /// # Errors
    ///
    /// When the engine does not answer.
    pub(crate) async fn block_files(&self) -> Result<(Vec<BlockFile>, Sequence), EngineError> {
        let mut files = Vec::new();
        let call = format!("STREAM.INFO.{}", self.names.blocks());
        loop {
            let asked =
                json!({ "subjects_filter": self.names.blocks_subjects(), "offset": files.len() });
            let info = self.api(&call, asked).await?;
            let Answer::Ends { last, .. } = ends(&info) else {
                return Err(EngineError::Unknown("the answer has no state".to_owned()));
            };
            let page = info["state"]["subjects"].as_object().into_iter().flatten();
            let before = files.len();
            files.extend(page.filter_map(|(subject, _)| file_of_subject(subject)));
            let total = info["total"].as_u64().unwrap_or_default() as usize;
            if files.len() >= total || files.len() == before {
                return Ok((files, last));
            }
        }
    }

    /// Asks the key with the lease.
    pub(crate) async fn ask_lease(&self, request: LeaseRequest) -> LeaseAnswer {
        let asked = match request {
            LeaseRequest::Read => match self.get(LEASE_KEY).await {
                Ok(Some((revision, value))) => Ok(LeaseAnswer::Found { revision, value }),
                Ok(None) => Ok(LeaseAnswer::Missing),
                Err(error) => Err(error),
            },
            LeaseRequest::Write { expected, value } => {
                match self.put_if(LEASE_KEY, expected, value).await {
                    Ok(Put::Written(revision)) => Ok(LeaseAnswer::Written(revision)),
                    Ok(Put::Conflict) => Ok(LeaseAnswer::Conflict),
                    Err(error) => Err(error),
                }
            }
        };
        asked.unwrap_or_else(|error| LeaseAnswer::Unknown(error.to_string()))
    }

    /// The value of a key as the leader has it, with its revision.
    ///
    /// # Errors
    ///
    /// When the engine does not answer.
    pub(crate) async fn get(&self, key: &str) -> io::Result<Option<(u64, Vec<u8>)>> {
        let asked = json!({ "last_by_subj": self.names.key_subject(key) });
        let found = self.stored(&self.names.bucket_stream(), asked).await;
        found.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Writes a key that has this revision; 0: that is not there.
    ///
    /// # Errors
    ///
    /// When it is not known what happened.
    pub(crate) async fn put_if(&self, key: &str, expected: u64, value: Vec<u8>) -> io::Result<Put> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        let id = format!("{:032x}", u128::from_ne_bytes(base::random()));
        if !self.patience.is_zero() {
            headers.insert(WRITE_ID, id.as_str());
        }
        let (subject, value) = (self.names.key_subject(key), Bytes::from(value));
        let put = repeat(self.patience, || {
            self.publish_acked(subject.clone(), headers.clone(), value.clone())
        });
        match put.await {
            Ok(revision) => Ok(Put::Written(revision)),
            Err(EngineError::Refused { code, .. }) if WRONG_SEQUENCE.contains(&code) => {
                self.why_conflict(key, &id).await
            }
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// A write that was repeated conflicts with itself if only the answer to the first one was
    /// lost.
    async fn why_conflict(&self, key: &str, id: &str) -> io::Result<Put> {
        if self.patience.is_zero() {
            return Ok(Put::Conflict);
        }
        let asked = json!({ "last_by_subj": self.names.key_subject(key) });
        let found = self.message(&self.names.bucket_stream(), asked).await;
        let found = found.map_err(|error| io::Error::other(error.to_string()))?;
        let Some(Stored { sequence, headers, .. }) = found else { return Ok(Put::Conflict) };
        let is_own = headers.windows(id.len()).any(|part| part == id.as_bytes());
        Ok(if is_own { Put::Written(sequence) } else { Put::Conflict })
    }

    /// Delivers the messages of a stream from a sequence on, in order, as long as they are taken.
    /// After a reconnect or a new leader it goes on behind the last one. Never returns.
    ///
    /// A consumer lives on one server and dies with it, which the library notices late. So whenever
    /// it is silent the leader is asked for the next message: a takeover must not wait for it.
    pub(crate) async fn follow(&self, from: Sequence, to: FollowedBy) {
        let mut next = from.max(1);
        loop {
            let made =
                tokio::time::timeout(CONSUMER_TIMEOUT, self.consumer(&to.stream, next)).await;
            if let Ok(Ok(messages)) = made {
                self.consume(messages, &mut next, &to).await;
            }
            self.read_on(&mut next, &to).await;
            tokio::time::sleep(FOLLOW_RETRY).await;
        }
    }

    async fn consumer(
        &self,
        stream: &str,
        start_sequence: Sequence,
    ) -> Result<pull::Ordered, async_nats::Error> {
        let context = jetstream::new(self.client.clone());
        let stream = context.get_stream_no_info(stream).await?;
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
            ..pull::OrderedConfig::default()
        };
        Ok(stream.create_consumer(config).await?.messages().await?)
    }

    /// Delivers what a consumer brings, until it fails or is silent though there is more.
    async fn consume(&self, mut messages: pull::Ordered, next: &mut Sequence, to: &FollowedBy) {
        loop {
            match tokio::time::timeout(SILENCE_MAX, messages.next()).await {
                Ok(Some(Ok(message))) => {
                    let Ok(info) = message.info() else { return };
                    let (sequence, body) = (info.stream_sequence, Arc::from(&message.payload[..]));
                    *next = sequence + 1;
                    if !to.deliver(sequence, body).await {
                        return;
                    }
                }
                Ok(_) => return,
                Err(_) if self.read_on(next, to).await > 0 => return,
                Err(_) => {}
            }
        }
    }

    /// Delivers what the leader has behind what was delivered last; says how much.
    async fn read_on(&self, next: &mut Sequence, to: &FollowedBy) -> usize {
        for count in 0..READ_ON_MAX {
            let found = self.stored(&to.stream, to.asked(*next)).await;
            let Ok(Some((sequence, body))) = found else { return count };
            *next = sequence + 1;
            if !to.deliver(sequence, body.into()).await {
                return count;
            }
        }
        READ_ON_MAX
    }

    /// Tells all nodes something, by core NATS: it may be lost.
    pub(crate) async fn publish(&self, topic: &str, payload: Vec<u8>) {
        let subject = self.names.talk_subject(topic);
        if let Err(error) = self.client.publish(subject, payload.into()).await {
            tracing::debug!(%error, "cannot publish the status of this node");
        }
    }

    /// Reports and requests of other nodes.
    ///
    /// # Errors
    ///
    /// When there is no connection.
    pub(crate) async fn listen(&self, topic: &str) -> io::Result<Subscriber> {
        let subject = self.names.talk_subject(topic);
        self.client.subscribe(subject).await.map_err(io::Error::other)
    }

    /// A call of the JetStream API. The answer as the leader gives it.
    pub(crate) async fn api(&self, call: &str, asked: Value) -> Result<Value, EngineError> {
        let payload = match asked {
            Value::Null => Bytes::new(),
            asked => asked.to_string().into(),
        };
        let subject = format!("$JS.API.{call}");
        let answer = repeat(self.patience, || async {
            checked(&self.request(subject.clone(), HeaderMap::new(), payload.clone()).await?)
        });
        answer.await
    }

    async fn stored(
        &self,
        stream: &str,
        asked: Value,
    ) -> Result<Option<(u64, Vec<u8>)>, EngineError> {
        let found = self.message(stream, asked).await?;
        Ok(found.map(|Stored { sequence, body, .. }| (sequence, body)))
    }

    async fn message(&self, stream: &str, asked: Value) -> Result<Option<Stored>, EngineError> {
        let found = match self.api(&format!("STREAM.MSG.GET.{stream}"), asked).await {
            Err(EngineError::Refused { code: NO_MESSAGE, .. }) => return Ok(None),
            found => found?,
        };
        let message = &found["message"];
        let malformed = || EngineError::Unknown("the answer has no message".to_owned());
        let part = |key: &str| {
            let encoded = message[key].as_str().unwrap_or_default();
            BASE64_STANDARD.decode(encoded).map_err(|_| malformed())
        };
        let sequence = message["seq"].as_u64().ok_or_else(malformed)?;
        Ok(Some(Stored { sequence, headers: part("hdrs")?, body: part("data")? }))
    }

    async fn publish_acked(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Sequence, EngineError> {
        let message = self.request(subject, headers, payload).await?;
        let answer = checked(&message)?;
        let missing = || EngineError::Unknown("the acknowledgement has no sequence".to_owned());
        answer["seq"].as_u64().ok_or_else(missing)
    }

    async fn request(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Message, EngineError> {
        let request =
            NatsRequest::new().headers(headers).payload(payload).timeout(Some(ANSWER_TIMEOUT));
        self.client.send_request(subject, request).await.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => EngineError::NoResponders,
            _ => EngineError::Unknown(format!("the engine does not answer: {error}")),
        })
    }
}

/// Asks until there is an answer, or the patience has ended.
async fn repeat<T, F>(patience: Duration, ask: impl Fn() -> F) -> Result<T, EngineError>
where
    F: Future<Output = Result<T, EngineError>>,
{
    let ends_at = Instant::now() + patience;
    let mut is_first = true;
    loop {
        match ask().await {
            Err(error) if error.is_passing() && Instant::now() < ends_at => {
                if std::mem::take(&mut is_first) {
                    complain(&format!("NATS does not answer, retrying: {error}"));
                }
                tokio::time::sleep(REPEAT_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

fn checked(message: &Message) -> Result<Value, EngineError> {
    let answer: Value = serde_json::from_slice(&message.payload).map_err(|error| {
        EngineError::Unknown(format!(
            "the answer of the engine must be JSON: \
        {error}"
        ))
    })?;
    match &answer["error"] {
        Value::Null => Ok(answer),
        error => Err(EngineError::Refused {
            code: error["err_code"].as_u64().unwrap_or_default(),
            description: error["description"].as_str().unwrap_or("no description").to_owned(),
        }),
    }
}

fn answer_of(error: EngineError) -> Answer {
    match error {
        EngineError::NoResponders => Answer::Unavailable(error.to_string()),
        EngineError::Refused { code, .. } if WRONG_SEQUENCE.contains(&code) => {
            Answer::WrongSequence
        }
        EngineError::Refused { code, description } if NO_SPACE.contains(&code) => {
            Answer::NoSpace(description)
        }
        EngineError::Refused { code: STORE_FAILED, description }
            if description.starts_with("maximum ") =>
        {
            Answer::NoSpace(description)
        }
        error => Answer::Unknown(error.to_string()),
    }
}

fn file_of_subject(subject: &str) -> Option<BlockFile> {
    let (subject, file) = subject.rsplit_once('.')?;
    let (_, stream) = subject.rsplit_once('.')?;
    Some(BlockFile { stream: stream.parse().ok()?, file: file.parse().ok()? })
}

fn ends(info: &Value) -> Answer {
    let state = &info["state"];
    match (state["first_seq"].as_u64(), state["last_seq"].as_u64()) {
        (Some(first), Some(last)) => Answer::Ends { first, last },
        _ => Answer::Unknown("the answer has no state of the stream".to_owned()),
    }
}

/// The key with the lease.
pub(crate) const LEASE_KEY: &str = "lease";

/// Error codes of the JetStream API: the expected last sequence was another one, or is not known
/// to the leader yet.
const WRONG_SEQUENCE: [u64; 2] = [10071, 10164];
/// Storage or resources of a server or of the account exceeded, before anything was proposed.
const NO_SPACE: [u64; 3] = [10047, 10023, 10002];
const STORE_FAILED: u64 = 10077;
const NO_MESSAGE: u64 = 10037;
pub(crate) const NO_STREAM: u64 = 10059;
/// There is a stream of that name with another configuration.
pub(crate) const STREAM_EXISTS: u64 = 10058;
/// The servers elect who answers.
const NOT_READY: u64 = 10008;
/// Too few servers for the copies of a stream, and that one of them is not there.
const NO_PLACEMENT: u64 = 10005;
const PEER_OFFLINE: &str = "peer offline";

/// The header that tells the writes of a command line apart.
const WRITE_ID: &str = "Quelea-Write";

const ANSWER_TIMEOUT: Duration = Duration::from_millis(ANSWER_MS_MAX);
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);
const FOLLOW_RETRY: Duration = Duration::from_millis(100);
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1);
/// After so long without a message the leader is asked whether there is one.
const SILENCE_MAX: Duration = Duration::from_millis(300);
/// Messages that are read one by one before a consumer is made again.
const READ_ON_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_file_is_found_by_its_subject() {
        let (names, file) = (Names::new("one"), BlockFile { stream: 7, file: 3_000_000_001 });
        let subject = names.subject_of_file(file);
        assert_eq!(subject, "quelea.one.blocks.000.7.3000000001");
        assert_eq!(file_of_subject(&subject), Some(file));
        assert_eq!(file_of_subject(&names.stream_subject()), None);
    }

    /// Says how often it was asked before `repeat` returned, and what that was.
    fn repeated(patience_ms: u64, answers: Vec<Result<(), EngineError>>) -> (usize, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (count, rest) = (answers.len(), RefCell::new(answers.into_iter()));
        let ask = || std::future::ready(rest.borrow_mut().next().expect("asked too often"));
        let answer = runtime.block_on(repeat(Duration::from_millis(patience_ms), ask));
        (count - rest.borrow().len(), answer.is_ok())
    }

    #[test]
    fn a_request_without_an_answer_is_repeated_until_the_patience_ends() {
        let silent = || Err(EngineError::Unknown("silent".to_owned()));
        let refused = |code| Err(EngineError::Refused { code, description: String::new() });
        assert_eq!(repeated(0, vec![silent(), Ok(())]), (1, false), "a node");
        assert_eq!(repeated(60_000, vec![silent(), Ok(())]), (2, true));
        assert_eq!(repeated(60_000, vec![Err(EngineError::NoResponders), Ok(())]), (2, true));
        assert_eq!(repeated(60_000, vec![refused(NOT_READY), Ok(())]), (2, true));
        assert_eq!(repeated(60_000, vec![refused(NO_STREAM), Ok(())]), (1, false));
        let no_place = |why: &str| {
            let description = format!("no suitable peers for placement, {why}");
            Err(EngineError::Refused { code: NO_PLACEMENT, description })
        };
        assert_eq!(repeated(60_000, vec![no_place(PEER_OFFLINE), Ok(())]), (2, true));
        assert_eq!(repeated(60_000, vec![no_place("tags"), Ok(())]), (1, false));
        assert_eq!(repeated(1, vec![silent(), silent(), Ok(())]), (2, false), "its end");
    }

    #[test]
    fn an_engine_without_space_is_no_unknown_answer() {
        let of_engine = [
            (10002, "resource limits exceeded for account"),
            (10023, "insufficient resources"),
            (10047, "insufficient storage resources available"),
            (10077, "maximum bytes exceeded"),
        ];
        for (code, description) in of_engine {
            let description = description.to_owned();
            let answer = answer_of(EngineError::Refused { code, description });
            assert!(matches!(answer, Answer::NoSpace(_)), "{code}: {answer:?}");
        }
        let unknown = EngineError::Refused { code: 10077, description: "no such file".to_owned() };
        assert!(matches!(answer_of(unknown), Answer::Unknown(_)));
    }
}
