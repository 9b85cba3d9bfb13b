//! Publishers that wait until another shard takes mail.

use codec::Publish;
use session::PauseReason;

use crate::parts::client::{Client, topic_of};
use crate::parts::flow::SMALL_BYTES_MAX;
use crate::parts::router::Router;
use crate::state::Context;
use crate::{Name, ShardId};

impl Client {
    /// A shard with a full window that this publish may go to. Of a group that matches, it is not
    /// known before which shard has the member that is chosen: any shard with a full window is.
    pub(crate) fn full_window_of(
        &self,
        cx: &mut Context,
        router: &mut Router,
        (publish, is_alone): (&Publish<'_>, bool),
    ) -> Option<ShardId> {
        let mut full = cx.effects.windows().full;
        if full == 0 {
            return None;
        }
        let topic = Name::new(self.scope, topic_of(self, publish));
        let home = if publish.retain { 1 << cx.shared.place_of_topic(topic) } else { 0 };
        let audience = router.audience(topic.as_bytes(), &mut cx.flow.work);
        if audience.groups().is_empty() {
            full &= audience.interested().wants | home;
        }
        router.keep(audience);
        let passes = full != 0
            && is_alone
            && publish.payload.len() <= SMALL_BYTES_MAX
            && cx.effects.windows().lets_pass(full, self.key.slot());
        (full != 0 && !passes).then(|| full.trailing_zeros() as ShardId)
    }

    /// Reads nothing from a publisher before the shard has dealt with more of its mail.
    pub(crate) fn wait_for_credit(&mut self, cx: &mut Context, shard: ShardId) {
        if self.stand_in_line(cx) {
            cx.effects.windows().wait(shard, self.key.slot(), self.connection);
            cx.metrics.mail_waits.add(1);
        }
    }

    /// Reads nothing from its connection before that is [read on](Shard::read_on). True: it is to
    /// be put into the line; else it stands in one.
    pub(crate) fn stand_in_line(&mut self, cx: &mut Context) -> bool {
        self.change_read_pauses(cx, |pauses| pauses.pause(PauseReason::Queued))
    }
}
