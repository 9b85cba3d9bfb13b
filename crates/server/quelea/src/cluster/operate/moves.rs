//! `quelea cluster switchover`, `drain` and `rebalance`: active roles go to other nodes.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::super::connect;
use super::super::engine::Engine;
use super::super::nodes::read_members;
use super::super::talk::{NodeStatus, Question, SwitchoverAnswer};
use super::cells::comma_list;
use super::{ask, ask_all, engines_of_cells};
use base::print;

/// Moves one role.
///
/// # Errors
///
/// When another node than `to` has it then, or it was not moved.
pub(super) async fn switch_over(
    engine: &Engine,
    cell: Option<u16>,
    to: Option<&str>,
) -> anyhow::Result<()> {
    let record = connect::read_whole(engine).await?;
    let cells = record.cells();
    ensure!(
        cells == 1 || cell.is_some(),
        "--cell: must be set, because cluster '{}' has {cells} cells; `quelea cluster drain` moves \
         all cells of a node",
        engine.names().cluster()
    );
    let cell = cell.unwrap_or_default();
    ensure!(cell < cells, "--cell: must be {}, got {cell}", numbers(cells));
    let engine = &engines_of_cells(engine, &record)[usize::from(cell)];
    let Moved { node, epoch, wanted } = move_role(engine, to).await?;
    ensure!(
        node == wanted,
        "'{wanted}' did not take over in time; '{node}' is active, epoch {epoch}"
    );
    print(format!("{}'{node}' is active, epoch {epoch}\n", prefix(cells, cell)).as_bytes());
    Ok(())
}

/// The valid numbers of cells.
fn numbers(cells: u16) -> String {
    match cells {
        1 => "0".to_owned(),
        _ => format!("from 0 to {}", cells - 1),
    }
}

/// Before what is said of one of several cells.
fn prefix(cells: u16, cell: u16) -> String {
    if cells > 1 { format!("cell {cell}: ") } else { String::new() }
}

/// Who has a role now.
struct Moved {
    node: String,
    epoch: u64,
    /// The node that was to have it.
    wanted: String,
}

/// A switchover that is under way.
struct Accepted {
    /// The epoch before.
    before: u64,
    wanted: String,
}

/// Returns when another node than before serves, or the same one again. `engine`: by the names of
/// the cell.
async fn move_role(engine: &Engine, to: Option<&str>) -> anyhow::Result<Moved> {
    let accepted = request(engine, to).await?;
    outcome(engine, accepted).await
}

async fn request(engine: &Engine, to: Option<&str>) -> anyhow::Result<Accepted> {
    let before = connect::read_lease(engine).await?.map_or(0, |lease| lease.epoch);
    let question = Question::Switchover { to: to.map(str::to_owned) };
    let mut answers = ask(engine, &question).await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answers.next()).await;
    // Without any listener the engine answers at once, with a message that has a status.
    let answer = answer.ok().flatten().filter(|message| message.status.is_none());
    let message = answer.context("no active node answers; see `quelea cluster status`")?;
    let SwitchoverAnswer { is_accepted, detail } =
        serde_json::from_slice(&message.payload).context("the answer is malformed")?;
    ensure!(is_accepted, "{detail}");
    Ok(Accepted { before, wanted: detail })
}

async fn outcome(engine: &Engine, accepted: Accepted) -> anyhow::Result<Moved> {
    let Accepted { before, wanted } = accepted;
    let ends_at = Instant::now() + SWITCHOVER_TIMEOUT;
    while Instant::now() < ends_at {
        // It serves only when it says so: having the lease is not enough.
        let nodes = ask_all(engine, &Question::Status).await.unwrap_or_default();
        let active = nodes.into_iter().find(|node| node.role == "active" && node.epoch > before);
        if let Some(NodeStatus { node, epoch, .. }) = active {
            return Ok(Moved { node, epoch, wanted });
        }
    }
    bail!("'{wanted}' has not taken over yet; see `quelea cluster status`")
}

/// Moves all roles of a node.
///
/// # Errors
///
/// At the first one that could not be moved.
pub(super) async fn drain(engine: &Engine, node: &str) -> anyhow::Result<()> {
    let record = connect::read_whole(engine).await?;
    let cells = record.cells();
    let mut drained = Drain {
        node: node.to_owned(),
        engines: engines_of_cells(engine, &record),
        known: known_nodes(engine, cells).await?,
        owners: Vec::new(),
    };
    drained.owners = read_owners(&drained.engines).await?;
    drained.check_known()?;
    let all = drained.left();
    for cell in &all {
        let moved = drained.move_cell(*cell).await;
        let Moved { node: new, epoch, .. } = moved.map_err(|error| {
            anyhow::anyhow!("{}{error:#}{}", prefix(cells, *cell), drained.words_for_left())
        })?;
        print(format!("{}'{new}' is active, epoch {epoch}\n", prefix(cells, *cell)).as_bytes());
        drained.owners[usize::from(*cell)] = Some(new);
    }
    // It may have taken a cell that was free meanwhile.
    drained.owners = read_owners(&drained.engines).await?;
    ensure!(
        drained.left().is_empty(),
        "'{node}' has become active again meanwhile{}; run this again",
        drained.words_for_left()
    );
    print(format!("'{node}' {}\n", drained.words_for_done(!all.is_empty())).as_bytes());
    Ok(())
}

/// Moves single cells from the nodes with the most cells to those with the fewest, until they
/// differ by one at most. `interval`: between two moves.
///
/// # Errors
///
/// At the first one that could not be moved.
pub(super) async fn rebalance(engine: &Engine, interval: Duration) -> anyhow::Result<()> {
    let record = connect::read_whole(engine).await?;
    let cells = record.cells();
    ensure!(cells > 1, "cluster '{}' has one cell", engine.names().cluster());
    let mut moved = 0;
    loop {
        let engines = engines_of_cells(engine, &record);
        let owners = read_owners(&engines).await?;
        let known = known_nodes(engine, cells).await?;
        let running = ask_all(&engines[0], &Question::Status).await?;
        let running = running.into_iter().map(|status| status.node);
        let running: Vec<String> = running.filter(|node| known.contains(node)).collect();
        let Some((cell, from)) = next_move(&owners, &running) else { break };
        if moved > 0 {
            tokio::time::sleep(interval).await;
        }
        let drained = Drain { node: from, engines, known: running, owners };
        let found = drained.move_cell(cell).await;
        let Moved { node, epoch, .. } = found.with_context(|| format!("cell {cell}"))?;
        print(format!("{}'{node}' is active, epoch {epoch}\n", prefix(cells, cell)).as_bytes());
        moved += 1;
        ensure!(moved <= usize::from(cells), "cells do not stay where they are moved to");
    }
    print(format!("cells moved: {moved}\n").as_bytes());
    Ok(())
}

/// A cell of the node that has the most, if another one has at least two fewer. A node that does
/// not run counts for nothing: other nodes take its cells by themselves.
fn next_move(owners: &[Option<String>], running: &[String]) -> Option<(u16, String)> {
    let count = |node: &String| owners.iter().flatten().filter(|owner| *owner == node).count();
    let most = running.iter().max_by_key(|node| count(node))?;
    let fewest = running.iter().map(count).min()?;
    let cell = owners.iter().rposition(|owner| owner.as_ref() == Some(most))?;
    (count(most) > fewest + 1).then(|| (cell as u16, most.clone()))
}

/// Those that may get a role. With several cells other nodes have no links.
async fn known_nodes(engine: &Engine, cells: u16) -> anyhow::Result<Vec<String>> {
    if cells > 1 {
        return Ok(read_members(engine).await?.into_iter().map(|member| member.node).collect());
    }
    let nodes = ask_all(engine, &Question::Status).await?;
    Ok(nodes.into_iter().map(|status| status.node).collect())
}

/// The node with the lease of each cell.
async fn read_owners(engines: &[Engine]) -> anyhow::Result<Vec<Option<String>>> {
    let leases = try_join_all(engines.iter().map(connect::read_lease)).await?;
    let owner = |lease: cluster::LeaseValue| (!lease.is_released).then_some(lease.holder.node);
    Ok(leases.into_iter().map(|lease| lease.and_then(owner)).collect())
}

/// A node that loses its roles.
struct Drain {
    node: String,
    /// By the names of each cell.
    engines: Vec<Engine>,
    known: Vec<String>,
    /// Of each cell.
    owners: Vec<Option<String>>,
}

impl Drain {
    fn check_known(&self) -> anyhow::Result<()> {
        let Self { node, known, owners, .. } = self;
        let is_known = known.contains(node) || owners.iter().flatten().any(|owner| owner == node);
        let names = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        ensure!(is_known, "unknown node '{node}'; known nodes: {names}");
        Ok(())
    }

    /// The cells for which the node is still active.
    fn left(&self) -> Vec<u16> {
        let is_left = |(_, owner): &(u16, &Option<String>)| owner.as_deref() == Some(&*self.node);
        (0..).zip(&self.owners).filter(is_left).map(|(cell, _)| cell).collect()
    }

    async fn move_cell(&self, cell: u16) -> anyhow::Result<Moved> {
        let engine = &self.engines[usize::from(cell)];
        let ends_at = Instant::now() + REFUSALS_TIMEOUT;
        let accepted = loop {
            match self.request(engine).await {
                // A node that has just become active refuses for a moment, and a standby may be
                // about to catch up.
                Err(_) if Instant::now() < ends_at => tokio::time::sleep(RETRY_INTERVAL).await,
                answer => break answer?,
            }
        };
        let moved = outcome(engine, accepted).await?;
        ensure!(
            moved.node != self.node,
            "'{}' did not take over in time; '{}' is active again",
            moved.wanted,
            moved.node
        );
        Ok(moved)
    }

    async fn request(&self, engine: &Engine) -> anyhow::Result<Accepted> {
        let nodes = ask_all(engine, &Question::Status).await?;
        let to = self.best(&nodes).context("no standby has caught up; see `quelea cluster status`");
        request(engine, Some(&to?.node)).await
    }

    /// The standby with the fewest cells.
    fn best<'a>(&self, nodes: &'a [NodeStatus]) -> Option<&'a NodeStatus> {
        let is_fit = |status: &&NodeStatus| {
            let NodeStatus { node, .. } = status;
            status.can_take_over() && *node != self.node && self.known.contains(node)
        };
        let count = |status: &&NodeStatus| {
            self.owners.iter().flatten().filter(|owner| **owner == status.node).count()
        };
        nodes.iter().filter(is_fit).min_by_key(count)
    }

    /// Behind what went wrong.
    fn words_for_left(&self) -> String {
        let cells = comma_list(&self.left());
        match self.engines.len() {
            1 => String::new(),
            _ => format!("; '{}' is still active for cells {cells}", self.node),
        }
    }

    fn words_for_done(&self, has_moved: bool) -> &'static str {
        match (self.engines.len(), has_moved) {
            (1, _) => "is not active",
            (_, true) => "is not active for any cell now",
            (_, false) => "is not active for any cell",
        }
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const SWITCHOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a drain repeats a request that is refused, and how often.
const REFUSALS_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(owners: &[Option<&str>]) -> Drain {
        Drain {
            node: "a".to_owned(),
            engines: Vec::new(),
            known: ["a", "b", "c", "d"].map(str::to_owned).into(),
            owners: owners.iter().map(|owner| owner.map(str::to_owned)).collect(),
        }
    }

    fn node(name: &str, role: &str) -> NodeStatus {
        NodeStatus { node: name.to_owned(), role: role.to_owned(), ..NodeStatus::default() }
    }

    #[test]
    fn a_cell_goes_to_the_standby_with_the_fewest_cells() {
        let standbys = ["a", "b", "c", "d", "stranger"].map(|name| node(name, "standby"));
        let best = |owners: &[Option<&str>], nodes: &[NodeStatus]| {
            drain(owners).best(nodes).map(|status| status.node.clone())
        };
        let owners = [Some("a"), Some("b"), Some("d"), Some("b"), None];
        assert_eq!(best(&owners, &standbys).as_deref(), Some("c"));
        assert_eq!(best(&[Some("a")], &standbys).as_deref(), Some("b"), "the first of equals");
        assert_eq!(best(&owners, &standbys[..1]), None, "the node itself");
        assert_eq!(best(&owners, &standbys[4..]), None, "not in the list of nodes");
        assert_eq!(best(&owners, &[node("c", "suspended"), node("d", "ended")]), None);
    }

    #[test]
    fn the_cells_that_are_left_are_those_of_the_node() {
        let drained = drain(&[Some("b"), Some("a"), None, Some("a")]);
        assert_eq!(drained.left(), [1, 3]);
        assert_eq!(drained.words_for_left(), "; 'a' is still active for cells 1, 3");
        assert!(drained.check_known().is_ok());
    }

    #[test]
    fn an_unknown_node_is_refused() {
        let mut drained = drain(&[Some("old")]);
        drained.node = "e".to_owned();
        let error = drained.check_known().unwrap_err().to_string();
        assert_eq!(error, "unknown node 'e'; known nodes: a, b, c, d");
        drained.node = "old".to_owned();
        assert!(drained.check_known().is_ok(), "removed from the list, and still active");
        drained.known.clear();
        drained.node = "e".to_owned();
        let error = drained.check_known().unwrap_err().to_string();
        assert_eq!(error, "unknown node 'e'; known nodes: none");
    }

    #[test]
    fn cells_are_moved_until_nodes_differ_by_one() {
        let nodes = ["a", "b", "c"].map(str::to_owned);
        let names = |text: &str| -> Vec<Option<String>> {
            text.chars().map(|c| (c != '-').then(|| c.to_string())).collect()
        };
        for (owners, expected) in [
            ("aabbcc", None),
            ("aabbc-", None),
            ("aaabbc", Some((2, "a"))),
            ("aaaaaa", Some((5, "a"))),
            ("ddddda", None),
            ("------", None),
        ] {
            let found = next_move(&names(owners), &nodes);
            assert_eq!(found, expected.map(|(cell, node)| (cell, node.to_owned())), "{owners}");
        }
        assert_eq!(next_move(&names("aa"), &[]), None);
    }

    #[test]
    fn cells_have_numbers_from_0() {
        assert_eq!(numbers(1), "0");
        assert_eq!(numbers(6), "from 0 to 5");
        assert_eq!((prefix(1, 0), prefix(6, 5)), (String::new(), "cell 5: ".to_owned()));
    }
}
