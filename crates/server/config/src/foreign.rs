//! Configurations of other brokers, recognised by their first option.

/// What to do with a text that is no TOML. None: it is for no broker that is known.
pub(super) fn broker_of(text: &str) -> Option<&'static str> {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let word = first.split(char::is_whitespace).next()?;
    let behind = first[word.len()..].trim_start();
    if MOSQUITTO.contains(&word) && !behind.starts_with(['=', '{', '.']) {
        return Some("this is a configuration of mosquitto: run `quelea import FILE --output DIR`");
    }
    let key = word.split(['.', '{', '=']).next().unwrap_or_default();
    // A section of ours is in brackets.
    if EMQX.contains(&key) && first.ends_with(['{', '[']) && !first.starts_with('[') {
        return Some(
            "this is a configuration of EMQX: run `quelea import FILE --from emqx --output DIR`",
        );
    }
    None
}

/// The sections that files of EMQX begin with.
const EMQX: [&str; 8] = [
    "actions",
    "authentication",
    "authorization",
    "cluster",
    "dashboard",
    "listeners",
    "mqtt",
    "node",
];

/// The options that files of mosquitto begin with.
const MOSQUITTO: [&str; 33] = [
    "acl_file",
    "allow_anonymous",
    "allow_zero_length_clientid",
    "auth_plugin",
    "autosave_interval",
    "bind_address",
    "cafile",
    "certfile",
    "connection",
    "connection_messages",
    "global_plugin",
    "include_dir",
    "keyfile",
    "listener",
    "log_dest",
    "log_timestamp",
    "log_timestamp_format",
    "log_type",
    "max_connections",
    "max_inflight_messages",
    "max_queued_messages",
    "message_size_limit",
    "password_file",
    "per_listener_settings",
    "persistence",
    "persistence_location",
    "persistent_client_expiration",
    "pid_file",
    "plugin",
    "port",
    "protocol",
    "sys_interval",
    "user",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_mosquitto_is_recognised_and_ours_is_not() {
        let debian = "# Place your\n\npid_file /run/mosquitto.pid\npersistence true\n";
        assert!(broker_of(debian).is_some_and(|hint| hint.contains("quelea import")));
        let emqx = "## NOTE\nnode {\n  name = \"emqx@127.0.0.1\"\n}\n";
        assert!(broker_of(emqx).is_some_and(|hint| hint.contains("--from emqx")));
        for text in ["", "# only\n", "port = 1\n", "user=1", "listener\u{a0}x", "listeners 1"] {
            let is_known = text.starts_with("listener\u{a0}");
            assert_eq!(broker_of(text).is_some(), is_known, "{text:?}");
        }
    }
}
