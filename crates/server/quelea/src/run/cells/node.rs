//! What all cells of a node have in common: listeners, who is let in, links, HTTP, files and
//! signals.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use broker::Homes;
use net::TlsContext;
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::unbounded_channel;

use super::calls::{Answers, Calls};
use super::life::{Life, Requests};
use super::links::NodeLinks;
use super::table::{Entrance, Table};
use crate::cluster::{ActiveCells, ClusterPlan, Following, MemberChange, RoleOf, Turn, follow};
use crate::http::{Metrics, State};
use crate::life_cycle::line_pace::LinePace;
use crate::logging::Logging;
use crate::metrics;
use crate::run::acceptor::BoundListener;
use crate::run::file_watch::{FileWatch, Part};
use crate::run::mailbox::Item;
use crate::run::node::Several;
use crate::run::own_files::OwnFiles;
use crate::run::parts::{Ground, Parts};
use crate::run::reloads::Reloaded;
use crate::run::servers::HttpServers;
use crate::run::service::ServiceManager;
use crate::run::telemetry;
use crate::run::unwritten::Unwritten;
use crate::run::watch::{self, Ask};
use crate::run::{Acceptors, Reread, Shards, listen, start_acceptors};
use base::Clock;
use config::{ClusterConfig, Config, Loaded, Machine};
use data::{DataDir, Stamps};
use identity::auth::rules;

/// A node that serves its cells.
struct Node<'a> {
    parts: Arc<Parts>,
    table: Arc<Table>,
    http: &'a HttpServers,
    tls: &'a [(String, Arc<TlsContext>)],
    files: Arc<FileWatch>,
    cells: Vec<Arc<Requests>>,
    links: Arc<NodeLinks>,
    reread: &'a Reread<'a>,
}

/// Runs a node of a cluster with several cells until it is requested to stop.
///
/// # Errors
///
/// The configuration has what cells do not have yet, an address cannot be listened on, or a file
/// cannot be used.
pub(in crate::run) fn serve(
    loaded: &Arc<Loaded>,
    several: Several,
    (mut signals, service): (Signals, &ServiceManager),
    clock: Clock,
    reread: &Reread<'_>,
) -> anyhow::Result<()> {
    let Several { plan, stops } = several;
    refuse_what_cells_lack(&loaded.config)?;
    refuse_other_data(&loaded.config.server.data_dir)?;
    let loaded = of_node(loaded);
    let config = &loaded.config;
    let files = Arc::new(FileWatch::new(config));
    let parts = Arc::new(parts_of(&loaded, &plan, service, clock)?);
    let cluster = config.cluster.as_ref().context("a node is of a cluster")?;
    let table = Arc::new(Table::new(&cluster.node, parts.shared.homes));
    let listeners = listen::bind_all(config, &parts.limiter, &parts.authenticator)?;
    let known = listeners.bound.iter().map(|bound| bound.listener.clone()).collect();
    let (arriving, arrivals) = unbounded_channel();
    let links = Arc::new(NodeLinks::start(config, (cluster, &plan), &table, known, arriving)?);
    let cells: Vec<Arc<Requests>> = (0..plan.cells).map(|_| Arc::default()).collect();
    let answers = Answers::new(&table, &parts.limiter, &cells);
    answers.start(arrivals).context("cannot start a thread")?;
    let members = plan.members.iter().map(|member| member.node.clone()).collect();
    let calls = Arc::new(Calls::new((&cluster.node, members), &parts.shared, &answers, &links));
    let http = start_http(&parts, (&table, &links), (&cells, &calls))?;
    let metrics = metrics_of(&parts, (&table, &links), &cells);
    let _exporter = telemetry::start_with(&parts, metrics)?;
    Calls::start(&calls).context("cannot start a thread")?;
    let _members = follow_members(cluster, &plan, (&links, &calls))?;
    http.write_token(&mut Unwritten::new())?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    let redirects = cluster.redirect.then(|| cells.clone());
    let entrance = Entrance::new(&table, &parts.shared, &links, redirects);
    let acceptors = start_front(&parts, listeners.bound, entrance, &is_stopping)?;
    links.set_front(&acceptors.mailboxes);
    watch::catch_stops(&signals)?;
    stops.hand_over()?;
    let tls = [listeners.tls.clone(), http.tls.clone()].concat();
    let lives = lives((&loaded, &http), &plan, &cells, (&parts, &table, &links), &answers);
    let node = Node { parts, table, http: &http, tls: &tls, files, cells, links, reread };
    std::thread::scope(|scope| {
        let threads = lives.iter().map(|life| {
            let run = move || base::ending_the_process(|| life.run(reread));
            let thread = std::thread::Builder::new().name(format!("cell-{}", life.cell));
            thread.spawn_scoped(scope, run).context("cannot start a thread")
        });
        let threads: anyhow::Result<Vec<_>> = threads.collect();
        // This function does not return before those that have started have ended.
        let threads = threads.inspect_err(|_| node.cells.iter().for_each(|cell| cell.stop()))?;
        for url in listeners.urls.iter().cloned().chain(http.urls()) {
            tracing::info!(url, "listening");
        }
        node.parts.health.set_ready();
        service.ready(node.parts.describe());
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(version, commit = env!("BUILD_COMMIT"), cells = plan.cells, "ready");
        node.http.print_link();
        let served = node.until_stopped(&mut signals);
        let grace = Duration::from_secs(config.server.shutdown_grace_secs.into());
        node.parts.health.set(State::Stopping);
        service.stopping(grace);
        tracing::info!(grace_secs = config.server.shutdown_grace_secs, "stopping");
        watch::end_in_time(grace + STOP_TIMEOUT);
        is_stopping.store(true, Ordering::Release);
        acceptors.stop();
        node.cells.iter().for_each(|cell| cell.stop());
        threads.iter().for_each(|thread| thread.thread().unpark());
        served
    })
}

/// How long the cells may take to give their leases back, beyond the grace.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// What is not built for several cells is refused: it would be done by each, or by none.
fn refuse_what_cells_lack(config: &Config) -> anyhow::Result<()> {
    let lacking = [
        ("[routing]", config.routing.is_some()),
        ("[[bridges]]", !config.bridges.is_empty()),
        ("[[namespaces]]", !config.namespaces.is_empty()),
        // Each cell would number the namespaces of its clients in its own order.
        (
            "`namespace` or `namespace_from` of a listener",
            config.listeners.iter().any(|listener| listener.placing.is_used()),
        ),
    ];
    for (what, is_there) in lacking {
        ensure!(
            !is_there,
            "{what} cannot be used in a cluster with several cells yet: remove it, or create a \
             cluster with `quelea cluster init --cells 1`"
        );
    }
    Ok(())
}

/// What a broker without cells has stored is not left aside unseen.
fn refuse_other_data(directory: &Path) -> anyhow::Result<()> {
    ensure!(
        !DataDir::journal_path_in(directory, 0).exists(),
        "server.data_dir: {} has the data of a broker without cells; use another directory",
        directory.display()
    );
    Ok(())
}

/// The configuration of the node and its listeners.
fn of_node(loaded: &Loaded) -> Arc<Loaded> {
    let mut own = loaded.clone();
    let limits = &mut own.config.limits;
    // Groups do not cross cells yet.
    limits.shared_available = false;
    let possible = possible_connections(limits.connections_max, Machine::here().open_files_max);
    if limits.connections_max != possible {
        limits.connections_max = possible;
        tracing::info!(
            value = possible,
            "limits.connections_max reduced: a relayed client takes two open files (ulimit -Hn)"
        );
    }
    Arc::new(own)
}

/// A client of another node takes two open files: its relay has one, and the cell the other one.
/// Files and connections of the node's own need some as well.
fn possible_connections(connections_max: u32, open_files_max: Option<u64>) -> u32 {
    let possible = open_files_max.map(|files| u32::try_from(files / 5 * 2).unwrap_or(u32::MAX));
    possible.map_or(connections_max, |possible| connections_max.min(possible.max(1)))
}

/// The configuration of a cell: its names and its directory, and nothing that the node does.
fn of_cell(loaded: &Loaded, cell: u16) -> Arc<Loaded> {
    let mut own = loaded.clone();
    let config = &mut own.config;
    if let Some(cluster) = &mut config.cluster {
        cluster.name = crate::cluster::name_of_cell(&cluster.name, cell);
    }
    config.server.data_dir = config.server.data_dir.join("cells").join(cell.to_string());
    config.server.acceptor_threads = 1;
    config.http = None;
    config.api = None;
    Arc::new(own)
}

/// Who is let in by the listeners, for all cells.
fn parts_of(
    loaded: &Arc<Loaded>,
    plan: &ClusterPlan,
    service: &ServiceManager,
    clock: Clock,
) -> anyhow::Result<Parts> {
    let ground = Ground {
        directory: None,
        stamps: &Stamps::default(),
        homes: Homes::new(plan.cells, 0, plan.shards),
        cell: None,
        journals: 0,
        workers: 0,
        decoy_secret: Some(plan.secret_for("passwords of unknown users")),
        member: None,
        service: service.clone(),
    };
    Parts::make(loaded.clone(), ground, clock)
}

fn lives(
    (loaded, http): (&Arc<Loaded>, &HttpServers),
    plan: &ClusterPlan,
    cells: &[Arc<Requests>],
    (gate, table, links): (&Arc<Parts>, &Arc<Table>, &Arc<NodeLinks>),
    answers: &Arc<Answers>,
) -> Vec<Life> {
    let own = loaded.config.cluster.as_ref().map_or("", |cluster| &cluster.node);
    let active = ActiveCells::new(own);
    let life = |(cell, requests): (u16, &Arc<Requests>)| Life {
        cell,
        homes: Homes::new(plan.cells, cell, plan.shards),
        seed: plan.seed,
        role_of: RoleOf::Cell { cluster: plan.id, cell },
        loaded: of_cell(loaded, cell),
        gate: gate.clone(),
        api_authenticator: http.api_authenticator.clone(),
        table: table.clone(),
        active: active.clone(),
        answers: answers.clone(),
        links: links.clone(),
        requests: requests.clone(),
        service: gate.service.clone(),
    };
    (0..plan.cells).zip(cells).map(life).collect()
}

/// Metrics and probes, and the API, which answers for all cells.
fn start_http(
    parts: &Parts,
    (table, links): (&Arc<Table>, &Arc<NodeLinks>),
    (cells, calls): (&[Arc<Requests>], &Arc<Calls>),
) -> anyhow::Result<HttpServers> {
    let known = table.clone();
    parts.health.depend_on(move || known.why_not_ready());
    let metrics = metrics_of(parts, (table, links), cells);
    let shards = Shards::new(&parts.shared);
    let servers = parts.start_http_of(&shards, metrics, |api| api.for_cells(calls.clone()))?;
    if let Some(api) = &servers.api_of_node {
        calls.open(api);
    }
    Ok(servers)
}

/// Those of the process, and of all cells with a label: of those that it serves all, of others its
/// role.
fn metrics_of(
    parts: &Parts,
    (table, links): (&Arc<Table>, &Arc<NodeLinks>),
    cells: &[Arc<Requests>],
) -> Metrics {
    let process = parts.metrics_by(metrics::of_process);
    let (table, links, cells) = (table.clone(), links.clone(), cells.to_vec());
    Arc::new(move || {
        let of_cell = |(cell, requests): (u16, &Arc<Requests>)| {
            let text = match table.any_serving(cell) {
                Some(serving) => (serving.metrics)(),
                None => metrics::of_role(&requests.figures()?),
            };
            Some((cell, text))
        };
        let texts: Vec<_> = (0..).zip(&cells).filter_map(of_cell).collect();
        metrics::of_cells(&texts) + &metrics::of_links(&links.figures()) + &process()
    })
}

/// Nodes that are added are linked, and those that are removed are refused.
fn follow_members(
    cluster: &ClusterConfig,
    plan: &ClusterPlan,
    (links, calls): (&Arc<NodeLinks>, &Arc<Calls>),
) -> anyhow::Result<Following> {
    let (own, links, calls) = (cluster.node.clone(), links.clone(), calls.clone());
    let on_change = move |change: MemberChange| {
        match &change {
            MemberChange::Set(member) => {
                tracing::info!(node = member.node, link = member.link, "list of nodes: changed");
            }
            MemberChange::Removed(node) if *node == own => tracing::error!(
                node,
                "this node was removed from the list of nodes: other nodes refuse its links; stop \
                 it, or add it again with `quelea cluster node add`"
            ),
            MemberChange::Removed(node) => tracing::warn!(node, "list of nodes: removed"),
        }
        links.change_member(&change);
        calls.change_member(&change);
    };
    let following = follow(cluster.clone(), plan.members.clone(), on_change);
    following.context("cannot start a thread")
}

/// The acceptors behind the listeners. They read the first packet of each client.
fn start_front(
    parts: &Parts,
    bound: Vec<BoundListener>,
    entrance: Entrance,
    is_stopping: &Arc<AtomicBool>,
) -> anyhow::Result<Acceptors> {
    let config = parts.config();
    let line_pace = Arc::new(LinePace::new(config.log.client_lines_per_second_max));
    parts.live.add_line_pace(&line_pace);
    let entrance = Some(Arc::new(entrance));
    let context = parts.acceptor_context(&Arc::default(), &line_pace, is_stopping, entrance)?;
    start_acceptors(config, bound, &context)
}

impl Node<'_> {
    /// Waits for the request to stop, and reads files again meanwhile.
    fn until_stopped(&self, signals: &mut Signals) -> anyhow::Result<()> {
        let changed = || {
            // Without it the files are reloaded with the next signal.
            let _ = signal_hook::low_level::raise(signal_hook::consts::SIGUSR2);
        };
        let watching = self.files.start(self.parts.rule_files.clone(), changed);
        let _watching = watching.context("cannot start a thread")?;
        for ask in watch::asks(signals) {
            match ask {
                Ask::Reload => self.parts.service.reload(|| self.reload_for_all()),
                Ask::ReloadChanged | Ask::ReloadRules => self.reload_changed(),
                Ask::Stop => break,
            }
        }
        Ok(())
    }

    fn reload_for_all(&self) {
        let waiting = self.parts.reloads.begin();
        let reloaded = self.reload();
        // A caller may have gone.
        waiting.into_iter().for_each(|answer| drop(answer.send(reloaded.clone())));
    }

    fn reload(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        self.files.note_reload();
        let reopened = Logging::reopen_installed();
        reloaded.note("log file", &reopened);
        if let Err(error) = reopened {
            tracing::error!(%error, "the log file was not reopened; the old one stays in use");
        }
        let listeners = self.tls.iter().map(|(listener, _)| Part::Tls(listener.clone()));
        let parts = [Part::Passwords, Part::Registries, Part::Bans, Part::ApiUsers];
        for part in parts.into_iter().chain(listeners) {
            self.reload_noted(&part, &mut reloaded);
        }
        let read = (self.reread)();
        let taken = read.and_then(|fresh| self.parts.live.reload(&fresh.settings));
        reloaded.note("settings", &taken);
        match taken {
            Ok(taken_back) => reloaded.taken_back = taken_back,
            Err(error) => tracing::error!(%error, "settings not reloaded; the old ones stay"),
        }
        let links = self.links.reload();
        reloaded.note("certificates of links", &links);
        if let Err(error) = links {
            let error = format!("{error:#}");
            tracing::error!(error, "certificates of links not reloaded; the old ones stay");
        }
        // Each cell reads them, and logs what is wrong as this does.
        reloaded.note("access rules", &rules::load(self.parts.config()));
        self.cells.iter().for_each(|cell| cell.put(Turn::Reload));
        reloaded
    }

    fn reload_noted(&self, part: &Part, reloaded: &mut Reloaded) {
        if *part != Part::Registries || self.parts.authenticator.has_registry() {
            let done = self.reload_part(part);
            reloaded.note(&part.name(), &done);
        }
    }

    fn reload_changed(&self) {
        for part in self.files.take_changed() {
            match part {
                Part::Rules => self.cells.iter().for_each(|cell| cell.put(Turn::ReloadRules)),
                part => drop(self.reload_part(&part)),
            }
        }
    }

    fn reload_part(&self, part: &Part) -> anyhow::Result<()> {
        if *part == Part::Registries && !self.parts.authenticator.has_registry() {
            return Ok(());
        }
        let tell_workers = |item: &dyn Fn() -> Item| self.table.tell_workers(item);
        let own = OwnFiles {
            config: self.parts.config(),
            authenticator: &self.parts.authenticator,
            limiter: &self.parts.limiter,
            api_authenticator: self.http.api_authenticator.as_deref(),
            tls: self.tls,
            tell_workers: &tell_workers,
        };
        own.reload(part).inspect_err(|error| {
            let (error, listener) = (format!("{error:#}"), part.listener());
            let what = part.what();
            tracing::error!(listener, error, "{what} not reloaded; the old ones stay in force");
        })
    }
}

#[cfg(test)]
mod tests {
    use config::{SourceFile, Sources, load};

    use super::*;

    fn refusal_of(text: &str) -> Option<String> {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        let sources = Sources { file: Some(file), ..Sources::default() };
        let loaded = load(&sources, &Machine::here()).unwrap();
        refuse_what_cells_lack(&loaded.config).err().map(|error| error.to_string())
    }

    #[test]
    fn clients_that_may_be_in_another_namespace_are_refused() {
        let listener = "[[listeners]]\nurl = \"tcp://127.0.0.1:0\"\nallow_anonymous = true\n";
        assert_eq!(refusal_of(listener), None);
        let chosen = "namespace_from = [\"username\"]\nnamespace_unknown = \"create\"\n";
        let why = refusal_of(&format!("{listener}{chosen}")).unwrap();
        assert!(why.contains("`namespace_from` of a listener cannot be used"), "{why}");
        let own = "namespace = \"acme\"\nnamespace_unknown = \"create\"\n";
        assert!(refusal_of(&format!("{listener}{own}")).is_some());
    }

    #[test]
    fn relayed_clients_have_open_files_left() {
        assert_eq!(possible_connections(1000, None), 1000);
        assert_eq!(possible_connections(1000, Some(1_000_000)), 1000);
        assert_eq!(possible_connections(960, Some(1024)), 408);
    }
}
