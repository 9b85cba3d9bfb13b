//! Who has published a message, for those who keep it longer than the client's session.

use std::sync::Arc;

use policy::Attributes;
use session::Account;

/// A publisher, as a record of streams names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publisher<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) username: Option<&'a str>,
    pub(crate) attributes: Option<&'a Attributes>,
}

/// A publisher whose session may end before its message is written, and who is charged for it.
#[derive(Debug)]
pub(crate) struct KnownPublisher {
    pub(crate) client_id: Box<str>,
    pub(crate) username: Option<Box<str>>,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) owner: Option<Arc<Account>>,
}

impl KnownPublisher {
    pub(crate) fn as_publisher(&self) -> Publisher<'_> {
        Publisher {
            client_id: &self.client_id,
            username: self.username.as_deref(),
            attributes: self.attributes.as_ref(),
        }
    }

    pub(crate) const fn owner(&self) -> Option<&Arc<Account>> {
        self.owner.as_ref()
    }
}
