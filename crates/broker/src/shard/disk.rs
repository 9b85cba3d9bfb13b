//! The log of a shard: what it is given, and what waits for its answers.

use std::sync::Arc;

use codec::{Ack, AckKind, Properties, Reason};
use policy::{Action, Identity};
use session::{Message, Respondent};
use storage::{Command, Completion, Recovered, Status};

use crate::clients::client::Client;
use crate::clients::notices::Subject;
use crate::durable::line::{Behind, Waiting};
use crate::durable::promise::Promise;
use crate::durable::queues::Queue;
use crate::durable::replay::{Replay, Restored, Unreadable};
use crate::durable::store::Loaded;
use crate::durable::writing::chunk_is_done;
use crate::journal::QueueId;
use crate::limits::ledger::NOBODY;
use crate::routing::asked::Asked;
use crate::routing::publish::Routed;
use crate::shard::shared::LogState;
use crate::sure::Sure;
use crate::{Confirm, Ended, Limits, Mail, SessionKey, Shard};

impl Shard {
    /// The state of the log; none if the shard keeps everything in memory.
    pub fn log_status(&self) -> Option<Status> {
        self.durable.status_of_log()
    }

    /// Sizes and counters of the log.
    pub fn log_stats(&self) -> Option<storage::Stats> {
        self.durable.store.as_ref().map(|store| store.log.stats())
    }

    /// Where reclaiming found that the medium does not hold what was written, if it did.
    pub fn log_damage(&self) -> Option<storage::Position> {
        self.durable.store.as_ref()?.log.damaged()
    }

    /// What recovery found is durable, so connections may come. True without a log.
    pub fn log_is_ready(&self) -> bool {
        self.durable.store.as_ref().is_none_or(|store| store.log.is_ready())
    }

    /// Ends the log in order: complete when [`Shard::log_status`] is `Closed`, or the log is out
    /// of service.
    pub fn close_log(&mut self) {
        if let Some(store) = &mut self.durable.store {
            store.log.close();
        }
    }

    /// Keeps the log's files as they are, for a backup, until as many [`Shard::unpin_log`].
    /// Returns what belongs to the backup: segment numbers and how many bytes of each, and the
    /// content of the manifest.
    pub fn pin_log(&mut self) -> (Vec<(u32, u64)>, Option<Vec<u8>>) {
        let Some(store) = &mut self.durable.store else { return Default::default() };
        store.log.pin();
        (store.log.written_files(), store.log.manifest())
    }

    /// Ends a [`Shard::pin_log`].
    pub fn unpin_log(&mut self) {
        if let Some(store) = &mut self.durable.store {
            store.log.unpin();
        }
    }

    /// Joins the shard's log and rebuilds the state that it holds. `limits` hold for restored
    /// sessions until their clients connect again.
    ///
    /// Call [`crate::settle`] when all shards have done so, and carry out disk commands until
    /// [`Shard::log_is_ready`], before the first connection.
    ///
    /// # Errors
    ///
    /// A record with a right checksum cannot be read: another program version wrote it.
    pub fn open_log(
        &mut self,
        recovered: Recovered,
        settings: storage::Settings,
        mut replay: Replay,
        limits: &Arc<Limits>,
        now_ms: u64,
    ) -> Result<Restored, Unreadable> {
        self.cx.now_ms = now_ms;
        let Self { cx, sessions, durable, groups, retained, .. } = self;
        durable.open(cx, recovered, settings, &mut replay)?;
        durable.restore(cx, sessions, groups, retained, replay, limits)
    }

    /// Moves what the disk has to do to the end of `out`. Call it once per turn, after everything
    /// else, so that all that a turn appends shares a write.
    pub fn take_disk_commands(&mut self, out: &mut Vec<Command>, now_ms: u64) {
        self.cx.now_ms = now_ms;
        if self.durable.store.is_none() {
            return;
        }
        self.durable.reclaim(&mut self.sessions, &self.groups, &mut self.retained);
        let is_written = self
            .durable
            .write_in_flight(&mut self.sessions)
            .and_then(|()| self.durable.write_progress(&mut self.sessions));
        let Some(store) = self.durable.store.as_mut().sure() else { return };
        if is_written.is_ok()
            && let Some(chunk) = store.chunk.take_if(chunk_is_done)
        {
            store.log.reclaimed(chunk);
        }
        store.log.take_commands(out);
        self.note_log_status();
    }

    /// The disk has carried out a command.
    pub fn on_disk(&mut self, completion: Completion, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let Some(store) = self.durable.store.as_mut().sure() else { return };
        let read_back = store.log.on_completed(completion);
        let mut waiters = store.take_retry();
        if let Some(read_back) = read_back {
            let chunk = match read_back.result {
                Ok(chunk) => Some(chunk),
                Err(fault) => {
                    self.cx.note_of_shard(Subject::LogUnreadable(fault), 1);
                    None
                }
            };
            if let Some(store) = &mut self.durable.store {
                match store.on_read(read_back.id, chunk) {
                    Ok(served) => waiters.extend(served),
                    Err(position) => self.cx.tell_damaged(position),
                }
            }
        }
        self.durable.try_late(&mut self.cx, &mut self.sessions);
        self.keep_promises();
        self.note_log_status();
        self.resume_queues(waiters);
        self.try_late_facts();
        self.try_late_mail();
        self.finish();
    }

    /// Time has passed for the log and for the messages in it.
    pub(crate) fn tick_log(&mut self) {
        let now_ms = self.cx.now_ms;
        let Some(store) = &mut self.durable.store else { return };
        store.log.on_tick(now_ms);
        store.expire_messages(now_ms);
        let mut waiters = store.take_retry();
        waiters.extend(store.take_unreadable());
        self.durable.try_late(&mut self.cx, &mut self.sessions);
        self.resume_queues(waiters);
        self.resume_handovers();
        self.try_late_facts();
        self.try_late_mail();
    }

    /// Looks at the state of the log, and does once what follows from a change of it.
    pub(crate) fn note_log_status(&mut self) {
        let now_ms = self.cx.now_ms;
        let Some(store) = &mut self.durable.store else { return };
        let status = store.log.status();
        let is_poisoned = status.is_out_of_service();
        let state = LogState {
            full: matches!(status, Status::Full(_)),
            poisoned: is_poisoned,
            behind: store.is_behind(),
            space: store.space_left(),
        };
        self.cx.shared.set_log_state(self.cx.id, state);
        if status == store.told {
            return;
        }
        store.told = status;
        if is_poisoned {
            self.break_promises();
        } else if state.full {
            self.durable.wait_for_no_end(&mut self.cx, &mut self.sessions);
        }
        let undetached = match &mut self.durable.store {
            Some(store) => std::mem::take(&mut store.undetached),
            None => return,
        };
        self.resume_handovers();
        for slot in undetached {
            if self.sessions.get(slot).is_some_and(|client| !client.is_connected()) {
                self.durable.keep_detached(&mut self.sessions, slot, now_ms);
            }
        }
    }

    /// Does what has waited for what is committed by now.
    pub(crate) fn keep_promises(&mut self) {
        while let Some(store) = &mut self.durable.store
            && let Some(promise) = store.promises.next(&store.log)
        {
            self.keep_promise(promise);
        }
        self.pass_on_line();
    }

    pub(crate) fn keep_promise(&mut self, promise: Promise) {
        match promise {
            Promise::Confirm(confirm) => {
                self.durable.confirm(&mut self.cx, &mut self.sessions, confirm, Reason::SUCCESS)
            }
            Promise::Send { session, packet_id } => {
                self.send_committed(session, packet_id);
            }
            Promise::Received { session, packet_id } => {
                self.release_outgoing(session, packet_id);
            }
            Promise::Released { session, connection, packet_id, serial } => {
                self.durable.complete_incoming(
                    &mut self.cx,
                    &mut self.sessions,
                    session,
                    connection,
                    packet_id,
                    serial,
                );
            }
            Promise::Packet { session, connection, packet } => {
                let Some(slot) = self.sessions.slot_of(session) else { return };
                let Some(link) = self.sessions.link(slot, connection) else { return };
                link.outbox.append(|out| out.extend_from_slice(&packet));
                link.outbox.note_control();
                self.sessions.mark_dirty(&mut self.cx, slot);
            }
            Promise::SessionEnded { client } => {
                self.durable.finish_end(&mut self.cx, &mut self.sessions, client)
            }
        }
    }

    /// The log is out of service: what waits for it never gets a success.
    pub(crate) fn break_promises(&mut self) {
        while let Some(store) = &mut self.durable.store
            && let Some(promise) = store.promises.next_broken()
        {
            match promise {
                Promise::Confirm(confirm) => {
                    self.durable.confirm(
                        &mut self.cx,
                        &mut self.sessions,
                        confirm,
                        Reason::IMPLEMENTATION_SPECIFIC_ERROR,
                    );
                }
                Promise::Packet { session, connection, .. } => {
                    if let Some(slot) = self.sessions.slot_of(session)
                        && self.sessions.link(slot, connection).is_some()
                    {
                        self.cx.doomed.push((slot, Ended::LogFailed));
                    }
                }
                // Half of a QoS 2 exchange: the client repeats its part with its next connection.
                Promise::Send { .. } | Promise::Received { .. } | Promise::Released { .. } => {}
                Promise::SessionEnded { .. } => {}
            }
        }
        self.durable.break_ends(&mut self.cx, &mut self.sessions);
        self.durable.break_late(&mut self.cx, &mut self.sessions);
        self.break_line();
    }

    /// The packet id of a QoS 2 delivery is kept: it may leave, and what was held behind it.
    pub(crate) fn send_committed(&mut self, session: SessionKey, packet_id: u16) {
        let now_ms = self.cx.now_ms;
        let metrics = &self.cx.metrics;
        let Some(slot) = self.sessions.slot_of(session) else { return };
        let Some(client) = self.sessions.get_mut(slot) else { return };
        let mut given_up = Vec::new();
        let Client { session, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        let is_of_this_link =
            session.commit(packet_id, now_ms, may_have, |outcome| match outcome {
                Ok(payload_bytes) => {
                    metrics.publishes_sent.add(1);
                    metrics.publish_bytes_sent.add(payload_bytes as u64);
                }
                Err(reason) => given_up.push(reason),
            });
        self.sessions.mark_dirty(&mut self.cx, slot);
        if is_of_this_link && given_up.is_empty() {
            return;
        }
        self.sessions.note_given_up(&mut self.cx, &mut self.durable, slot, given_up);
        // What belongs to an earlier link leaves with the resends.
        self.pump(slot);
    }

    /// A PUBREC is kept: PUBREL.
    pub(crate) fn release_outgoing(&mut self, session: SessionKey, packet_id: u16) {
        let Some(slot) = self.sessions.slot_of(session) else { return };
        let Some(client) = self.sessions.get_mut(slot) else { return };
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if let Err(violation) = client.session.on_ack(&ack) {
            self.end(slot, Ended::Violation(violation));
        }
        self.sessions.mark_dirty(&mut self.cx, slot);
    }

    /// The disk has brought what these queues asked for.
    pub(crate) fn resume_queues(&mut self, queues: Vec<QueueId>) {
        for id in queues {
            match self.durable.queue(&self.sessions, id) {
                Some(Queue::Handover) => self.resume_handovers(),
                Some(Queue::Session(slot)) => self.pump(slot),
                Some(Queue::Group(id)) => {
                    let Some(key) = self.durable.group_of(id) else { continue };
                    self.groups.drain_group(&mut self.cx, &mut self.durable, key)
                }
                // Nothing waits there; or it is gone meanwhile.
                Some(Queue::Seen(_)) | None => {}
            }
        }
    }

    /// After a start: what may not have been passed on is passed on again.
    pub(crate) fn resume_handovers(&mut self) {
        let Some(store) = self.durable.store.as_mut().filter(|store| store.handovers.is_resuming)
        else {
            return;
        };
        for serial in store.handovers.serials() {
            let Some(store) = self.durable.store.as_mut().sure() else { return };
            let Some(handover) = store.handovers.get(serial) else { continue };
            if handover.message.is_some() || !handover.awaited.is_empty() {
                continue;
            }
            match store.load(serial, QueueId::Handover) {
                Loaded::Ready(message) => {
                    if let Some(handover) = store.handovers.get_mut(serial) {
                        handover.message = Some(message);
                    }
                    self.pass_on_taken(serial);
                }
                // Serials are passed on in their order: none overtakes one that is still read.
                Loaded::Pending => return,
                Loaded::Gone => {
                    if let Some(handover) = store.handovers.get_mut(serial) {
                        handover.awaited.insert(Respondent::ASKING);
                        let session = handover.session;
                        self.sessions.leave_line(session);
                    }
                    self.durable.on_handed_over(
                        &mut self.cx,
                        &mut self.sessions,
                        serial,
                        Respondent::ASKING,
                    );
                }
            }
        }
        if let Some(store) = &mut self.durable.store {
            store.handovers.is_resuming = false;
        }
        self.keep_promises();
    }

    /// The retained store, the groups and the other shards get it. The record of a QoS 2 publish is
    /// committed.
    ///
    /// What is retained is what was acknowledged last: if its session was given up, nobody is told
    /// any more that such a publish is kept, so it must not replace what was said since.
    pub(crate) fn pass_on_taken(&mut self, serial: u64) {
        let Some(store) = self.durable.store.as_mut().sure() else { return };
        let payer = store.stored(serial).map_or(NOBODY, |stored| stored.payer);
        let Some(handover) = store.handovers.get_mut(serial).sure() else { return };
        let Some(message) = handover.message.take().sure() else { return };
        let (session, is_will) = (handover.session, handover.is_will);
        let was_in_line = std::mem::take(&mut handover.is_in_line);
        let mut asked = Asked::new(Confirm {
            publisher: SessionKey::new(self.cx.id, 0, 0),
            connection: crate::NO_CONNECTION,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            payer,
            is_again: false,
        });
        handover.awaited.insert(Respondent::ASKING);
        if was_in_line {
            self.sessions.leave_line(session);
        }
        let mut routed = Routed::default();
        let slot = session.and_then(|session| self.sessions.find_queue(session));
        if message.retain() && (is_will || slot.is_some()) {
            self.retained.retain(
                &mut self.cx,
                &mut self.sessions,
                &mut self.durable,
                &message,
                Some(&mut asked),
                &mut routed,
            );
        }
        self.sessions.route_onward(
            &mut self.cx,
            &mut self.durable,
            &mut self.groups,
            &message,
            Some(&mut asked),
            &mut routed,
        );
        if let Some(store) = &mut self.durable.store
            && let Some(handover) = store.handovers.get_mut(serial)
        {
            handover.awaited.extend(&asked.take_awaited().unwrap_or_default());
        }
        self.durable.on_handed_over(&mut self.cx, &mut self.sessions, serial, Respondent::ASKING);
    }

    /// What can go on does.
    pub(crate) fn pass_on_line(&mut self) {
        while let Some(store) = self.durable.store.as_mut().filter(|s| !s.handovers.is_resuming)
            && let Some(waiting) = store.line.next(&store.log)
        {
            match waiting {
                Waiting::Taken { serial, .. } | Waiting::Will { serial } => {
                    self.pass_on_taken(serial);
                }
                Waiting::Behind(behind) => self.pass_on_behind(*behind),
            }
        }
    }

    /// The log is out of service: what it should have kept is refused, and holds up nobody.
    pub(crate) fn break_line(&mut self) {
        while let Some(store) = &mut self.durable.store
            && let Some(waiting) = store.line.pop()
        {
            match waiting {
                Waiting::Taken { serial, .. } => {
                    self.durable.refuse_taken(&mut self.cx, &mut self.sessions, serial)
                }
                Waiting::Will { serial } => self.pass_on_taken(serial),
                Waiting::Behind(behind) => self.pass_on_behind(*behind),
            }
        }
    }

    pub(crate) fn pass_on_behind(&mut self, behind: Behind) {
        let Behind { session, message, confirm, is_for_store_only } = behind;
        self.sessions.leave_line(Some(session));
        let mut routed = Routed::default();
        let mut asked = confirm.map(Asked::new);
        if message.retain() {
            self.retained.retain_patiently(
                &mut self.cx,
                &mut self.sessions,
                &mut self.durable,
                &message,
                asked.as_mut(),
                &mut routed,
            );
        }
        let is_refused = routed.refused.is_some() && confirm.is_some();
        if !is_for_store_only && !is_refused {
            self.sessions.route_onward(
                &mut self.cx,
                &mut self.durable,
                &mut self.groups,
                &message,
                asked.as_mut(),
                &mut routed,
            );
        }
        let (Some(confirm), Some(mut asked)) = (confirm, asked) else { return };
        if let Some(reason) = routed.refused {
            self.sessions.on_confirmed(
                &mut self.cx,
                &mut self.durable,
                confirm,
                reason,
                Some(&message),
            );
            return;
        }
        // It waits for these, and for the line no more. If its connection has ended, what comes
        // again on the next one does.
        if let Some(slot) = self.sessions.slot_of(confirm.publisher) {
            let (awaited, number) = (asked.take_awaited().unwrap_or_default(), confirm.ack_number);
            let is_current = self.sessions.link(slot, confirm.connection).is_some();
            let Some(client) = self.sessions.get_mut(slot).sure() else { return };
            let session = &mut client.session;
            match is_current {
                true => session.await_more(number, &awaited),
                false => session.incoming.await_more((confirm.connection, number), &awaited),
            }
        }
        // Says nothing of whether anybody subscribes.
        self.sessions.on_confirmed(
            &mut self.cx,
            &mut self.durable,
            confirm,
            Reason::NO_MATCHING_SUBSCRIBERS,
            None,
        );
    }

    /// What found no room in the log is tried again: wills, ends of sessions, and PUBRELs whose
    /// connection still waits.
    pub(crate) fn try_late_facts(&mut self) {
        self.try_late_wills();
        let Some(store) = &mut self.durable.store else { return };
        if !store.late_ends.is_empty() {
            self.durable.try_late_ends(&mut self.cx, &mut self.sessions);
        }
        let Some(store) = &mut self.durable.store else { return };
        for (session, connection, packet_id) in std::mem::take(&mut store.late_pubrels) {
            if let Some(slot) = self.sessions.slot_of(session)
                && self.sessions.link(slot, connection).is_some()
            {
                self.sessions.on_pubrel(&mut self.cx, &mut self.durable, slot, packet_id);
            }
        }
    }

    /// Mail with a serial that found no room is kept, with what comes behind it, until it does.
    pub(crate) fn try_late_mail(&mut self) {
        let mut late = self.cx.flow.inbox.take_late().into_iter();
        while !self.cx.flow.inbox.has_late()
            && let Some(mail) = late.next()
        {
            match mail {
                Mail::Publish { message, confirm, payer } => {
                    self.sessions.on_publish_mail(
                        &mut self.cx,
                        &mut self.durable,
                        message,
                        confirm,
                        payer,
                    );
                }
                Mail::Retain { message, confirm, payer } => {
                    self.durable.on_retain_mail(
                        &mut self.cx,
                        &mut self.sessions,
                        &mut self.retained,
                        message,
                        confirm,
                        payer,
                    );
                }
                Mail::Park { group, message, confirm } => {
                    self.groups.on_park(
                        &mut self.cx,
                        &mut self.sessions,
                        &mut self.durable,
                        &group,
                        message,
                        confirm,
                    );
                }
                other => self.cx.flow.inbox.put_late(other),
            }
        }
        late.for_each(|mail| self.cx.flow.inbox.put_late(mail));
    }
}
