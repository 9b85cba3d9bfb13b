//! What only MQTT 5 has on the wire: where a client speaks MQTT 3, it would be left out unsaid.

use crate::model::{Connect, Publish, Subscribe, Will};

/// The first key of the step that MQTT 3 has no place for. A session that is to last lasts for
/// ever there, so that its expiry says nothing only where it ends at once.
pub(super) fn of_connect(connect: &Connect) -> Option<&'static str> {
    let expires = connect.session_expiry_secs > 0 && connect.clean_start;
    let own = first(&[
        (expires, "session_expiry"),
        (connect.receive_max.is_some(), "receive_max"),
        (!connect.user_properties.is_empty(), "user_properties"),
    ]);
    own.or_else(|| connect.will.as_ref().and_then(of_will))
}

pub(super) fn of_will(will: &Will) -> Option<&'static str> {
    first(&[
        (will.delay_secs > 0, "delay` of `will"),
        (will.expiry_secs.is_some(), "expiry` of `will"),
    ])
}

pub(super) fn of_publish(publish: &Publish) -> Option<&'static str> {
    first(&[
        (publish.reply_to.is_some(), "reply_to"),
        (publish.expiry_secs.is_some(), "expiry"),
        (publish.topic_alias, "topic_alias"),
        (!publish.user_properties.is_empty(), "user_properties"),
        (publish.content_type.is_some(), "content_type"),
        (publish.payload_format.is_some(), "payload_format"),
    ])
}

pub(super) fn of_subscribe(subscribe: &Subscribe) -> Option<&'static str> {
    first(&[
        (subscribe.no_local, "no_local"),
        (subscribe.retain_as_published, "retain_as_published"),
        (subscribe.retain_handling > 0, "retain_handling"),
        (subscribe.identifier.is_some(), "identifier"),
        (subscribe.respond.is_some(), "respond"),
    ])
}

fn first(keys: &[(bool, &'static str)]) -> Option<&'static str> {
    keys.iter().find(|(is_given, _)| *is_given).map(|(_, key)| *key)
}
