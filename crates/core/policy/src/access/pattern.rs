//! The filter of a rule, with what stands for the client in it.
//!
//! Nothing is built per client: client id, user name and attributes are put in on the way. Of a
//! list each value is meant, and it is looked up: two lists in one filter are never multiplied.

use std::sync::Arc;

use super::{Decider, DecidingRule, Identity, Origin};

/// A filter cut into pieces, so that matching is a few prefix comparisons.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) text: Arc<str>,
    /// For topics, and for filters of which every topic has to match.
    pieces: Arc<[Piece]>,
    /// For filters of which some topic has to.
    levels: Arc<[Level]>,
    /// Of a rule that denies: an attribute that nobody knows may have any value. Else it has none.
    denies: bool,
    /// Where its rule stands, for explanations.
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Piece {
    /// Plain text, slashes included.
    Text(Box<str>),
    ClientId,
    Username,
    /// A whole level with attributes in it.
    Parts(Arc<[Part]>),
    /// `+`: the rest of this level.
    Level,
    /// `/#` at the end: nothing more, or a slash and anything.
    Below,
    /// `#` alone: anything.
    All,
}

#[derive(Clone, Debug)]
enum Level {
    Parts(Arc<[Part]>),
    /// `+`
    Any,
    /// `#`
    Rest,
}

#[derive(Clone, Debug)]
enum Part {
    Text(Box<str>),
    ClientId,
    Username,
    Attribute(Box<str>),
}

/// With more in one level there are many ways to cut it.
const ATTRIBUTES_PER_RULE_MAX: usize = 2;

const ATTRIBUTE: &str = "%{attributes.";

/// What a level with an attribute takes beside the rest of its filter, and one with two.
const ATTRIBUTE_STEPS: u32 = 2;
const ATTRIBUTES_STEPS: u32 = 40;

impl Pattern {
    pub(super) fn compile(
        filter: &str,
        is_pattern: bool,
        denies: bool,
    ) -> Result<Self, &'static str> {
        if !is_pattern && filter.contains(ATTRIBUTE) {
            return Err("%{attributes.NAME} works in `pattern` rules only");
        }
        let level = if is_pattern { Level::of } else { Level::literal };
        let levels = filter.split('/').map(level).collect::<Result<Vec<_>, _>>()?;
        check_filter(&example_of(&levels))?;
        if parts_of(&levels).filter(|part| part.is_attribute()).count() > ATTRIBUTES_PER_RULE_MAX {
            return Err("a rule can have two attributes at most");
        }
        let pieces = pieces_of(&levels).into();
        let origin = Origin::default();
        Ok(Self { text: filter.into(), pieces, levels: levels.into(), denies, origin })
    }

    pub(super) fn from(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// Its rule as what decides something.
    pub(super) fn decider(&self, allows: bool) -> Decider {
        let (filter, origin) = (self.text.as_ref().into(), self.origin.clone());
        Decider::Rule(DecidingRule { allows, filter, origin })
    }

    /// Does it depend on what only a credential says?
    pub(super) fn asks_attributes(&self) -> bool {
        parts_of(&self.levels).any(Part::is_attribute)
    }

    /// What it takes to ask it, in steps of some 20 ns.
    pub(super) fn steps(&self) -> u32 {
        let of_level = |level: &Level| {
            let attributes = level.parts().iter().filter(|part| part.is_attribute());
            match attributes.count() {
                0 => 0,
                1 => ATTRIBUTE_STEPS,
                _ => ATTRIBUTES_STEPS,
            }
        };
        1 + self.levels.iter().map(of_level).sum::<u32>()
    }

    /// Bytes that it takes, with its texts.
    pub(super) fn bytes(&self) -> usize {
        let parts: usize = parts_of(&self.levels).map(Part::bytes).sum();
        let levels = size_of_val(&*self.levels) + size_of_val(&*self.pieces);
        // Pieces have the same texts, or share them.
        size_of::<Self>() + self.text.len() + levels + 2 * parts
    }

    /// Does it match the topic, or each topic of the filter? Wildcards of that are then levels that
    /// only wildcards match.
    pub(super) fn matches(&self, who: Identity<'_>, topic: &str) -> bool {
        // What is put in at the front, and wildcards, do not see topics that begin with `$`
        // (MQTT-4.7.2-1).
        if topic.starts_with('$') && !self.text.starts_with('$') {
            return false;
        }
        let mut rest = topic;
        for piece in &*self.pieces {
            let next = match piece {
                Piece::Text(text) => rest.strip_prefix(&**text),
                Piece::ClientId => substitute(who.client_id).and_then(|id| rest.strip_prefix(id)),
                Piece::Username => {
                    who.username.and_then(substitute).and_then(|name| rest.strip_prefix(name))
                }
                Piece::Level if rest.starts_with('#') => None,
                Piece::Level => Some(&rest[level_len(rest)..]),
                Piece::Parts(parts) => {
                    let (level, behind) = rest.split_at(level_len(rest));
                    self.fits(parts, who, level).then_some(behind)
                }
                Piece::Below => return rest.is_empty() || rest.starts_with('/'),
                Piece::All => return true,
            };
            let Some(next) = next else { return false };
            rest = next;
        }
        rest.is_empty()
    }

    /// Does it match some topic of the filter?
    pub(super) fn overlaps(&self, who: Identity<'_>, filter: &str) -> bool {
        let is_wild = filter.starts_with(['+', '#']);
        let is_kept_apart = match self.text.starts_with('$') {
            true => is_wild,
            false => filter.starts_with('$'),
        };
        if is_kept_apart || !self.applies_to(who) {
            return false;
        }
        let (mut own, mut asked) = (self.levels.iter(), filter.split('/'));
        loop {
            match (own.next(), asked.next()) {
                (Some(Level::Rest), _) | (_, Some("#")) | (None, None) => return true,
                (None, _) | (_, None) => return false,
                (Some(Level::Any), _) | (_, Some("+")) => {}
                (Some(Level::Parts(parts)), Some(asked)) if self.fits(parts, who, asked) => {}
                (Some(Level::Parts(_)), Some(_)) => return false,
            }
        }
    }

    /// Has the client all that is put in, so that it matches anything at all?
    fn applies_to(&self, who: Identity<'_>) -> bool {
        let mut levels = self.levels.iter().enumerate();
        levels.all(|(number, level)| {
            let Level::Parts(parts) = level else { return true };
            if self.is_in_doubt(parts, who) {
                return self.denies;
            }
            let mut parts = parts.iter().enumerate();
            parts.all(|(place, part)| part.is_there(who, number == 0 && place == 0))
        })
    }

    fn is_in_doubt(&self, parts: &[Part], who: Identity<'_>) -> bool {
        who.is_unknown() && parts.iter().any(Part::is_attribute)
    }

    /// Is it a text of this level, which has no wildcards?
    fn fits(&self, parts: &[Part], who: Identity<'_>, level: &str) -> bool {
        match self.is_in_doubt(parts, who) {
            true => self.denies && level != "#",
            false => fits(parts, who, level),
        }
    }
}

/// A value is looked up where it has to be all that is left; where another one follows, those that
/// the level begins with are tried.
fn fits(mut parts: &[Part], who: Identity<'_>, mut level: &str) -> bool {
    while let [first, rest @ ..] = parts
        && !first.is_attribute()
    {
        let Some(left) = first.own(who).and_then(|own| level.strip_prefix(own)) else {
            return false;
        };
        (parts, level) = (rest, left);
    }
    while let [rest @ .., last] = parts
        && !last.is_attribute()
    {
        let Some(left) = last.own(who).and_then(|own| level.strip_suffix(own)) else {
            return false;
        };
        (parts, level) = (rest, left);
    }
    match parts {
        [Part::Attribute(name)] => who.values(name).have(level),
        [Part::Attribute(name), rest @ ..] => {
            who.values(name).begin(level, |behind| fits(rest, who, behind))
        }
        _ => level.is_empty(),
    }
}

impl Level {
    /// Of a filter that has `%c` and `%u` as its own text, as mosquitto takes those of `topic`.
    fn literal(text: &str) -> Result<Self, &'static str> {
        Ok(match text {
            "+" => Self::Any,
            "#" => Self::Rest,
            "" => Self::Parts([].into()),
            _ => Self::Parts([Part::Text(text.into())].into()),
        })
    }

    fn of(text: &str) -> Result<Self, &'static str> {
        match text {
            "+" => return Ok(Self::Any),
            "#" => return Ok(Self::Rest),
            _ => {}
        }
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            plain.push_str(&rest[..at]);
            let (part, behind) = Part::at_front(&rest[at..])?;
            match part {
                Some(part) => {
                    push_text(&mut parts, &mut plain);
                    parts.push(part);
                }
                // A per cent sign that means itself.
                None => plain.push('%'),
            }
            rest = behind;
        }
        plain.push_str(rest);
        push_text(&mut parts, &mut plain);
        Ok(Self::Parts(parts.into()))
    }

    fn parts(&self) -> &[Part] {
        match self {
            Self::Parts(parts) => parts,
            Self::Any | Self::Rest => &[],
        }
    }
}

fn push_text(parts: &mut Vec<Part>, plain: &mut String) {
    if !plain.is_empty() {
        parts.push(Part::Text(std::mem::take(plain).into()));
    }
}

impl Part {
    /// The placeholder that a text with a per cent sign begins with, and what is behind it.
    fn at_front(text: &str) -> Result<(Option<Self>, &str), &'static str> {
        if let Some(behind) = text.strip_prefix("%c") {
            return Ok((Some(Self::ClientId), behind));
        }
        if let Some(behind) = text.strip_prefix("%u") {
            return Ok((Some(Self::Username), behind));
        }
        let Some(behind) = text.strip_prefix(ATTRIBUTE) else {
            return Ok((None, &text[1..]));
        };
        match behind.split_once('}') {
            None => Err("`%{attributes.NAME}` lacks its `}`"),
            Some(("", _)) => Err("`%{attributes.NAME}` needs the name of an attribute"),
            Some((name, behind)) => Ok((Some(Self::Attribute(name.into())), behind)),
        }
    }

    const fn is_attribute(&self) -> bool {
        matches!(self, Self::Attribute(_))
    }

    /// What it is for a client, unless that may be many things.
    fn own<'a>(&'a self, who: Identity<'a>) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::ClientId => substitute(who.client_id),
            Self::Username => who.username.and_then(substitute),
            Self::Attribute(_) => None,
        }
    }

    /// Is there something to put in? At the front nothing that begins with `$`: it would reach the
    /// broker's topics.
    fn is_there(&self, who: Identity<'_>, is_first: bool) -> bool {
        let is_usable = |text: &str| !is_first || !text.starts_with('$');
        match self {
            Self::Text(_) => true,
            Self::ClientId | Self::Username => self.own(who).is_some_and(is_usable),
            // In their order those that begin alike are together.
            Self::Attribute(name) => who.values(name).ends_are(is_usable),
        }
    }

    fn bytes(&self) -> usize {
        let text = match self {
            Self::Text(text) | Self::Attribute(text) => text.len(),
            Self::ClientId | Self::Username => 0,
        };
        size_of::<Self>() + text
    }
}

fn parts_of(levels: &[Level]) -> impl Iterator<Item = &Part> {
    levels.iter().flat_map(Level::parts)
}

fn pieces_of(levels: &[Level]) -> Vec<Piece> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    for (number, level) in levels.iter().enumerate() {
        let whole = match level {
            Level::Rest if number == 0 => Some(Piece::All),
            Level::Rest => Some(Piece::Below),
            Level::Any => Some(Piece::Level),
            Level::Parts(parts) => {
                parts.iter().any(Part::is_attribute).then(|| Piece::Parts(parts.clone()))
            }
        };
        if number > 0 && !matches!(level, Level::Rest) {
            plain.push('/');
        }
        let Some(whole) = whole else {
            level.parts().iter().for_each(|part| push_part(&mut pieces, &mut plain, part));
            continue;
        };
        push_piece(&mut pieces, &mut plain, whole);
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain.into()));
    }
    pieces
}

fn push_part(pieces: &mut Vec<Piece>, plain: &mut String, part: &Part) {
    match part {
        Part::Text(text) => plain.push_str(text),
        Part::ClientId => push_piece(pieces, plain, Piece::ClientId),
        Part::Username => push_piece(pieces, plain, Piece::Username),
        // It makes a piece of the whole level.
        Part::Attribute(_) => {}
    }
}

fn push_piece(pieces: &mut Vec<Piece>, plain: &mut String, piece: Piece) {
    if !plain.is_empty() {
        pieces.push(Piece::Text(std::mem::take(plain).into()));
    }
    pieces.push(piece);
}

fn level_len(rest: &str) -> usize {
    rest.find('/').unwrap_or(rest.len())
}

/// The name as a pattern may use it: as a part of one level. One with a slash or a wildcard in it
/// would reach other levels than the pattern was written for.
pub(crate) fn substitute(name: &str) -> Option<&str> {
    (!name.is_empty() && !name.contains(['/', '+', '#'])).then_some(name)
}

/// The filter with some values put in.
fn example_of(levels: &[Level]) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => text.to_string(),
        Part::ClientId | Part::Username | Part::Attribute(_) => "x".into(),
    };
    let level = |level: &Level| match level {
        Level::Any => "+".to_owned(),
        Level::Rest => "#".to_owned(),
        Level::Parts(parts) => parts.iter().map(part).collect(),
    };
    levels.iter().map(level).collect::<Vec<_>>().join("/")
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
