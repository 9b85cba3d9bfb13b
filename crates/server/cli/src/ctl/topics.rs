//! `quelea ctl subs` and `quelea ctl topics`.

use clap::Args;

use super::table::Column;
use super::within::Within;
use super::{Ctl, Failure};

#[derive(Clone, Debug, Args)]
pub(super) struct SubsArgs {
    /// The client. Default: all clients.
    #[arg(conflicts_with_all = ["filter", "topic", "id", "shared"])]
    client_id: Option<String>,
    #[command(flatten)]
    within: Within,
    /// Subscriptions with this filter, without a share name.
    #[arg(long)]
    filter: Option<String>,
    /// Subscriptions whose filter matches this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Subscriptions of clients whose client ID contains this text.
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Shared subscriptions.
    #[arg(long)]
    shared: bool,
    /// Print at most this many rows; 0: all. Default: 100 of all clients, all of one client.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Clone, Debug, Args)]
pub(super) struct TopicsArgs {
    /// The topic above the level, without a final /. Default: the root.
    prefix: Option<String>,
    #[command(flatten)]
    within: Within,
    /// Print at most this many rows; 0: all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

impl Ctl {
    pub(super) fn subs(&self, args: &SubsArgs) -> Result<(), Failure> {
        let SubsArgs { client_id, within, filter, topic, id, shared, limit } = args;
        if let Some(client_id) = client_id {
            let home = self.home(within, client_id, false)?;
            let query = [("client_id", client_id.as_str()), ("namespace", &home)];
            let rows_max = limit.unwrap_or(0);
            return self.list("/client/subscriptions", &query, rows_max, &COLUMNS[2..]);
        }
        let given = [
            ("namespace", within.namespace()),
            ("filter", filter.as_deref()),
            ("topic", topic.as_deref()),
            ("client_id", id.as_deref()),
            ("shared", shared.then_some("true")),
        ];
        let query: Vec<_> =
            given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.list("/subscriptions", &query, limit.unwrap_or(100), COLUMNS)
    }

    pub(super) fn topics(&self, args: &TopicsArgs) -> Result<(), Failure> {
        let TopicsArgs { prefix, within, limit } = args;
        let prefix: Vec<_> = prefix.iter().map(|prefix| ("prefix", prefix.as_str())).collect();
        self.list("/topics", &within.and(&prefix), *limit, TOPICS)
    }
}

/// The first two are of lists of several clients.
const COLUMNS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("CLIENT", "client_id"),
    Column("FILTER", "filter"),
    Column("SHARE", "share"),
    Column("QOS", "qos"),
    Column("NO LOCAL", "no_local"),
    Column("AS PUBLISHED", "retain_as_published"),
    Column("ID", "identifier"),
];

const TOPICS: &[Column] = &[
    Column("LEVEL", "level"),
    Column("RETAINED", "retained"),
    Column("BELOW", "topics_below"),
    Column("TOPIC", "topic"),
];
