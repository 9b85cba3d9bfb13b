//! Follows the list of nodes of a cluster with several cells.

use std::io;
use std::time::Duration;

use tokio::sync::oneshot;

use super::connect::{self, WaitReason};
use super::nodes::{NodeMember, read_members};
use config::ClusterConfig;

/// How often the list is read.
const READ_INTERVAL: Duration = Duration::from_secs(2);

/// Ends the following when it is dropped.
#[derive(Debug)]
pub(crate) struct Following {
    _stop: oneshot::Sender<()>,
}

/// What changes in the list of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// A new node, or a new address of one.
    Set(NodeMember),
    /// The name of a node.
    Removed(String),
}

/// Follows the list on a thread of its own, which has a connection to NATS. `known`: as the node
/// has it now.
///
/// # Errors
///
/// The system gives no thread.
pub(crate) fn follow(
    cluster: ClusterConfig,
    mut known: Vec<NodeMember>,
    mut on_change: impl FnMut(MemberChange) + Send + 'static,
) -> io::Result<Following> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let mut changed = move |members: Vec<NodeMember>| {
        changes(&known, &members).into_iter().for_each(&mut on_change);
        known = members;
    };
    let following = async move {
        // What NATS refuses now it has accepted when the node began.
        let Ok(engine) = connect::connect(&cluster, &WaitReason::default()).await else { return };
        let engine = engine.impatient();
        loop {
            tokio::time::sleep(READ_INTERVAL).await;
            // Without an answer the list stays as it is known.
            if let Ok(members) = read_members(&engine).await {
                changed(members);
            }
        }
    };
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => {}
                () = following => {}
            }
        });
    };
    std::thread::Builder::new().name("members".into()).spawn(run)?;
    Ok(Following { _stop: stop })
}

fn changes(before: &[NodeMember], after: &[NodeMember]) -> Vec<MemberChange> {
    let is_gone = |own: &&NodeMember| after.iter().all(|other| other.node != own.node);
    let removed = before.iter().filter(is_gone);
    let set = after.iter().filter(|own| !before.contains(own));
    let removed = removed.map(|own| MemberChange::Removed(own.node.clone()));
    removed.chain(set.cloned().map(MemberChange::Set)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_in_the_list_is_found() {
        let member = |node: &str, link: &str| NodeMember { node: node.into(), link: link.into() };
        let before = [member("a", "a:1"), member("b", "b:1"), member("c", "c:1")];
        let after = [member("a", "a:1"), member("b", "b:2"), member("d", "d:1")];
        let expected = [
            MemberChange::Removed("c".into()),
            MemberChange::Set(member("b", "b:2")),
            MemberChange::Set(member("d", "d:1")),
        ];
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(changes(&after, &after), []);
    }
}
