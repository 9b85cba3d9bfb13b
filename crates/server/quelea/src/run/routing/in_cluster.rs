//! What is different for the owner of streams on a node of a cluster: what its disk has done is
//! replicated before it counts, and nothing is sent without the lease.

use std::collections::BTreeSet;

use anyhow::ensure;
use broker::streams::{StreamNumber, StreamsFound};
use cluster::BlockFile;
use data::{Numbers, StreamJob};
use routing::Definitions;
use routing::definitions::RuleSpec;
use storage::Fault;
use storage::stream::StreamCommand;

use super::inbox::{Inbox, Input};
use super::start::reach_of;
use crate::cluster::{Acting, ClusterStreamFiles, Reach};

/// See the module.
#[derive(Clone)]
pub(crate) struct InCluster {
    pub(crate) files: ClusterStreamFiles,
    pub(crate) acting: Acting,
    pub(crate) epoch: u64,
    /// `routing.remove_undefined`.
    pub(crate) removes_undefined: bool,
}

impl InCluster {
    /// Has the files of this node completed, as far as journals name them. From then on they are
    /// this node's.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub(super) fn take_files(&self, found: &[StreamsFound]) -> anyhow::Result<()> {
        let numbers = found.iter().flat_map(|found| found.streams.keys().copied());
        let numbers: BTreeSet<StreamNumber> = numbers.collect();
        let reach: Reach = numbers.into_iter().map(|it| (it.0, reach_of(it, found))).collect();
        self.files.lead(self.epoch, reach)
    }

    /// Whether this node knows all that the one before has had: its file may be an old one.
    ///
    /// # Errors
    ///
    /// What it does not define.
    pub(super) fn check_defined(
        &self,
        definitions: &Definitions,
        before: &Numbers,
    ) -> anyhow::Result<()> {
        let streams: BTreeSet<&str> = definitions.streams.iter().map(|it| &*it.name).collect();
        let rules: BTreeSet<&str> = definitions.rules.iter().map(RuleSpec::name).collect();
        let streams = before
            .streams()
            .filter(|(name, own)| !streams.contains(name) && !before.is_leaving_stream(own.number));
        let rules = before
            .consumers()
            .filter(|(name, number)| !rules.contains(name) && !before.is_leaving_consumer(*number));
        let streams = streams.map(|(name, _)| format!("stream '{name}'"));
        let missing: Vec<String> =
            streams.chain(rules.map(|(name, _)| format!("rule '{name}'"))).collect();
        ensure!(
            self.removes_undefined || missing.is_empty(),
            "routing.file of this node does not define {}: use the same file on all nodes, or set \
             routing.remove_undefined to delete it",
            missing.join(", ")
        );
        Ok(())
    }
}

/// What follows once the disk has done a job.
pub(super) fn after_disk(
    inbox: Inbox,
    cluster: Option<InCluster>,
) -> impl Fn(StreamJob, Result<(), Fault>) + Send {
    move |job, result| match &cluster {
        None => {
            if let StreamCommand::Write { id, .. } = job.command {
                inbox.put(Input::File(StreamNumber(job.stream), id, result));
            }
        }
        Some(cluster) => replicate(&inbox, &cluster.files, job, result),
    }
}

/// Files here come first: how far a copy is stays true whatever happens.
fn replicate(inbox: &Inbox, files: &ClusterStreamFiles, job: StreamJob, result: Result<(), Fault>) {
    let stream = StreamNumber(job.stream);
    let name = |file| BlockFile { stream: stream.0, file };
    match (job.command, result) {
        (StreamCommand::Write { id, .. }, Err(fault)) => {
            inbox.put(Input::File(stream, id, Err(fault)));
        }
        (StreamCommand::Write { id, file, offset, bytes }, Ok(())) => {
            let inbox = inbox.clone();
            let done = Box::new(move || inbox.put(Input::File(stream, id, Ok(()))));
            files.write(name(file), offset, bytes, Some(done));
        }
        (StreamCommand::Close { file, offset, bytes }, Ok(())) => {
            files.write(name(file), offset, bytes, None);
        }
        (StreamCommand::Close { .. }, Err(_)) => {}
        // Whether it is gone here or not: no journal names it.
        (StreamCommand::Delete { file }, _) => files.delete(name(file)),
    }
}
