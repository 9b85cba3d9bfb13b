//! `quelea cluster init`: the streams and the buckets of a cluster.

use anyhow::{Context as _, bail, ensure};
use cluster::{Extent, Record};
use serde_json::{Value, json};

use super::connect::CLUSTER_KEY;
use super::engine::{Engine, EngineError, NO_STREAM, Put, STREAM_EXISTS};
use super::secret;

/// What is to be made.
pub(crate) struct Plan {
    /// `None`: that of a cluster that is there, or one.
    pub(crate) cells: Option<u16>,
    /// Of each cell.
    pub(crate) shards: u16,
    /// The number was asked for. If not, that of a cluster that is there is taken.
    pub(crate) shards_are_fixed: bool,
    pub(crate) segment_bytes: u32,
    /// Copies that the engine keeps of a stream.
    pub(crate) replicas: u8,
    /// Of the stream of a cell; `None`: no limit.
    pub(crate) stream_bytes_max: Option<u64>,
}

/// What there was to do.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) cells: u16,
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
    let mut made = Made::default();
    ensure_stream(engine, &engine.names().bucket_stream(), &bucket(engine, plan), &mut made)
        .await?;
    let record = record(engine, plan, &mut made).await?;
    check(&record, engine.names().cluster(), plan)?;
    match record.extent {
        Extent::Many { cells, .. } => {
            secret::ensure(engine).await?;
            for cell in 0..cells {
                make_cell(engine, &record, cell, plan, &mut made).await?;
            }
        }
        Extent::One | Extent::Cell { .. } => make_streams(engine, plan, &mut made).await?,
    }
    made.id = record.id_in_hex();
    made.cells = record.cells();
    made.shards = record.shards;
    Ok(made)
}

/// Whether a cluster can be as planned.
fn check(record: &Record, name: &str, plan: &Plan) -> anyhow::Result<()> {
    if let Extent::Cell { cell, .. } = record.extent {
        bail!("cluster.name: '{name}' is cell {cell} of another cluster; use another name");
    }
    let (cells, shards) = (record.cells(), record.shards);
    ensure!(
        plan.cells.is_none_or(|planned| planned == cells),
        "--cells: must be {cells}, the fixed number of this cluster, got {}",
        plan.cells.unwrap_or_default()
    );
    let least = 2 * cluster::span_bytes_min(shards, record.segment_bytes);
    ensure!(
        plan.stream_bytes_max.is_none_or(|most| most >= least),
        "cluster.stream_bytes_max: must be at least {least} bytes, eight log files for each of \
         {shards} shards, or unlimited",
    );
    ensure!(
        shards == plan.shards || !plan.shards_are_fixed,
        "server.shards: must be {shards}, the fixed number of this cluster, got {}",
        plan.shards
    );
    Ok(())
}

/// What a cell has that is one of several.
async fn make_cell(
    engine: &Engine,
    cluster: &Record,
    cell: u16,
    plan: &Plan,
    made: &mut Made,
) -> anyhow::Result<()> {
    let engine = engine.of_cell(cell);
    ensure_stream(&engine, &engine.names().bucket_stream(), &bucket(&engine, plan), made).await?;
    let extent = Extent::Cell { cluster: cluster.id, cell };
    if find(&engine).await?.is_none() {
        let record = Record { id: base::random(), extent, ..*cluster };
        // Who was faster has written as good a one.
        engine
            .put_if(CLUSTER_KEY, 0, record.to_bytes())
            .await
            .context("cannot write the bucket")?;
    }
    let found = find(&engine).await?.map(|record| record.extent);
    ensure!(
        found == Some(extent),
        "the bucket '{}' belongs to another cluster; use another `cluster.name`, or remove it",
        engine.names().bucket()
    );
    make_streams(&engine, plan, made).await
}

/// The streams of a cell.
async fn make_streams(engine: &Engine, plan: &Plan, made: &mut Made) -> anyhow::Result<()> {
    let names = engine.names();
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
    ensure_stream(engine, &names.stream(), &stream, made).await?;
    ensure_stream(engine, &names.blocks(), &blocks(engine, plan), made).await
}

fn bucket(engine: &Engine, plan: &Plan) -> Value {
    let names = engine.names();
    json!({
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
    })
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
    if let Some(found) = find(engine).await? {
        return Ok(found);
    }
    let Plan { shards, segment_bytes, .. } = *plan;
    let extent = match plan.cells {
        None | Some(1) => Extent::One,
        Some(cells) => Extent::Many { cells, seed: u64::from_ne_bytes(base::random()) },
    };
    let record = Record { id: base::random(), shards, segment_bytes, extent };
    let put = engine.put_if(CLUSTER_KEY, 0, record.to_bytes());
    match put.await.context("cannot write the bucket")? {
        Put::Written(_) => {
            made.is_new = true;
            Ok(record)
        }
        Put::Conflict => bail!("another process is creating the cluster; run this again"),
    }
}

async fn find(engine: &Engine) -> anyhow::Result<Option<Record>> {
    let found = engine.get(CLUSTER_KEY).await.context("cannot read the bucket")?;
    Ok(found.map(|(_, value)| Record::read(&value)).transpose()?)
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
