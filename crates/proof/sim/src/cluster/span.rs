//! How much of the stream each shard keeps: one that writes little must not keep it all.

use storage::Journal;

use crate::world::World;

impl World {
    /// When nothing is wrong, the stream comes to be as short as promised.
    pub(crate) fn await_short_stream(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if self.span_too_long().is_none() {
                return Ok(());
            }
            self.pass_cluster_time(100)?;
            self.work_cluster()?;
        }
        match self.span_too_long() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// A shard that keeps more than it may, if one does.
    fn span_too_long(&mut self) -> Option<String> {
        let open = self.cluster.as_ref()?.open(self.now_ms)?;
        self.switch_to(open);
        let cluster = self.cluster.as_ref()?;
        let agent = cluster.members[open].agent.as_ref()?;
        let span_max = agent.span_bytes_max()?;
        let bytes = cluster.engine.stream_bytes();
        let pinning = agent.streams().position(|stream| stream.span_bytes > span_max);
        let shard = pinning.or((bytes > span_max).then_some(0))?;
        let stats = self.node.shards().nth(shard)?.journal().map(Journal::stats);
        Some(format!(
            "shard {shard} keeps more than {span_max} bytes of the stream, which has {bytes}: \
             {stats:?}"
        ))
    }
}

/// Tenths of a second in which a journal has to do without what it was asked to.
const ROUNDS_MAX: usize = 300;
