//! The nodes of a cluster with several cells: the key `members` of its bucket, changed by
//! `quelea cluster node`.

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use cluster::Record;
use serde::{Deserialize, Serialize};

use super::connect;
use super::engine::{Engine, Put};
use super::operate::Common;
use base::print;

/// A list of [`NodeMember`]s as JSON, by name.
pub(super) const MEMBERS_KEY: &str = "members";

/// Nodes of a cluster.
const NODES_MAX: usize = 64;

/// How often a change is tried again because another process has changed the list.
const TRIES_MAX: usize = 16;

/// A node that may take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeMember {
    /// `cluster.node`.
    pub(crate) node: String,
    /// Where it listens for links of other nodes: HOST:PORT.
    pub(crate) link: String,
}

/// The commands of `quelea cluster node`.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Add a node to the list of members, or change its address. A node that is not in the list
    /// cannot take part.
    Add {
        #[command(flatten)]
        common: Common,
        /// The `cluster.node` of the node.
        name: String,
        /// Address and port at which other nodes reach its `cluster.listen`.
        #[arg(long, value_name = "HOST:PORT")]
        link: String,
    },
    /// Remove a node from the list of members. Stop the node first.
    Remove {
        #[command(flatten)]
        common: Common,
        /// The `cluster.node` of the node.
        name: String,
    },
    /// Show the list of members.
    List {
        #[command(flatten)]
        common: Common,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl NodeCommand {
    pub(super) const fn common(&self) -> &Common {
        match self {
            Self::Add { common, .. } | Self::Remove { common, .. } | Self::List { common, .. } => {
                common
            }
        }
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to do.
    pub(super) async fn run(&self, engine: &Engine) -> anyhow::Result<()> {
        let record = connect::read_facts(engine).await?;
        let name = engine.names().cluster();
        ensure!(
            record.cells() > 1,
            "cluster '{name}' has one cell, and no list of nodes: each node that is configured for \
             it takes part. Only a cluster with several cells has one (`quelea cluster init \
             --cells`)"
        );
        match self {
            Self::Add { name, link, .. } => {
                let member = NodeMember::checked(name, link)?;
                let word = change(engine, |members| add(members, member.clone())).await?;
                print(format!("node '{name}' {word}: link {link}\n").as_bytes());
            }
            Self::Remove { name, .. } => {
                check_has_no_cell(engine, &record, name).await?;
                change(engine, |members| remove(members, name)).await?;
                print(format!("node '{name}' removed\n").as_bytes());
            }
            Self::List { json, .. } => {
                let members = read_members(engine).await?;
                let text = match json {
                    true => format!("{}\n", serde_json::to_string_pretty(&members)?),
                    false => table(&members),
                };
                print(text.as_bytes());
            }
        }
        Ok(())
    }
}

/// A node that has cells would serve them without links to others.
async fn check_has_no_cell(engine: &Engine, record: &Record, name: &str) -> anyhow::Result<()> {
    for cell in 0..record.cells() {
        let lease = connect::read_lease(&engine.of_cell(cell)).await?;
        let is_its = lease.is_some_and(|it| !it.is_released && it.holder.node == name);
        ensure!(
            !is_its,
            "'{name}' is active for cell {cell}; run `quelea cluster drain {name}` and stop the \
             node first. The lease of a node that is lost runs out after some seconds, and another \
             node takes the cell"
        );
    }
    Ok(())
}

impl NodeMember {
    fn checked(node: &str, link: &str) -> anyhow::Result<Self> {
        config::check_node_name(node).map_err(|why| anyhow::anyhow!("NAME: {why}"))?;
        ensure!(
            config::is_host_and_port(link),
            "--link: must be HOST:PORT, such as broker1.example:7883, got '{link}'"
        );
        Ok(Self { node: node.to_owned(), link: link.to_owned() })
    }
}

/// The list of members.
///
/// # Errors
///
/// When it is malformed, or the engine does not answer.
pub(crate) async fn read_members(engine: &Engine) -> anyhow::Result<Vec<NodeMember>> {
    Ok(read(engine).await?.1)
}

/// With its revision.
async fn read(engine: &Engine) -> anyhow::Result<(u64, Vec<NodeMember>)> {
    of(engine.get(MEMBERS_KEY).await.context("cannot read the list of nodes")?)
}

/// The revision and the list of members in the key as it was found.
///
/// # Errors
///
/// When it is malformed.
pub(super) fn of(found: Option<(u64, Vec<u8>)>) -> anyhow::Result<(u64, Vec<NodeMember>)> {
    let Some((revision, value)) = found else { return Ok((0, Vec::new())) };
    let members = serde_json::from_slice(&value);
    Ok((revision, members.context("the key 'members' of the bucket is malformed")?))
}

async fn change<T>(
    engine: &Engine,
    change: impl Fn(&mut Vec<NodeMember>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    for _ in 0..TRIES_MAX {
        let (revision, mut members) = read(engine).await?;
        let before = members.clone();
        let changed = change(&mut members)?;
        if members == before {
            return Ok(changed);
        }
        let put = engine.put_if(MEMBERS_KEY, revision, serde_json::to_vec(&members)?);
        if let Put::Written(_) = put.await.context("cannot write the list of nodes")? {
            return Ok(changed);
        }
    }
    bail!("other processes change the list of nodes at the same time; run this again")
}

/// Says what it has done.
fn add(members: &mut Vec<NodeMember>, new: NodeMember) -> anyhow::Result<&'static str> {
    if let Some(other) = members.iter().find(|own| own.link == new.link && own.node != new.node) {
        bail!("--link: '{}' is the address of node '{}'", new.link, other.node);
    }
    match members.binary_search_by(|own| own.node.cmp(&new.node)) {
        Ok(place) if members[place] == new => Ok("is a member already"),
        Ok(place) => {
            members[place] = new;
            Ok("changed")
        }
        Err(place) => {
            ensure!(members.len() < NODES_MAX, "a cluster has at most {NODES_MAX} nodes");
            members.insert(place, new);
            Ok("added")
        }
    }
}

fn remove(members: &mut Vec<NodeMember>, name: &str) -> anyhow::Result<()> {
    let Some(place) = members.iter().position(|own| own.node == name) else {
        let known: Vec<&str> = members.iter().map(|own| own.node.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        bail!("unknown node '{name}'; known nodes: {known}");
    };
    members.remove(place);
    Ok(())
}

fn table(members: &[NodeMember]) -> String {
    let mut text = format!("{:17} link\n", "node");
    for NodeMember { node, link } in members {
        text.push_str(&format!("{node:17} {link}\n"));
    }
    text
}

pub(super) const NODE_EXAMPLES: &str = "\
Examples:
  quelea cluster node add --config /etc/quelea/quelea.toml node-1 --link broker1.example:7883
  quelea cluster node list --config /etc/quelea/quelea.toml
  quelea cluster node remove --config /etc/quelea/quelea.toml node-1";

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str, link: &str) -> NodeMember {
        NodeMember::checked(node, link).unwrap()
    }

    #[test]
    fn nodes_are_added_changed_and_removed() {
        let mut members = Vec::new();
        assert_eq!(add(&mut members, member("b", "b:1")).unwrap(), "added");
        assert_eq!(add(&mut members, member("a", "[::1]:1")).unwrap(), "added");
        assert_eq!(add(&mut members, member("b", "b:1")).unwrap(), "is a member already");
        assert_eq!(add(&mut members, member("b", "b:2")).unwrap(), "changed");
        assert_eq!(members, [member("a", "[::1]:1"), member("b", "b:2")], "by name");
        let error = add(&mut members, member("c", "b:2")).unwrap_err().to_string();
        assert_eq!(error, "--link: 'b:2' is the address of node 'b'");
        let error = remove(&mut members, "c").unwrap_err().to_string();
        assert_eq!(error, "unknown node 'c'; known nodes: a, b");
        remove(&mut members, "a").unwrap();
        remove(&mut members, "b").unwrap();
        let error = remove(&mut members, "b").unwrap_err().to_string();
        assert_eq!(error, "unknown node 'b'; known nodes: none");
    }

    #[test]
    fn there_is_a_limit_of_nodes() {
        let mut members = Vec::new();
        for number in 0..NODES_MAX {
            add(&mut members, member(&format!("n{number}"), &format!("h{number}:1"))).unwrap();
        }
        let error = add(&mut members, member("more", "more:1")).unwrap_err().to_string();
        assert_eq!(error, "a cluster has at most 64 nodes");
        assert_eq!(add(&mut members, member("n7", "other:1")).unwrap(), "changed");
    }

    #[test]
    fn names_and_addresses_are_checked() {
        for (node, link, expected) in [
            ("a b", "a:1", "NAME: must be 1 to 64 letters"),
            ("", "a:1", "NAME: must be 1 to 64 letters"),
            ("a", "a", "--link: must be HOST:PORT"),
            ("a", "a:0", "--link: must be HOST:PORT"),
            ("a", ":1", "--link: must be HOST:PORT"),
            ("a", "tcp://a:1", "--link: must be HOST:PORT"),
        ] {
            let error = NodeMember::checked(node, link).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{node} {link}: {error}");
        }
    }
}
