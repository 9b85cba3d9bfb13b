//! The filter of a rule, with what stands for the client in it.

use std::borrow::Cow;
use std::sync::Arc;

use super::Identity;

/// A filter cut into pieces, so that matching is a few prefix comparisons with the parts of the
/// identity put in on the way: nothing is built per client.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) text: Arc<str>,
    pieces: Arc<[Piece]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// Plain text, slashes included.
    Text(Box<str>),
    ClientId,
    Username,
    /// `+`: the rest of this level.
    Level,
    /// `/#` at the end: nothing more, or a slash and anything.
    Below,
    /// `#` alone: anything.
    All,
}

impl Pattern {
    pub(super) fn compile(filter: &str, is_pattern: bool) -> Result<Self, &'static str> {
        check_filter(filter)?;
        if !is_pattern && substitutes(filter) {
            return Err("%c and %u work in `pattern` rules only");
        }
        let mut pieces = Vec::new();
        let (body, end) = match filter.strip_suffix("/#") {
            Some(body) => (body, Some(Piece::Below)),
            None if filter == "#" => ("", Some(Piece::All)),
            None => (filter, None),
        };
        let mut rest = body;
        while let Some(at) = rest.find(['+', '%']) {
            let piece = match rest.get(at..at + 2) {
                _ if rest[at..].starts_with('+') => Piece::Level,
                Some("%c") => Piece::ClientId,
                Some("%u") => Piece::Username,
                // A per cent sign that means itself.
                _ => {
                    push_text(&mut pieces, &rest[..=at]);
                    rest = &rest[at + 1..];
                    continue;
                }
            };
            push_text(&mut pieces, &rest[..at]);
            rest = &rest[at + if piece == Piece::Level { 1 } else { 2 }..];
            pieces.push(piece);
        }
        push_text(&mut pieces, rest);
        pieces.extend(end);
        Ok(Self { text: filter.into(), pieces: pieces.into() })
    }

    pub(super) fn matches(&self, identity: Identity<'_>, topic: &str) -> bool {
        // Wildcards at the front do not see topics that begin with `$` (MQTT-4.7.2-1).
        if topic.starts_with('$') && self.pieces.first().is_none_or(Piece::is_not_text) {
            return false;
        }
        let mut rest = topic;
        for piece in &*self.pieces {
            let next = match piece {
                Piece::Text(text) => rest.strip_prefix(&**text),
                Piece::ClientId => {
                    substitute(identity.client_id).and_then(|id| rest.strip_prefix(id))
                }
                Piece::Username => {
                    identity.username.and_then(substitute).and_then(|name| rest.strip_prefix(name))
                }
                Piece::Level => Some(&rest[rest.find('/').unwrap_or(rest.len())..]),
                Piece::Below => return rest.is_empty() || rest.starts_with('/'),
                Piece::All => return true,
            };
            let Some(next) = next else { return false };
            rest = next;
        }
        rest.is_empty()
    }

    /// The filter with the identity put in; `None` when the rule does not apply to it.
    pub(super) fn text_for(&self, identity: Identity<'_>) -> Option<Cow<'_, str>> {
        let needs = |wanted: &Piece| self.pieces.contains(wanted);
        if !needs(&Piece::ClientId) && !needs(&Piece::Username) {
            return Some(Cow::Borrowed(&self.text));
        }
        let mut own = String::with_capacity(self.text.len() + identity.client_id.len());
        for piece in &*self.pieces {
            match piece {
                Piece::Text(text) => own.push_str(text),
                Piece::ClientId => own.push_str(substitute(identity.client_id)?),
                Piece::Username => own.push_str(identity.username.and_then(substitute)?),
                Piece::Level => own.push('+'),
                Piece::Below => own.push_str("/#"),
                Piece::All => own.push('#'),
            }
        }
        // A name that begins with `$` at the front of a pattern would reach the broker's topics.
        (!own.starts_with('$') || self.text.starts_with('$')).then_some(Cow::Owned(own))
    }
}

impl Piece {
    fn is_not_text(&self) -> bool {
        !matches!(self, Self::Text(_))
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.into()));
    }
}

fn substitutes(filter: &str) -> bool {
    filter.contains("%c") || filter.contains("%u")
}

/// The name as a pattern may use it: as a part of one level. One with a slash or a wildcard in it
/// would reach other levels than the pattern was written for.
pub(super) fn substitute(name: &str) -> Option<&str> {
    (!name.is_empty() && !name.contains(['/', '+', '#'])).then_some(name)
}

/// Wildcards stand alone in their level, `#` only at the end (MQTT-4.7.1-1, MQTT-4.7.1-2).
fn check_filter(filter: &str) -> Result<(), &'static str> {
    if filter.is_empty() {
        return Err("the topic filter is empty");
    }
    codec::check_name(filter).map_err(|error| error.detail)?;
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err("`#` must be the last level, and alone in it");
        }
        if level.contains('+') && level != "+" {
            return Err("`+` must be alone in its level");
        }
    }
    Ok(())
}
