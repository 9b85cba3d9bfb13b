//! XML as a tree that remembers where everything stood.

use std::cell::Cell;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::scenario::ScenarioError;

#[derive(Debug)]
pub(super) struct Element {
    pub name: String,
    /// Namespace declarations and `xsi:` hints are left out.
    pub attributes: Vec<Attribute>,
    pub children: Vec<Self>,
    /// Trimmed.
    pub text: String,
    /// Of the opening tag.
    pub span: Range<usize>,
    /// Whether anybody asked for it by its name, and for its text.
    pub taken: Cell<bool>,
    pub read: Cell<bool>,
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub name: String,
    pub value: String,
    /// Whether anybody asked for it: what nobody did is unknown.
    pub taken: Cell<bool>,
}

impl Element {
    /// The attribute's value, marked as known.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|attribute| attribute.name == name)?;
        found.taken.set(true);
        Some(&found.value)
    }

    /// The child of this name, marked as known.
    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        let found = self.children.iter().find(|child| child.name == name)?;
        found.taken.set(true);
        Some(found)
    }

    /// Its children, each marked as known.
    pub(super) fn each_child(&self) -> impl Iterator<Item = &Self> {
        self.children.iter().inspect(|child| child.taken.set(true))
    }

    /// The value of an attribute, or the text of a child of that name: Swarm writes some both ways.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.attribute(name).or_else(|| {
            let child = self.child(name)?;
            child.read.set(true);
            Some(child.text.as_str())
        })
    }
}

pub(super) fn parse(file: &str, text: &str) -> Result<Element, ScenarioError> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    let wrong =
        |message: String, span: Range<usize>| ScenarioError::new(file, message).at(text, span);
    loop {
        let from = reader.buffer_position() as usize;
        let event = reader.read_event().map_err(|error| {
            let at = reader.error_position() as usize;
            wrong(format!("must be well-formed XML: {error}"), at..at + 1)
        })?;
        let span = from..reader.buffer_position() as usize;
        let closed = match event {
            Event::Start(start) => {
                if open.len() >= DEPTH_MAX {
                    return Err(wrong(
                        format!("elements are nested deeper than {DEPTH_MAX}"),
                        span,
                    ));
                }
                open.push(element(&start, &span).map_err(|message| wrong(message, span))?);
                None
            }
            Event::Empty(start) => {
                Some(element(&start, &span).map_err(|message| wrong(message, span))?)
            }
            Event::End(_) => open.pop(),
            Event::Text(text) => {
                append(&mut open, &text);
                None
            }
            Event::CData(text) => {
                append(&mut open, &text);
                None
            }
            Event::GeneralRef(reference) => {
                let name = reference.to_string();
                let escaped = format!("&{name};");
                let plain = quick_xml::escape::unescape(&escaped)
                    .map_err(|error| wrong(format!("`{escaped}`: {error}"), span))?;
                append(&mut open, &plain);
                None
            }
            Event::Eof => {
                let end = text.len();
                return Err(match open.last() {
                    Some(last) => {
                        wrong(format!("<{}> is not closed", last.name), last.span.clone())
                    }
                    None => wrong("the element <scenario> is missing".to_owned(), end..end),
                });
            }
            Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::Comment(_) => None,
        };
        let Some(mut closed) = closed else { continue };
        closed.text = closed.text.trim().to_owned();
        match open.last_mut() {
            Some(parent) => parent.children.push(closed),
            None => return Ok(closed),
        }
    }
}

fn append(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn element(start: &BytesStart<'_>, span: &Range<usize>) -> Result<Element, String> {
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| format!("invalid attribute: {error}"))?;
        let key = attribute.key.as_ref().to_owned();
        if key == "xmlns" || key.starts_with("xmlns:") || key.starts_with("xsi:") {
            continue;
        }
        let value = quick_xml::escape::unescape(&attribute.value)
            .map_err(|error| format!("`{key}`: {error}"))?;
        attributes.push(Attribute {
            name: key,
            value: value.into_owned(),
            taken: Cell::new(false),
        });
    }
    let name = start.local_name().as_ref().to_owned();
    Ok(Element {
        name,
        attributes,
        children: Vec::new(),
        text: String::new(),
        span: span.clone(),
        taken: Cell::new(false),
        read: Cell::new(false),
    })
}

/// `for` may nest, but nobody nests like this by hand.
const DEPTH_MAX: usize = 64;

/// User name and password: the provider's extra attributes, or the older
/// `credentials="name:password"`. The error names what is there besides.
pub(super) fn credentials(
    element: &Element,
) -> Result<(Option<String>, Option<String>), &'static str> {
    let first =
        |names: &[&str]| names.iter().find_map(|name| element.attribute(name)).map(str::to_owned);
    let user = first(&["username", "userName", "user"]);
    let password = first(&["password"]);
    match element.attribute("credentials").map(|both| both.split_once(':').unwrap_or((both, ""))) {
        Some(_) if user.is_some() || password.is_some() => Err("credentials"),
        Some((name, secret)) => Ok((Some(name.to_owned()), Some(secret.to_owned()))),
        None => Ok((user, password)),
    }
}

pub(super) fn message_pattern(element: &Element) -> Option<String> {
    element.attribute("messagePattern").filter(|pattern| *pattern != ".*").map(str::to_owned)
}

/// Whether anything below waits for messages by their text.
pub(super) fn looks_at_texts(element: &Element) -> bool {
    message_pattern(element).is_some() || element.children.iter().any(looks_at_texts)
}

pub(super) fn has(element: &Element, name: &str) -> bool {
    element.name == name || element.children.iter().any(|child| has(child, name))
}
