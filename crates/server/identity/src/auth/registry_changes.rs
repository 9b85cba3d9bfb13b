//! Changes of a registry file: whole or not at all. The form of the file, and what it says of other
//! clients, stay.

use std::path::Path;

use serde_json::{Map, Value};

use super::file_changes::{ReplaceError, Seen, read as read_file, replace};
use crate::event_grid::{Client, Resources, folded, read};
use crate::json;

/// A change that was not made. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// What is put is not a client.
    #[error("{0}")]
    Client(String),
    /// The file cannot be understood.
    #[error("{path}: {detail}")]
    File { path: String, detail: String },
    #[error("cannot change {path}: {source}")]
    Replace { path: String, source: ReplaceError },
    #[error("not found: client '{0}' in the registry")]
    Unknown(String),
}

/// The clients of a file by their folded names.
///
/// # Errors
///
/// The file cannot be read or understood.
pub fn clients(path: &Path) -> Result<Vec<Client>, RegistryError> {
    let (text, _) = load(path)?;
    let mut clients = understood(path, &text)?.clients;
    clients.sort_by_cached_key(|client| folded(&client.authentication_name));
    Ok(clients)
}

/// Adds a client, or replaces what is registered of it: `stated` is one resource of Event Grid.
/// Returns the client as it is now.
///
/// # Errors
///
/// It is not one client, or one of another name; the file cannot be changed.
pub fn put_client(path: &Path, name: &str, stated: &Value) -> Result<Client, RegistryError> {
    let client = client_of(name, stated)?;
    let own = match client.to_json() {
        Value::Object(own) => own,
        _ => Map::new(),
    };
    change(path, |all| match find(all, name) {
        Some(found) => {
            for member in OWN {
                found.remove(member);
            }
            found.extend(own);
            Ok(())
        }
        None => list_of(all).map(|list| list.push(Value::Object(own))),
    })?;
    Ok(client)
}

/// Enables or disables a client.
///
/// # Errors
///
/// There is none of this name; the file cannot be changed.
pub fn set_enabled(path: &Path, name: &str, enabled: bool) -> Result<(), RegistryError> {
    let word = if enabled { "Enabled" } else { "Disabled" };
    change(path, |all| {
        let found = find(all, name).ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        found.insert("state".to_owned(), word.into());
        Ok(())
    })
}

/// Deletes a client.
///
/// # Errors
///
/// There is none of this name; the file cannot be changed.
pub fn delete_client(path: &Path, name: &str) -> Result<(), RegistryError> {
    change(path, |all| match take_out(all, &folded(name)) {
        true => Ok(()),
        false => Err(RegistryError::Unknown(name.to_owned())),
    })
}

/// Members that say who a client is, and what it may show.
const OWN: [&str; 4] =
    ["authenticationName", "state", "clientCertificateAuthentication", "attributes"];

/// The one client that is stated, which has the name that was asked for.
fn client_of(name: &str, stated: &Value) -> Result<Client, RegistryError> {
    let wrong = |detail: String| Err(RegistryError::Client(detail));
    let Value::Object(members) = stated else {
        return wrong(format!("must be an object, got {stated}"));
    };
    let own = members.get("properties").and_then(Value::as_object).unwrap_or(members);
    let mut named = own.clone();
    named.entry("authenticationName").or_insert_with(|| name.into());
    let mut stated = members.clone();
    match stated.get_mut("properties") {
        Some(properties @ Value::Object(_)) => *properties = Value::Object(named),
        _ => stated = named,
    }
    let found = match read(&Value::Object(stated).to_string()) {
        Ok(found) => found,
        Err(detail) => return wrong(detail),
    };
    match <[Client; 1]>::try_from(found.clients) {
        Ok([client]) if folded(&client.authentication_name) == folded(name) => Ok(client),
        Ok([client]) => wrong(format!(
            "the body has the authenticationName '{}', the path '{name}'",
            client.authentication_name
        )),
        Err(_) => wrong("must be one client".to_owned()),
    }
}

/// Changes what a file has. What comes of it is understood, or not written.
fn change(
    path: &Path,
    change: impl FnOnce(&mut Value) -> Result<(), RegistryError>,
) -> Result<(), RegistryError> {
    let (text, seen) = load(path)?;
    understood(path, &text)?;
    let mut all: Value = json::read(text.as_bytes()).map_err(|error| in_file(path, error))?;
    change(&mut all)?;
    let text = serde_json::to_string_pretty(&all).map_err(|error| in_file(path, error))? + "\n";
    understood(path, &text)?;
    replace(path, &text, Some(seen)).map_err(|source| not_replaced(path, source))
}

fn load(path: &Path) -> Result<(String, Seen), RegistryError> {
    read_file(path).map_err(|source| not_replaced(path, source.into()))
}

fn understood(path: &Path, text: &str) -> Result<Resources, RegistryError> {
    read(text).map_err(|detail| in_file(path, detail))
}

fn in_file(path: &Path, detail: impl ToString) -> RegistryError {
    RegistryError::File { path: path.display().to_string(), detail: detail.to_string() }
}

fn not_replaced(path: &Path, source: ReplaceError) -> RegistryError {
    RegistryError::Replace { path: path.display().to_string(), source }
}

/// What describes a client, if this is the resource of one: below `properties`, or beside its name.
fn described(resource: &Value) -> Option<(&Map<String, Value>, &str)> {
    let members = resource.as_object()?;
    let own = members.get("properties").and_then(Value::as_object).unwrap_or(members);
    let name = own.get("authenticationName").and_then(Value::as_str);
    // Where only its resource has a name, its authentication has the last part of it.
    let name = name.or_else(|| members.get("name")?.as_str()?.rsplit('/').next());
    Some((own, name?))
}

fn is_of(resource: &Value, name: &str) -> bool {
    !has_list(resource) && described(resource).is_some_and(|(_, own)| folded(own) == name)
}

/// Is it a list of resources rather than one?
fn has_list(value: &Value) -> bool {
    LISTS.iter().any(|member| value.get(member).is_some_and(Value::is_array))
}

/// Members that have resources.
const LISTS: [&str; 2] = ["value", "resources"];

fn find<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    let folded_name = folded(name);
    found(value, &folded_name)
}

fn found<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    if is_of(value, name) {
        let members = value.as_object_mut()?;
        return match members.get("properties").is_some_and(Value::is_object) {
            true => members.get_mut("properties")?.as_object_mut(),
            false => Some(members),
        };
    }
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| found(item, name)),
        Value::Object(members) => members
            .iter_mut()
            .filter(|(member, _)| LISTS.contains(&member.as_str()))
            .find_map(|(_, list)| found(list, name)),
        _ => None,
    }
}

fn take_out(value: &mut Value, name: &str) -> bool {
    match value {
        Value::Array(items) => {
            if let Some(at) = items.iter().position(|item| is_of(item, name)) {
                items.remove(at);
                return true;
            }
            items.iter_mut().any(|item| take_out(item, name))
        }
        Value::Object(_) if is_of(value, name) => {
            *value = Value::Array(Vec::new());
            true
        }
        Value::Object(members) => {
            let lists = LISTS.iter();
            let mut lists = lists.filter_map(|member| Some((*member, members.get(*member)?)));
            let Some((member, _)) = lists.next() else { return false };
            members.get_mut(member).is_some_and(|list| take_out(list, name))
        }
        _ => false,
    }
}

/// The list to which a client is added. A file of one client becomes a list.
fn list_of(all: &mut Value) -> Result<&mut Vec<Value>, RegistryError> {
    if all.is_object() && !has_list(all) {
        *all = Value::Array(vec![all.take()]);
    }
    let list = match all {
        Value::Array(items) => Some(items),
        Value::Object(members) => {
            let member = LISTS.into_iter().find(|member| members.contains_key(*member));
            member.and_then(|member| members.get_mut(member)?.as_array_mut())
        }
        _ => None,
    };
    list.ok_or_else(|| RegistryError::Client("the file has no list of clients".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct File(tempfile::TempDir);

    impl File {
        fn with(value: &Value) -> Self {
            let file = Self(tempfile::tempdir().unwrap());
            std::fs::write(file.path(), value.to_string()).unwrap();
            file
        }

        fn path(&self) -> std::path::PathBuf {
            self.0.path().join("clients.json")
        }

        fn value(&self) -> Value {
            serde_json::from_str(&std::fs::read_to_string(self.path()).unwrap()).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let all = clients(&self.path()).unwrap();
            all.into_iter().map(|client| client.authentication_name).collect()
        }
    }

    fn flat(name: &str) -> Value {
        json!({ "authenticationName": name, "attributes": { "at": name } })
    }

    fn framed(name: &str) -> Value {
        json!({
            "id": "/subscriptions/1",
            "name": format!("space/{name}"),
            "type": "Microsoft.EventGrid/namespaces/clients",
            "properties": { "description": "a pump", "attributes": { "at": name } },
        })
    }

    #[test]
    fn every_form_of_file_is_changed_and_keeps_its_form() {
        for of in [flat as fn(&str) -> Value, framed] {
            for file in [
                json!([of("a"), of("B")]),
                json!({ "value": [of("a"), of("B")] }),
                json!({ "$schema": "s", "resources": [of("a"), of("B")] }),
            ] {
                let file = File::with(&file);
                let before = file.value();
                set_enabled(&file.path(), "b", false).unwrap();
                assert!(!clients(&file.path()).unwrap()[1].is_enabled);
                set_enabled(&file.path(), "B", true).unwrap();
                let state = json!({ "state": "Disabled", "attributes": { "at": "new" } });
                let now = put_client(&file.path(), "A", &state).unwrap();
                assert_eq!((&*now.authentication_name, now.is_enabled), ("A", false));
                put_client(&file.path(), "c", &json!({ "properties": { "attributes": {} } }))
                    .unwrap();
                assert_eq!(file.names(), ["A", "B", "c"], "{before}");
                assert_eq!(before.is_array(), file.value().is_array());
                assert_eq!(before.get("$schema"), file.value().get("$schema"));
                let text = file.value().to_string();
                assert_eq!(text.contains("a pump"), before.to_string().contains("a pump"));
                delete_client(&file.path(), "a").unwrap();
                delete_client(&file.path(), "b").unwrap();
                assert_eq!(file.names(), ["c"]);
                delete_client(&file.path(), "c").unwrap();
                assert!(file.names().is_empty());
                put_client(&file.path(), "d", &json!({})).unwrap();
                assert_eq!(file.names(), ["d"]);
            }
        }
    }

    #[test]
    fn a_file_of_one_client_becomes_a_list() {
        let file = File::with(&flat("a"));
        put_client(&file.path(), "b", &json!({})).unwrap();
        assert_eq!(file.names(), ["a", "b"]);
        let file = File::with(&flat("a"));
        delete_client(&file.path(), "a").unwrap();
        assert!(file.names().is_empty());
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let file = File::with(&json!([flat("a")]));
        let before = std::fs::read_to_string(file.path()).unwrap();
        for (stated, wanted) in [
            (json!([]), "must be an object"),
            (json!({ "authenticationName": "b" }), "the path 'a'"),
            (json!({ "state": "Off" }), "Enabled or Disabled"),
            (json!({ "colour": 1 }), "unknown member 'colour'"),
            (json!({ "query": "x", "type": "clientGroups" }), "clientGroups"),
            (json!({ "resources": [flat("a"), flat("b")] }), ""),
            (
                json!({ "clientCertificateAuthentication": { "validationScheme": "ThumbprintMatch" } }),
                "1 to 2",
            ),
        ] {
            let error = put_client(&file.path(), "a", &stated).unwrap_err();
            assert!(matches!(error, RegistryError::Client(_)), "{stated}: {error}");
            assert!(error.to_string().contains(wanted), "{stated}: {error}");
        }
        let unknown = |error| matches!(error, Err(RegistryError::Unknown(_)));
        assert!(unknown(delete_client(&file.path(), "b")));
        assert!(unknown(set_enabled(&file.path(), "b", true)));
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), before);
        std::fs::write(file.path(), "[").unwrap();
        let error = put_client(&file.path(), "a", &json!({})).unwrap_err();
        assert!(error.to_string().contains("clients.json: JSON"), "{error}");
    }
}
