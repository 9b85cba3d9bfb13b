//! A node of a cluster with several cells: it has the listeners, and for each cell a thread that
//! follows its logs, and serves while this node is active for it.
//!
//! A client enters by any listener of any node. It goes on in the cell that is the home of its
//! client id: here ([`Entrance`]), or on the node that is active for that cell ([`links`]). Calls
//! of the API go there as well ([`calls`]). A cell begins and ends alone ([`life`]); what all cells
//! of a node have in common is in [`node`].

mod calls;
mod life;
mod links;
mod node;
mod table;

pub(crate) use calls::Calls;
pub(super) use links::Post;
pub(super) use node::serve;
pub(super) use table::{Entrance, Homeless, Way};
