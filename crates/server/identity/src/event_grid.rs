//! Resources of an Azure Event Grid namespace, in the JSON of its CLI, REST API and templates.
//!
//! A text is one resource, a list of them, the answer of a list call (`{"value": [...]}`) or a
//! template (`{"resources": [...]}`). Resources may be inside their namespace. What describes a
//! resource is below `properties`, or beside its name, as the CLI prints it.
//!
//! Whoever wrote it relies on all of it: what is not understood refuses the whole text.

use std::collections::HashSet;
use std::fmt::Write as _;

use policy::{Attribute, Attributes, Number};
use serde_json::{Map, Value};

use net::{DistinguishedName, is_distinguished_name};

use crate::auth::is_name;
use crate::auth::policy_file::ALL;
use crate::json;

/// Resources of one text at most.
pub const RESOURCES_MAX: usize = 1_000_000;

/// How deep resources may be inside each other.
const DEPTH_MAX: usize = 4;

/// Characters of an authentication name, attributes of a client, and bytes of them.
const NAME_CHARS_MAX: usize = 128;
const ATTRIBUTES_MAX: usize = 64;
const ATTRIBUTES_BYTES_MAX: usize = 4 * 1024;

/// Thumbprints of one client.
const THUMBPRINTS_MAX: usize = 2;

/// What a text has.
#[derive(Debug, Default)]
pub struct Resources {
    pub clients: Vec<Client>,
    pub groups: Vec<Group>,
    pub spaces: Vec<Space>,
    pub bindings: Vec<Binding>,
    /// What else there is, by kind and name: nothing is made of it.
    pub others: Vec<String>,
}

/// A client that may log in.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// In the case in which it was registered.
    pub authentication_name: String,
    pub is_enabled: bool,
    /// None: the password file has its password. That is ours; Event Grid always has one.
    pub scheme: Option<Scheme>,
    pub attributes: Attributes,
}

/// How a certificate has to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    Subject,
    Dns,
    Uri,
    Ip,
    Email,
    /// SHA-256 of the certificate, in lower-case hex.
    Thumbprints(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub query: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub name: String,
    pub templates: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub name: String,
    pub group: String,
    pub space: String,
    /// May it publish? Else it may subscribe.
    pub publishes: bool,
}

/// Reads a text.
///
/// # Errors
///
/// The first thing that is not understood, and in which resource.
pub fn read(text: &str) -> Result<Resources, String> {
    let value: Value = json::read(text.as_bytes()).map_err(|error| format!("JSON: {error}"))?;
    let mut reading = Reading::default();
    reading.any(&value, 0)?;
    Ok(reading.found)
}

impl Resources {
    /// Groups, spaces and bindings as a policy file.
    pub fn policy(&self) -> String {
        let mut text = String::new();
        for Group { name, query } in &self.groups {
            let _ =
                writeln!(text, "[[groups]]\nname = {}\nquery = {}\n", quoted(name), quoted(query));
        }
        for Space { name, templates } in &self.spaces {
            let templates: Vec<_> = templates.iter().map(|text| quoted(text)).collect();
            let templates = templates.join(", ");
            let _ =
                writeln!(text, "[[spaces]]\nname = {}\ntemplates = [{templates}]\n", quoted(name));
        }
        for Binding { name, group, space, publishes } in &self.bindings {
            let permission = if *publishes { "publish" } else { "subscribe" };
            let _ = writeln!(
                text,
                "[[bindings]]\ngroup = {}\nspace = {}\npermission = \"{permission}\"\n\
                description = {}\n",
                quoted(group),
                quoted(space),
                quoted(name)
            );
        }
        text
    }

    /// Clients as a registry file.
    pub fn registry(&self) -> String {
        let clients: Vec<Value> = self.clients.iter().map(Client::to_json).collect();
        let text = serde_json::to_string_pretty(&Value::Array(clients));
        text.unwrap_or_default() + "\n"
    }
}

impl Client {
    /// As the CLI prints it.
    pub fn to_json(&self) -> Value {
        let mut members = Map::new();
        let mut set = |name: &str, value: Value| members.insert(name.to_owned(), value);
        set("authenticationName", self.authentication_name.as_str().into());
        set("state", if self.is_enabled { "Enabled" } else { "Disabled" }.into());
        if let Some(scheme) = &self.scheme {
            let mut own = Map::new();
            own.insert("validationScheme".to_owned(), scheme.word().into());
            if let Scheme::Thumbprints(all) = scheme {
                own.insert("allowedThumbprints".to_owned(), all.clone().into());
            }
            set("clientCertificateAuthentication", Value::Object(own));
        }
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name.to_owned(), json_of(value)));
        set("attributes", Value::Object(attributes.collect()));
        Value::Object(members)
    }
}

impl Scheme {
    /// As Event Grid calls it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Subject => "SubjectMatchesAuthenticationName",
            Self::Dns => "DnsMatchesAuthenticationName",
            Self::Uri => "UriMatchesAuthenticationName",
            Self::Ip => "IpMatchesAuthenticationName",
            Self::Email => "EmailMatchesAuthenticationName",
            Self::Thumbprints(_) => "ThumbprintMatch",
        }
    }
}

/// Two names are the same client if they differ in case only, or in how they write the same
/// distinguished name.
pub fn folded(name: &str) -> String {
    let written = match is_distinguished_name(name) {
        true => DistinguishedName::parse(name).map(|own| own.to_string()).ok(),
        false => None,
    };
    written.as_deref().unwrap_or(name).to_lowercase()
}

/// A text of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn json_of(value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => (&**text).into(),
        Attribute::Number(number) => number.to_string().parse().map_or(Value::Null, Value::Number),
        Attribute::List(items) => items.iter().map(json_of).collect::<Vec<_>>().into(),
    }
}

#[derive(Default)]
struct Reading {
    found: Resources,
    names: HashSet<String>,
    count: usize,
}

impl Reading {
    /// One resource, or what has several.
    fn any(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.any(item, depth)),
            Value::Object(members) => match (members.get("value"), members.get("resources")) {
                (Some(items @ Value::Array(_)), _) => self.any(items, depth),
                (None, Some(items @ Value::Array(_))) if !members.contains_key("name") => {
                    // Of a template only what is deployed is read; expressions are refused there.
                    self.any(items, depth)
                }
                _ => self.resource(members, depth),
            },
            other => Err(format!("a resource must be an object, got {other}")),
        }
    }

    fn resource(&mut self, members: &Map<String, Value>, depth: usize) -> Result<(), String> {
        self.count += 1;
        if self.count > RESOURCES_MAX || depth >= DEPTH_MAX {
            return Err(format!(
                "at most {RESOURCES_MAX} resources, and {DEPTH_MAX} inside each other"
            ));
        }
        let own = match members.get("properties") {
            None => members,
            Some(Value::Object(own)) => own,
            Some(other) => return Err(format!("properties must be an object, got {other}")),
        };
        let name = name_of(members)?;
        let kind = kind_of(members, own, &name)?;
        if !std::ptr::eq(own, members) {
            check_members(members, &FRAME, kind, &name)?;
        }
        let described = |error: String| format!("{kind} '{name}': {error}");
        match kind {
            "clients" => self.client(own, &name).map_err(described)?,
            // Every broker has it, and lists print it.
            "clientGroups" if name == ALL => {}
            "clientGroups" => {
                check_members(own, &["query"], kind, &name)?;
                let query = text_of(own, "query").map_err(described)?;
                self.found.groups.push(Group { query, name });
            }
            "topicSpaces" => {
                check_members(own, &["topicTemplates"], kind, &name)?;
                let templates = texts_of(own, "topicTemplates").map_err(described)?;
                self.found.spaces.push(Space { templates, name });
            }
            "permissionBindings" => {
                self.found.bindings.push(binding(own, name.clone()).map_err(described)?);
            }
            _ => self.found.others.push(format!("{kind} '{name}'")),
        }
        match members.get("resources").or_else(|| own.get("resources")) {
            None | Some(Value::Null) => Ok(()),
            Some(inner @ Value::Array(_)) => self.any(inner, depth + 1),
            Some(other) => Err(format!("resources must be a list, got {other}")),
        }
    }

    fn client(&mut self, own: &Map<String, Value>, name: &str) -> Result<(), String> {
        const MEMBERS: [&str; 4] =
            ["authenticationName", "state", "clientCertificateAuthentication", "attributes"];
        check_members(own, &MEMBERS, "clients", name)?;
        let authentication_name = match own.get("authenticationName") {
            None | Some(Value::Null) if name.is_empty() => {
                return Err("lacks its authenticationName".into());
            }
            None | Some(Value::Null) => name.to_owned(),
            Some(_) => text_of(own, "authenticationName")?,
        };
        let is_long = authentication_name.chars().count() > NAME_CHARS_MAX;
        if is_long || !is_name(&authentication_name) {
            return Err(format!(
                "an authenticationName must have 1 to {NAME_CHARS_MAX} characters and no control \
                characters, got '{authentication_name}'"
            ));
        }
        if !self.names.insert(folded(&authentication_name)) {
            return Err(format!(
                "two clients have the authenticationName '{authentication_name}': its case does \
                not count, nor how a distinguished name is written"
            ));
        }
        let is_enabled = match own.get("state").unwrap_or(&Value::Null) {
            Value::Null => true,
            Value::String(word) if word == "Enabled" => true,
            Value::String(word) if word == "Disabled" => false,
            other => return Err(format!("state must be Enabled or Disabled, got {other}")),
        };
        let scheme = match own.get("clientCertificateAuthentication") {
            None | Some(Value::Null) => None,
            Some(Value::Object(own)) => Some(scheme_of(own, name)?),
            Some(other) => {
                return Err(format!(
                    "clientCertificateAuthentication must be an object, got {other}"
                ));
            }
        };
        if scheme == Some(Scheme::Subject) && is_distinguished_name(&authentication_name) {
            let parsed = DistinguishedName::parse(&authentication_name);
            parsed.map_err(|why| format!("authenticationName '{authentication_name}': {why}"))?;
        }
        let attributes = attributes_of(own.get("attributes"))?;
        let client = Client { authentication_name, is_enabled, scheme, attributes };
        self.found.clients.push(client);
        Ok(())
    }
}

/// Members around `properties`.
const FRAME: [&str; 2] = ["properties", "sku"];

/// Members of any resource that say nothing of its rights.
const COMMON: [&str; 15] = [
    "id",
    "name",
    "type",
    "apiVersion",
    "description",
    "provisioningState",
    "resourceGroup",
    "systemData",
    "dependsOn",
    "location",
    "tags",
    "etag",
    "comments",
    "resources",
    "metadata",
];

fn check_members(
    own: &Map<String, Value>,
    known: &[&str],
    kind: &str,
    name: &str,
) -> Result<(), String> {
    let is_known = |member: &&String| known.contains(&&***member) || COMMON.contains(&&***member);
    match own.keys().find(|member| !is_known(member)) {
        Some(other) => {
            let valid = known.join(", ");
            Err(format!("{kind} '{name}': unknown member '{other}'; valid: {valid}"))
        }
        None => Ok(()),
    }
}

/// The last part of a name such as `namespace/client`. Empty: there is none.
fn name_of(members: &Map<String, Value>) -> Result<String, String> {
    match members.get("name") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(name)) if name.starts_with('[') => Err(format!(
            "the name {name} is an expression of a template; export the resources as they are \
            deployed, with `az eventgrid namespace ... list`"
        )),
        Some(Value::String(name)) => Ok(name.rsplit('/').next().unwrap_or(name).to_owned()),
        Some(other) => Err(format!("a name must be a text, got {other}")),
    }
}

/// By its type, or by what only this kind has.
fn kind_of(
    members: &Map<String, Value>,
    own: &Map<String, Value>,
    name: &str,
) -> Result<&'static str, String> {
    if let Some(kind) = members.get("type").and_then(Value::as_str) {
        let last = kind.rsplit('/').next().unwrap_or(kind);
        // A resource inside another may leave out what it is inside of.
        let is_own = match kind.split_once('/') {
            Some((maker, _)) => maker.eq_ignore_ascii_case("Microsoft.EventGrid"),
            None => true,
        };
        let known = KINDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(last));
        return known.filter(|_| is_own).map(|(known, _)| *known).ok_or_else(|| {
            format!("'{name}' has the type {kind}, which is not one of an Event Grid namespace")
        });
    }
    let has = |(_, member): &&(&str, &str)| !member.is_empty() && own.contains_key(*member);
    let mut kinds = KINDS.iter().filter(has).map(|(kind, _)| *kind);
    let kind = kinds.next().ok_or_else(|| {
        format!("'{name}' has no type, and none of authenticationName, query, topicTemplates")
    })?;
    match kinds.find(|other| *other != kind) {
        Some(other) => Err(format!("'{name}' could be one of {kind} or of {other}: add its type")),
        None => Ok(kind),
    }
}

/// Kinds of resources, with members that only they have.
const KINDS: [(&str, &str); 11] = [
    ("clients", "authenticationName"),
    ("clients", "attributes"),
    ("clients", "clientCertificateAuthentication"),
    ("clientGroups", "query"),
    ("topicSpaces", "topicTemplates"),
    ("permissionBindings", "topicSpaceName"),
    ("caCertificates", "encodedCertificate"),
    ("namespaces", "topicSpacesConfiguration"),
    ("topics", "inputSchema"),
    ("eventSubscriptions", "deliveryConfiguration"),
    ("privateEndpointConnections", ""),
];

fn binding(own: &Map<String, Value>, name: String) -> Result<Binding, String> {
    const MEMBERS: [&str; 3] = ["clientGroupName", "topicSpaceName", "permission"];
    check_members(own, &MEMBERS, "permissionBindings", &name)?;
    let publishes = match text_of(own, "permission")?.as_str() {
        "Publisher" => true,
        "Subscriber" => false,
        other => return Err(format!("permission must be Publisher or Subscriber, got '{other}'")),
    };
    let (group, space) = (text_of(own, "clientGroupName")?, text_of(own, "topicSpaceName")?);
    Ok(Binding { name, group, space, publishes })
}

fn scheme_of(own: &Map<String, Value>, name: &str) -> Result<Scheme, String> {
    check_members(own, &["validationScheme", "allowedThumbprints"], "clients", name)?;
    let thumbprints = match own.get("allowedThumbprints") {
        None | Some(Value::Null) => Vec::new(),
        Some(_) => texts_of(own, "allowedThumbprints")?,
    };
    let word = match own.get("validationScheme") {
        None | Some(Value::Null) => "SubjectMatchesAuthenticationName".to_owned(),
        Some(_) => text_of(own, "validationScheme")?,
    };
    let scheme = match word.as_str() {
        "SubjectMatchesAuthenticationName" => Scheme::Subject,
        "DnsMatchesAuthenticationName" => Scheme::Dns,
        "UriMatchesAuthenticationName" => Scheme::Uri,
        "IpMatchesAuthenticationName" => Scheme::Ip,
        "EmailMatchesAuthenticationName" => Scheme::Email,
        "ThumbprintMatch" => {
            let count = thumbprints.len();
            if count == 0 || count > THUMBPRINTS_MAX {
                return Err(format!(
                    "ThumbprintMatch needs 1 to {THUMBPRINTS_MAX} allowedThumbprints, got {count}"
                ));
            }
            let all = thumbprints.iter().map(|text| thumbprint_of(text));
            return all.collect::<Result<_, _>>().map(Scheme::Thumbprints);
        }
        other => return Err(format!("unknown validationScheme '{other}'")),
    };
    match thumbprints.is_empty() {
        true => Ok(scheme),
        false => Err(format!("allowedThumbprints need ThumbprintMatch, got {word}")),
    }
}

/// SHA-256 in hex, in any case, with or without colons.
fn thumbprint_of(text: &str) -> Result<String, String> {
    let digits: String = text.chars().filter(|sign| *sign != ':').collect();
    match digits.len() {
        64 if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            Ok(digits.to_ascii_lowercase())
        }
        40 => Err(format!("'{text}' is a SHA-1 thumbprint; write that of SHA-256 (64 digits)")),
        _ => Err(format!("a thumbprint must have 64 hexadecimal digits, got '{text}'")),
    }
}

fn attributes_of(value: Option<&Value>) -> Result<Attributes, String> {
    let own = match value {
        None | Some(Value::Null) => return Ok(Attributes::default()),
        Some(Value::Object(own)) => own,
        Some(other) => return Err(format!("attributes must be an object, got {other}")),
    };
    let mut all = Vec::new();
    for (name, value) in own {
        let is_key = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_key) {
            return Err(format!(
                "the name of an attribute must have letters, digits and '_' only, got '{name}'"
            ));
        }
        let value = attribute_of(value).ok_or_else(|| {
            format!("attribute '{name}' must be a text, an integer or a list of texts, got {value}")
        })?;
        all.push((name.as_str().into(), value));
    }
    let bytes: usize = own.iter().map(|(name, value)| name.len() + value.to_string().len()).sum();
    if all.len() > ATTRIBUTES_MAX || bytes > ATTRIBUTES_BYTES_MAX {
        return Err(format!(
            "at most {ATTRIBUTES_MAX} attributes with {ATTRIBUTES_BYTES_MAX} bytes in all"
        ));
    }
    Ok(Attributes::new(all))
}

fn attribute_of(value: &Value) -> Option<Attribute> {
    Some(match value {
        Value::String(text) => Attribute::Text(text.as_str().into()),
        Value::Bool(flag) => Attribute::Text(flag.to_string().into()),
        Value::Number(number) if number.is_i64() => {
            Attribute::Number(Number::parse(number.as_str())?)
        }
        Value::Array(items) => {
            let texts = items.iter().map(|item| Some(Attribute::Text(item.as_str()?.into())));
            Attribute::List(texts.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn text_of(own: &Map<String, Value>, member: &str) -> Result<String, String> {
    match own.get(member) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(other) => Err(format!("{member} must be a text, got {other}")),
        None => Err(format!("lacks its {member}")),
    }
}

fn texts_of(own: &Map<String, Value>, member: &str) -> Result<Vec<String>, String> {
    let list = own.get(member).and_then(Value::as_array);
    let texts = list.map(|items| items.iter().map(|it| it.as_str().map(str::to_owned)).collect());
    texts.flatten().ok_or_else(|| format!("{member} must be a list of texts"))
}

#[cfg(test)]
mod tests;
