//! `quelea cluster init`: the stream and the bucket of a cluster.

use anyhow::{Context as _, bail, ensure};
use cluster::{Extent, Record};
use serde_json::{Value, json};

use super::connect::CLUSTER_KEY;
use super::engine::{Engine, EngineError, NO_STREAM, Put, STREAM_EXISTS};

/// What is to be made.
pub(crate) struct Plan {
    pub(crate) shards: u16,
    /// The number was asked for. If not, that of a cluster that is there is taken.
    pub(crate) shards_are_fixed: bool,
    pub(crate) segment_bytes: u32,
    /// Copies that the engine keeps of the stream.
    pub(crate) replicas: u8,
    /// Of the stream; `None`: no limit.
    pub(crate) stream_bytes_max: Option<u64>,
}

/// What there was to do.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) shards: u16,
    pub(crate) streams_made: usize,
    pub(crate) streams_found: usize,
    pub(crate) is_new: bool,
}

/// Makes what is missing. Changes nothing that is there.
///
/// # Errors
///
/// When something that is there is not as planned, or the engine refuses.
pub(crate) async fn make(engine: &Engine, plan: &Plan) -> anyhow::Result<Made> {
    let names = engine.names();
    let mut made = Made::default();
    let bucket = json!({
        "name": names.bucket_stream(),
        "subjects": [names.key_subject(">")],
        "retention": "limits",
        "storage": "file",
        "num_replicas": plan.replicas,
        "max_msgs_per_subject": 1,
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "discard": "new",
        "deny_delete": true,
        "allow_rollup_hdrs": true,
        "allow_direct": true,
    });
    ensure_stream(engine, &names.bucket_stream(), &bucket, &mut made).await?;
    let record = record(engine, plan, &mut made).await?;
    let least = 2 * cluster::span_bytes_min(record.shards, record.segment_bytes);
    ensure!(
        plan.stream_bytes_max.is_none_or(|most| most >= least),
        "cluster.stream_bytes_max: must be at least {least} bytes, eight log files for each of {} \
         shards, or unlimited",
        record.shards
    );
    ensure!(
        record.shards == plan.shards || !plan.shards_are_fixed,
        "server.shards: must be {0}, the fixed number of this cluster, got {1}",
        record.shards,
        plan.shards
    );
    let stream = json!({
        "name": names.stream(),
        "subjects": [names.stream_subject()],
        "retention": "limits",
        "storage": "file",
        "num_replicas": plan.replicas,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": plan.stream_bytes_max.map_or(-1, |bytes| bytes as i64),
        "discard": "new",
        "duplicate_window": NO_DEDUPLICATION_NS,
        "allow_direct": true,
    });
    ensure_stream(engine, &names.stream(), &stream, &mut made).await?;
    ensure_stream(engine, &names.blocks(), &blocks(engine, plan), &mut made).await?;
    made.id = record.id_in_hex();
    made.shards = record.shards;
    Ok(made)
}

/// The files of MQTT streams. Their own limits say how much there is.
fn blocks(engine: &Engine, plan: &Plan) -> Value {
    json!({
        "name": engine.names().blocks(),
        "subjects": [engine.names().blocks_subjects()],
        "retention": "limits",
        "storage": "file",
        "num_replicas": plan.replicas,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "discard": "new",
        "duplicate_window": NO_DEDUPLICATION_NS,
        "allow_direct": true,
    })
}

async fn record(engine: &Engine, plan: &Plan, made: &mut Made) -> anyhow::Result<Record> {
    if let Some((_, value)) = engine.get(CLUSTER_KEY).await.context("cannot read the bucket")? {
        return Ok(Record::read(&value)?);
    }
    let Plan { shards, segment_bytes, .. } = *plan;
    let record = Record { id: base::random(), shards, segment_bytes, extent: Extent::One };
    let put = engine.put_if(CLUSTER_KEY, 0, record.to_bytes());
    match put.await.context("cannot write the bucket")? {
        Put::Written(_) => {
            made.is_new = true;
            Ok(record)
        }
        Put::Conflict => bail!("another process is creating the cluster; run this again"),
    }
}

async fn ensure_stream(
    engine: &Engine,
    name: &str,
    wanted: &Value,
    made: &mut Made,
) -> anyhow::Result<()> {
    let info = format!("STREAM.INFO.{name}");
    let mut found = engine.api(&info, Value::Null).await;
    if matches!(found, Err(EngineError::Refused { code: NO_STREAM, .. })) {
        match engine.api(&format!("STREAM.CREATE.{name}"), wanted.clone()).await {
            // Another process was faster.
            Err(EngineError::Refused { code: STREAM_EXISTS, .. }) => {
                found = engine.api(&info, Value::Null).await;
            }
            created => {
                created.with_context(|| format!("cannot create the stream '{name}'"))?;
                made.streams_made += 1;
                return Ok(());
            }
        }
    }
    let found = found.with_context(|| format!("cannot query the stream '{name}'"))?;
    made.streams_found += 1;
    for key in FIXED {
        let (found, wanted) = (&found["config"][key], &wanted[key]);
        ensure!(
            found == wanted,
            "the stream '{name}': {key} must be {wanted}, got {found}; change or remove the stream"
        );
    }
    Ok(())
}

/// What a stream that is found must have as planned: with others the engine would drop messages, or
/// take those of other streams. `mirror` and `sources` are in no plan.
const FIXED: [&str; 11] = [
    "subjects",
    "storage",
    "num_replicas",
    "retention",
    "discard",
    "max_age",
    "max_msgs",
    "max_msgs_per_subject",
    "max_bytes",
    "mirror",
    "sources",
];

/// The least that the engine takes. Appends are fenced and need no deduplication.
const NO_DEDUPLICATION_NS: u64 = 100_000_000;
