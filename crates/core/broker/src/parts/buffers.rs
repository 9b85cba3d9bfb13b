//! Memory of a shard that is used again and again: it holds nothing between two messages.

use codec::PropertyBuf;
use session::Template;

use crate::parts::client::Client;

/// Empty outbox buffers kept for reuse, as many as a wide fan-out fills in one turn.
const SPARE_BUFFERS_MAX: usize = 1024;

/// Larger buffers are given back to the allocator, once there are [`LARGE_BUFFERS`] to reuse.
const SPARE_BUFFER_BYTES_MAX: usize = 4 * 1024;

/// So many of the spare buffers may be larger, up to [`LARGE_BUFFER_BYTES_MAX`].
const LARGE_BUFFERS: usize = 64;
const LARGE_BUFFER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Buffers {
    outboxes: Vec<Vec<u8>>,
    /// For the subscribers of a message.
    template: Template,
    /// For a PUBLISH whose properties are rewritten.
    properties: PropertyBuf,
}

impl Default for Buffers {
    fn default() -> Self {
        let (outboxes, template) = (Vec::new(), Template::default());
        Self { outboxes, template, properties: PropertyBuf::new() }
    }
}

impl Buffers {
    /// Lends the client's outbox a buffer if it has none.
    #[inline]
    pub(crate) fn lend(&mut self, client: &mut Client) {
        if let Some(link) = client.session.link_mut()
            && link.outbox.is_bare()
            && let Some(buffer) = self.outboxes.pop()
        {
            link.outbox.lend(buffer);
        }
    }

    /// A buffer that an outbox needs no more.
    pub(crate) fn keep(&mut self, buffer: Vec<u8>) {
        let is_scarce = self.outboxes.len() < LARGE_BUFFERS;
        let bytes_max = if is_scarce { LARGE_BUFFER_BYTES_MAX } else { SPARE_BUFFER_BYTES_MAX };
        if self.outboxes.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= bytes_max {
            self.outboxes.push(buffer);
        }
    }

    /// An empty template, to be [given back](Buffers::keep_template).
    pub(crate) fn take_template(&mut self) -> Template {
        std::mem::take(&mut self.template)
    }

    pub(crate) fn keep_template(&mut self, mut template: Template) {
        template.clear();
        self.template = template;
    }

    pub(crate) const fn properties(&mut self) -> &mut PropertyBuf {
        &mut self.properties
    }
}
