//! Retained messages that say that there is none any more.

use session::Message;

/// It clears what is retained on its topic.
pub(crate) fn frees_room(message: &Message) -> bool {
    message.retain() && message.payload_len() == 0
}
