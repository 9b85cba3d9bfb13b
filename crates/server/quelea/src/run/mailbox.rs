//! Into a worker: from other workers, the acceptors and the control plane.

use broker::Answer;
use tokio::sync::oneshot;

use super::worker::Os;

pub(super) type Mailbox = driver::Mailbox<Os>;
pub(super) type Item = driver::Item<Os>;
pub(super) type Handover = driver::Handover<Os>;
pub(super) type Asked = driver::Asked<oneshot::Sender<Answer>>;
