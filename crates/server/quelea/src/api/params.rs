//! Parameters of routes: what they are called, where they stand, and what they may be.

#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) location: ParamLocation,
    pub(crate) kind: ParamKind,
    pub(crate) is_required: bool,
    pub(crate) about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamLocation {
    Path,
    Query,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamKind {
    Text { bytes_min: usize, bytes_max: usize },
    Number { min: u64, max: u64 },
    Flag,
}

impl ParamLocation {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
        }
    }
}

/// The longest text of MQTT.
const TEXT_BYTES_MAX: usize = 65_535;

/// The most rows of one answer.
pub(crate) const LIMIT_MAX: u64 = 1_000;

pub(super) const fn text(name: &'static str, about: &'static str) -> Param {
    let kind = ParamKind::Text { bytes_min: 0, bytes_max: TEXT_BYTES_MAX };
    Param { name, location: ParamLocation::Query, kind, is_required: false, about }
}

/// One that is not empty if it is there.
pub(super) const fn some_text(name: &'static str, about: &'static str) -> Param {
    Param { kind: ParamKind::Text { bytes_min: 1, bytes_max: TEXT_BYTES_MAX }, ..text(name, about) }
}

pub(super) const SETTING: Param =
    Param { location: ParamLocation::Path, ..needed("key", "Section and key, such as log.level.") };

pub(super) const fn needed(name: &'static str, about: &'static str) -> Param {
    Param { is_required: true, ..some_text(name, about) }
}

pub(super) const fn number(name: &'static str, about: &'static str) -> Param {
    Param { kind: ParamKind::Number { min: 0, max: u32::MAX as u64 }, ..text(name, about) }
}

pub(super) const fn flag(name: &'static str, about: &'static str) -> Param {
    Param { kind: ParamKind::Flag, ..text(name, about) }
}

pub(super) const CLIENT_ID: Param =
    Param { is_required: true, ..text("client_id", "The client ID.") };
pub(super) const NAMESPACE: Param =
    Param { is_required: true, ..text("name", "The name of a namespace.") };
pub(super) const USERNAME: Param = Param { is_required: true, ..text("username", "The username.") };
pub(super) const NAMED_CLIENT: Param =
    Param { is_required: true, ..text("name", "The authenticationName.") };
pub(super) const REGISTRY: Param =
    some_text("registry", "The name of the provider. Default: the only registry.");
pub(super) const LIMIT: Param = Param {
    kind: ParamKind::Number { min: 1, max: LIMIT_MAX },
    ..text("limit", "The most rows of the answer, 1 to 1000. Default: 100.")
};
pub(super) const CURSOR: Param = some_text("cursor", "The cursor of the previous page.");
pub(super) const TOPIC: Param = needed("topic", "A topic without wildcards.");

pub(super) const WITHIN: Param = some_text("namespace", "The namespace. Default: `default`.");
pub(super) const WITHIN_ANY: Param = some_text("namespace", "The namespace. Default: all of them.");

pub(super) const LISTENER: Param = needed("name", "The name or URL of the listener.");
pub(super) const BAN_SECS: Param = Param {
    kind: ParamKind::Number { min: 1, max: u32::MAX as u64 },
    ..text("ban_secs", "Ban the client ID for this many seconds, connected or not.")
};
