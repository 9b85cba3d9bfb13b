//! Every route of the API: from this table come the router, the checks, and the OpenAPI document.

use super::alarms::{self, Alarm};
use super::audit::{self, AuditEntry};
use super::history::{Samples, Totals};
use super::limits::{self, LimitUse};
use super::log_lines::{self, LogLine};
use super::operate::{self, LogLevelState, NewLogLevel, ReloadResult};
use super::params::{
    BAN_SECS, CLIENT_ID, CURSOR, LIMIT, LISTENER, NAMESPACE, SETTING, TOPIC, USERNAME, WITHIN,
    WITHIN_ANY, flag, needed, number, some_text, text,
};
use super::params::{Param, ParamKind};
use super::permissions::{self, Permission, PermissionQuestion, RuleFile};
use super::route::{GET, Method, Role, Route, Stream};
use super::schema::{Described, Rows};
use super::settings::{self, NewSetting, Setting};
use super::spread::Spread;
use super::topics::{self, ClientSubscription, Topic};
use super::usage::{self, ClientDrops, Drops, MemoryUsage};
use super::users::{NewPassword, User};
use super::views::{
    Ban, Bridge, Broker, CacheCleared, Caller, Client, Cluster, Disconnected, Group, Home,
    Listener, Log, Member, Namespace, NewBan, Publish, PublishBatch, Published, PublishedBatch,
    Receiver, Retain, Retained, RetainedCleared, Subscription,
};
use super::{
    backup, bans, broker, clients, cluster, definitions, events, history, logins, merge, messages,
    namespaces, registry, routing, trace, users,
};

/// All of them.
pub(crate) fn routes() -> impl Iterator<Item = &'static Route> + Clone {
    OWN.iter()
        .chain(logins::ROUTES)
        .chain(registry::ROUTES)
        .chain(routing::ROUTES)
        .chain(definitions::ROUTES)
}

const OWN: &[Route] = &[
    Route {
        path: "/openapi.json",
        about: "This document.",
        answer: Some(|_| serde_json::json!({ "type": "object" })),
        run: |_, _| Box::pin(async { Ok(Some(super::openapi::document())) }),
        without_shards: true,
        takes_tenants: true,
        ..GET
    },
    Route {
        path: "/caller",
        about: "Shows the user of this request and its role.",
        answer: Some(Caller::schema),
        run: |_, call| Box::pin(async move { super::json(&call.caller) }),
        without_shards: true,
        takes_tenants: true,
        ..GET
    },
    Route {
        path: "/totals",
        about: "Shows the present values of the metrics that have a history.",
        answer: Some(Totals::schema),
        run: |api, _| Box::pin(async move { history::totals(&api) }),
        without_shards: true,
        spread: Spread::Cells(merge::totals),
        ..GET
    },
    Route {
        path: "/history",
        about: "Shows metrics of the last six hours, sampled every ten seconds.",
        params: &[
            some_text("series", "Names of metrics, with commas between them. Default: all."),
            Param {
                kind: ParamKind::Number { min: 10, max: 21_600 },
                ..text("window_secs", "The time until now, 10 to 21600. Default: 3600.")
            },
            Param {
                kind: ParamKind::Number { min: 2, max: 2_160 },
                ..text(
                    "points_max",
                    "The most samples, 2 to 2160; others are skipped. Default: 360.",
                )
            },
        ],
        answer: Some(Samples::schema),
        run: |api, call| Box::pin(async move { history::show(&api, &call) }),
        without_shards: true,
        spread: Spread::Cells(merge::history),
        ..GET
    },
    Route {
        path: "/broker",
        about: "Shows version, state and totals of the broker.",
        answer: Some(Broker::schema),
        run: |api, _| Box::pin(async move { broker::info(&api) }),
        without_shards: true,
        spread: Spread::NodeAndCells(merge::broker),
        ..GET
    },
    Route {
        path: "/alarms",
        about: "Lists alarms, the worst first. Examples: bridges that are away, rules that do not \
                deliver, certificates that expire, limits that are nearly used up.",
        answer: Some(Rows::<Alarm>::schema),
        run: |api, _| Box::pin(async move { alarms::list(&api) }),
        without_shards: true,
        spread: Spread::NodeAndCells(merge::alarms),
        ..GET
    },
    Route {
        path: "/listeners",
        about: "Lists the listeners, with their connections.",
        answer: Some(Rows::<Listener>::schema),
        run: |api, _| Box::pin(async move { broker::listeners(&api) }),
        without_shards: true,
        ..GET
    },
    Route {
        path: "/bridges",
        about: "Lists the bridges to other brokers, with their state.",
        answer: Some(Rows::<Bridge>::schema),
        run: |api, _| Box::pin(async move { broker::bridges(&api) }),
        without_shards: true,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/listeners/pause",
        role: Role::Operator,
        about: "Pauses a listener: new connections are closed at once, open connections stay. \
                A restart of the broker resumes all listeners.",
        params: &[LISTENER],
        run: |api, call| Box::pin(async move { broker::pause(&api, &call, true) }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/listeners/resume",
        role: Role::Operator,
        about: "Resumes a listener, which accepts connections again.",
        params: &[LISTENER],
        run: |api, call| Box::pin(async move { broker::pause(&api, &call, false) }),
        ..GET
    },
    Route {
        path: "/logs",
        about: "Shows the durable log of each shard: state, space, segments. Empty if nothing is stored.",
        answer: Some(Rows::<Log>::schema),
        run: |api, _| Box::pin(async move { broker::logs(&api) }),
        without_shards: true,
        spread: Spread::Cells(merge::logs),
        ..GET
    },
    Route {
        path: "/cluster",
        about: "Shows the cluster of this node: roles, the lease, and the lag of each standby. \
                Every node answers. 404: the broker has no cluster.",
        answer: Some(Cluster::schema),
        run: |api, _| Box::pin(async move { cluster::show(&api) }),
        without_shards: true,
        ..GET
    },
    Route {
        path: "/audit",
        role: Role::Operator,
        about: "Lists the last calls that changed something or were refused, the newest first. \
                The broker keeps 1,000 in memory; the log has all.",
        params: &[LIMIT, CURSOR],
        answer: Some(Rows::<AuditEntry>::schema),
        run: |api, call| Box::pin(async move { audit::list(&api, &call) }),
        without_shards: true,
        ..GET
    },
    Route {
        path: "/memory",
        about: "Shows the memory of the process, and the users and addresses that use most.",
        params: &[LIMIT],
        answer: Some(MemoryUsage::schema),
        run: |api, call| Box::pin(async move { usage::memory(&api, &call) }),
        spread: Spread::Cells(merge::memory),
        ..GET
    },
    Route {
        path: "/access/files",
        role: Role::Operator,
        about: "Shows the files of access rules that are in force, each as it was read.",
        answer: Some(Rows::<RuleFile>::schema),
        run: |api, _| Box::pin(async move { permissions::files(&api) }),
        ..GET
    },
    Route {
        path: "/limits",
        about: "Lists limits of the broker, its listeners and namespaces, with their present use.",
        answer: Some(Rows::<LimitUse>::schema),
        run: |api, _| Box::pin(async move { limits::list(&api) }),
        spread: Spread::Cells(merge::limits),
        ..GET
    },
    Route {
        path: "/drops",
        about: "Counts dropped messages by reason, since the start.",
        answer: Some(Rows::<Drops>::schema),
        run: |api, _| Box::pin(async move { usage::drops(&api) }),
        spread: Spread::Cells(merge::drops),
        ..GET
    },
    Route {
        path: "/drops/clients",
        about: "Lists clients that lost messages in the last hour, most messages first. Each shard \
                remembers 64 of them. QoS 0 for a client that is offline is not counted.",
        params: &[LIMIT, WITHIN_ANY],
        answer: Some(Rows::<ClientDrops>::schema),
        run: |api, call| Box::pin(async move { usage::client_drops(&api, &call).await }),
        spread: Spread::Cells(merge::client_drops),
        ..GET
    },
    Route {
        path: "/settings",
        role: Role::Operator,
        about: "Shows the configuration in force on this node except listeners, each value with its source.",
        answer: Some(Rows::<Setting>::schema),
        run: |api, _| Box::pin(async move { settings::list(&api) }),
        without_shards: true,
        ..GET
    },
    Route {
        method: Method::Put,
        path: "/settings/{key}",
        role: Role::Admin,
        about: "Sets a setting of this node, in memory. It lasts until a restart, or until a reload \
                finds another value of the key in the configuration than before.",
        params: &[SETTING],
        body: Some(NewSetting::schema),
        answer: Some(Setting::schema),
        run: |api, call| Box::pin(async move { settings::set(&api, &call) }),
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/settings/{key}",
        role: Role::Admin,
        about: "Brings the configured value of a setting back.",
        params: &[SETTING],
        answer: Some(Setting::schema),
        run: |api, call| Box::pin(async move { settings::reset(&api, &call) }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/backup",
        role: Role::Admin,
        about: "Answers a backup of the data directory as a tar archive. Unpacked, it is what \
                `quelea backup` makes, without the API token. Until the end of the answer the \
                logs reclaim no space: a reader that takes nothing for 30 s is disconnected.",
        stream: Some(Stream {
            media_type: backup::MEDIA_TYPE,
            begin: |api, call| Box::pin(backup::stream(api, call)),
        }),
        without_shards: true,
        spread: Spread::Nobody,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/reload",
        role: Role::Admin,
        about: "Reloads passwords, registries, access rules, bans, namespaces, certificates and \
                settings that change while running. Reopens the log file. SIGHUP does the same. \
                A part that cannot be used stays as it was.",
        answer: Some(ReloadResult::schema),
        run: |api, _| Box::pin(async move { operate::reload(&api).await }),
        ..GET
    },
    Route {
        path: "/log-lines",
        role: Role::Operator,
        about: "Lists the last lines of the log, the newest first: 500 warnings and errors, and \
                500 other lines.",
        params: &[
            some_text(
                "level",
                "The least severe level: error, warn, info, debug or trace. Default: info.",
            ),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<LogLine>::schema),
        run: |_, call| Box::pin(async move { log_lines::list(&call) }),
        without_shards: true,
        ..GET
    },
    Route {
        path: "/log-level",
        role: Role::Operator,
        about: "Shows the log level.",
        answer: Some(LogLevelState::schema),
        run: |api, _| Box::pin(async move { operate::log_level(&api) }),
        without_shards: true,
        ..GET
    },
    Route {
        method: Method::Put,
        path: "/log-level",
        role: Role::Admin,
        about: "Sets the log level, for a time or until a restart.",
        body: Some(NewLogLevel::schema),
        answer: Some(LogLevelState::schema),
        run: |api, call| Box::pin(async move { operate::set_log_level(&api, &call) }),
        ..GET
    },
    Route {
        path: "/clients",
        about: "Lists clients, connected or not, that match all filters. A page with a cursor \
                may be short or empty.",
        params: &[
            WITHIN_ANY,
            text("client_id", "A part of the client ID."),
            text("username", "Username; empty: clients without one."),
            text("address", "Beginning of the address, such as 10.0.0.7:"),
            flag("connected", "true: clients with a connection; false: clients without one."),
            number("queued_min", "The least number of queued messages."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<Client>::schema),
        run: |api, call| Box::pin(async move { clients::list(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        path: "/client",
        segment_path: Some("/clients/{client_id}"),
        about: "Shows a client.",
        params: &[CLIENT_ID, WITHIN],
        answer: Some(Client::schema),
        run: |api, call| Box::pin(async move { clients::show(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        path: "/client/namespaces",
        segment_path: Some("/clients/{client_id}/namespaces"),
        about: "Lists the namespaces in which a client ID has a session.",
        params: &[CLIENT_ID, LIMIT, CURSOR],
        answer: Some(Rows::<Home>::schema),
        run: |api, call| Box::pin(async move { clients::namespaces(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        path: "/client/subscriptions",
        segment_path: Some("/clients/{client_id}/subscriptions"),
        about: "Lists the subscriptions of a client.",
        params: &[CLIENT_ID, WITHIN, LIMIT, CURSOR],
        answer: Some(Rows::<Subscription>::schema),
        run: |api, call| Box::pin(async move { clients::subscriptions(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        path: "/client/permissions",
        segment_path: Some("/clients/{client_id}/permissions"),
        about: "Says whether a client may do something, and which rule decides it. The broker asks \
                the same rights for each message of the client.",
        params: &[
            CLIENT_ID,
            WITHIN,
            needed("action", "publish, subscribe or receive."),
            needed("topic", "The topic, or the filter of a subscription."),
            Param {
                kind: ParamKind::Number { min: 0, max: 2 },
                ..text("qos", "0 to 2. Default: 0.")
            },
            flag("retain", "The publish has the retain flag. Default: false."),
        ],
        answer: Some(Permission::schema),
        run: |api, call| Box::pin(async move { permissions::of_client(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/permissions/explain",
        about: "Says what a client of this description could do. It need not be connected. \
                Attributes and rules that its credential would bring are not known, unless the \
                body states them.",
        params: &[WITHIN],
        body: Some(PermissionQuestion::schema),
        answer: Some(Permission::schema),
        run: |api, call| Box::pin(async move { permissions::explain(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/client/disconnect",
        segment_path: Some("/clients/{client_id}/disconnect"),
        role: Role::Operator,
        about: "Disconnects a client with 0x98 (administrative action). Its session stays. It may reconnect, unless the call bans it.",
        params: &[CLIENT_ID, WITHIN, BAN_SECS],
        run: |api, call| Box::pin(async move { clients::disconnect(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/disconnect",
        role: Role::Operator,
        about: "Disconnects all clients that match all filters with 0x98 (administrative \
                action). A filter other than the namespace is required, or all=true. Sessions \
                stay, and clients may reconnect.",
        params: &[
            some_text("namespace", "The namespace. Default: all of them."),
            some_text("client_id", "A part of the client ID."),
            text("username", "Username; empty: clients without one."),
            some_text("address", "Beginning of the address, such as 10.0.0.7:"),
            Param {
                kind: ParamKind::Number { min: 1, max: u32::MAX as u64 },
                ..text("queued_min", "The least number of queued messages.")
            },
            flag(
                "all",
                "true: all clients, of the namespace if it is set. No other filter is set.",
            ),
        ],
        answer: Some(Disconnected::schema),
        run: |api, call| Box::pin(async move { clients::disconnect_some(&api, &call).await }),
        spread: Spread::Cells(merge::sums),
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/authorization/cache",
        role: Role::Operator,
        about: "Removes cached answers of the authorization service, of all connections that match all filters. It is asked again at their next publish or subscription.",
        params: &[
            some_text("namespace", "The namespace. Default: all of them."),
            some_text("client_id", "A part of the client ID."),
            text("username", "Username; empty: clients without one."),
            some_text("address", "Beginning of the address, such as 10.0.0.7:"),
        ],
        answer: Some(CacheCleared::schema),
        run: |api, call| Box::pin(async move { clients::forget_verdicts(&api, &call).await }),
        spread: Spread::Cells(merge::sums),
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/client",
        segment_path: Some("/clients/{client_id}"),
        role: Role::Admin,
        about: "Deletes the session of a client with its subscriptions and queued messages, and closes its connection. The will is published.",
        params: &[CLIENT_ID, WITHIN],
        run: |api, call| Box::pin(async move { clients::purge(&api, &call).await }),
        spread: Spread::Client,
        ..GET
    },
    Route {
        path: "/events",
        about: "Streams life-cycle events as server-sent events; each is a CloudEvent. A reader \
                that falls 1,000 events behind is disconnected.",
        params: &[
            some_text("type", "Beginning of the type, such as quelea.session."),
            some_text("client_id", "Client ID."),
            some_text("namespace", "Events about this namespace."),
        ],
        stream: Some(Stream {
            media_type: events::MEDIA_TYPE,
            begin: |api, call| Box::pin(async move { events::stream(&api, &call) }),
        }),
        without_shards: true,
        spread: Spread::Cells(merge::sums),
        ..GET
    },
    Route {
        path: "/trace",
        role: Role::Operator,
        about: "Streams the packets of clients as server-sent events, from CONNECT to the end of \
                the connection. At least one filter is required. Packets that a slow reader \
                misses are counted by an event `lost`.",
        params: &[
            some_text("client_id", "The client ID, connected or not."),
            some_text("topic", "PUBLISH packets whose topic this filter matches."),
            some_text("address", "An address, or a network such as 10.0.0.0/8."),
            some_text("namespace", "The namespace. Default: `default` with client_id, else all."),
            Param {
                kind: ParamKind::Number { min: 0, max: trace::PAYLOAD_BYTES_MAX },
                ..text("payload_bytes", "Bytes of each payload to show, 0 to 1024. Default: 0.")
            },
        ],
        stream: Some(Stream {
            media_type: events::MEDIA_TYPE,
            begin: |api, call| Box::pin(async move { trace::stream(&api, &call) }),
        }),
        spread: Spread::Cells(merge::sums),
        ..GET
    },
    Route {
        path: "/namespaces",
        about: "Lists all namespaces but the default one by name, with limits and usage.",
        params: &[LIMIT, CURSOR],
        answer: Some(Rows::<Namespace>::schema),
        run: |api, call| Box::pin(async move { namespaces::list(&api, &call) }),
        ..GET
    },
    Route {
        path: "/namespace",
        segment_path: Some("/namespaces/{name}"),
        about: "Shows a namespace.",
        params: &[NAMESPACE],
        answer: Some(Namespace::schema),
        run: |api, call| Box::pin(async move { namespaces::show(&api, &call) }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/namespace/suspend",
        segment_path: Some("/namespaces/{name}/suspend"),
        role: Role::Admin,
        about: "Suspends a namespace: its clients are disconnected (0x98), and new connections are \
                refused. Sessions and messages stay. It stays suspended after a restart.",
        params: &[NAMESPACE],
        answer: Some(Namespace::schema),
        run: |api, call| Box::pin(async move { namespaces::hold(&api, &call, true).await }),
        spread: Spread::Nobody,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/namespace/resume",
        segment_path: Some("/namespaces/{name}/resume"),
        role: Role::Admin,
        about: "Resumes a namespace that the API has suspended.",
        params: &[NAMESPACE],
        answer: Some(Namespace::schema),
        run: |api, call| Box::pin(async move { namespaces::hold(&api, &call, false).await }),
        spread: Spread::Nobody,
        ..GET
    },
    Route {
        path: "/users",
        role: Role::Admin,
        about: "Lists the users of auth.password_file by name.",
        params: &[LIMIT, CURSOR],
        answer: Some(Rows::<User>::schema),
        run: |api, call| Box::pin(async move { users::list(&api, &call).await }),
        ..GET
    },
    Route {
        method: Method::Put,
        path: "/user",
        segment_path: Some("/users/{username}"),
        role: Role::Admin,
        about: "Adds a user to auth.password_file, or changes its password. Other lines of the \
                file stay as they are. The change is in force before the answer.",
        params: &[USERNAME],
        body: Some(NewPassword::schema),
        run: |api, call| Box::pin(async move { users::put(&api, &call).await }),
        spread: Spread::Nodes,
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/user",
        segment_path: Some("/users/{username}"),
        role: Role::Admin,
        about: "Deletes a user of auth.password_file. Open connections of the user stay: \
                disconnect them with POST /disconnect.",
        params: &[USERNAME],
        run: |api, call| Box::pin(async move { users::delete(&api, &call).await }),
        spread: Spread::Nodes,
        ..GET
    },
    Route {
        path: "/bans",
        about: "Lists the bans in force: bans by the API first, then bans of auth.ban_file.",
        params: &[
            some_text("kind", "client, user or address."),
            some_text("namespace", "Bans in force in this namespace."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<Ban>::schema),
        run: |api, call| Box::pin(async move { bans::list(&api, &call) }),
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/bans",
        role: Role::Operator,
        about: "Bans a client ID, a user, an address or a network, and closes its connections \
                (0x98). An existing ban gets the new end. The ban is on the disk before the \
                answer.",
        body: Some(NewBan::schema),
        answer: Some(Ban::schema),
        run: |api, call| Box::pin(async move { bans::add(&api, &call).await }),
        spread: Spread::Bans,
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/bans",
        role: Role::Operator,
        about: "Removes a ban that the API has added.",
        params: &[
            needed("kind", "client, user or address."),
            needed("who", "The client ID, username, address or network."),
            some_text(
                "namespace",
                "The namespace of the ban, * for all. Default: that of the only matching ban.",
            ),
        ],
        run: |api, call| Box::pin(async move { bans::remove(&api, &call).await }),
        spread: Spread::Bans,
        ..GET
    },
    Route {
        path: "/subscriptions",
        about: "Lists the subscriptions of all clients that match all filters. A page with a \
                cursor may be short or empty.",
        params: &[
            WITHIN_ANY,
            text("client_id", "A part of the client ID."),
            some_text("filter", "The filter, without a share name."),
            some_text("topic", "A topic that the filter matches."),
            flag("shared", "true: shared subscriptions; false: the others."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<ClientSubscription>::schema),
        run: |api, call| Box::pin(async move { topics::subscriptions(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        path: "/topics",
        about: "Lists one level of the tree of topics with a retained message. The broker knows \
                no other topics.",
        params: &[
            text("prefix", "The topic above the level, without a final /. Default: the root."),
            WITHIN,
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<Topic>::schema),
        run: |api, call| Box::pin(async move { topics::topics(&api, &call).await }),
        spread: Spread::Cells(merge::topics),
        ..GET
    },
    Route {
        path: "/topics/receivers",
        about: "Lists the clients that receive messages on a topic.",
        params: &[TOPIC, WITHIN, LIMIT, CURSOR],
        answer: Some(Rows::<Receiver>::schema),
        run: |api, call| Box::pin(async move { clients::receivers(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        path: "/groups",
        about: "Lists shared subscriptions.",
        params: &[WITHIN_ANY, LIMIT, CURSOR],
        answer: Some(Rows::<Group>::schema),
        run: |api, call| Box::pin(async move { clients::groups(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        path: "/groups/members",
        about: "Lists the members of a shared subscription.",
        params: &[
            needed("share", "The share name."),
            needed("filter", "The filter of the group."),
            WITHIN,
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<Member>::schema),
        run: |api, call| Box::pin(async move { clients::members(&api, &call).await }),
        spread: Spread::First,
        ..GET
    },
    Route {
        path: "/retained",
        about: "Lists retained messages, in the order of namespaces and topics within each shard.",
        params: &[
            WITHIN_ANY,
            some_text("filter", "A topic filter. Default: #, which does not match topics with $."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<Retained>::schema),
        run: |api, call| Box::pin(async move { messages::list_retained(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/retained",
        role: Role::Operator,
        about: "Clears retained messages whose topics match a filter, a page with each call. \
                Subscribers get an empty message on each topic, as from a client that clears it.",
        params: &[
            needed("filter", "A topic filter. # does not match topics with $."),
            WITHIN,
            flag("dry_run", "true: count the messages, and clear none. Default: false."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(RetainedCleared::schema),
        run: |api, call| Box::pin(async move { messages::clear_matching(&api, &call).await }),
        spread: Spread::Pages,
        ..GET
    },
    Route {
        path: "/retained/message",
        about: "Shows the retained message of a topic.",
        params: &[
            TOPIC,
            WITHIN,
            number(
                "payload_bytes_max",
                "The most bytes of the payload in the answer; payload_bytes is its size. Default: all.",
            ),
        ],
        answer: Some(Retained::schema),
        run: |api, call| Box::pin(async move { messages::show_retained(&api, &call).await }),
        spread: Spread::Topic,
        ..GET
    },
    Route {
        method: Method::Put,
        path: "/retained/message",
        role: Role::Operator,
        about: "Publishes a retained message.",
        params: &[TOPIC, WITHIN],
        body: Some(Retain::schema),
        answer: Some(Published::schema),
        run: |api, call| Box::pin(async move { messages::set_retained(&api, &call).await }),
        spread: Spread::Topic,
        ..GET
    },
    Route {
        method: Method::Delete,
        path: "/retained/message",
        role: Role::Operator,
        about: "Clears the retained message of a topic.",
        params: &[TOPIC, WITHIN],
        run: |api, call| Box::pin(async move { messages::clear_retained(&api, &call).await }),
        spread: Spread::Topic,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/publish",
        role: Role::Operator,
        about: "Publishes a message. Success means the same as a PUBACK at the durability level \
                of the topic. The access rules of clients do not apply.",
        params: &[WITHIN],
        body: Some(Publish::schema),
        answer: Some(Published::schema),
        run: |api, call| Box::pin(async move { messages::publish(&api, &call).await }),
        spread: Spread::Topic,
        ..GET
    },
    Route {
        method: Method::Post,
        path: "/publish/batch",
        role: Role::Operator,
        about: "Publishes messages in their order. A refused message does not stop the others.",
        params: &[WITHIN],
        body: Some(PublishBatch::schema),
        answer: Some(PublishedBatch::schema),
        run: |api, call| Box::pin(async move { messages::publish_batch(&api, &call).await }),
        spread: Spread::Topic,
        ..GET
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What an HTTP library sends instead of a path (RFC 3986, section 5.2.4; encoded dots as in
    /// the URL standard).
    fn shortened(path: &str) -> String {
        let mut segments = Vec::new();
        for segment in path.split('/').skip(1) {
            match segment {
                "." => {}
                ".." => drop(segments.pop()),
                other => segments.push(other),
            }
        }
        let is_open = (path.ends_with("/.") || path.ends_with("/..")) && !segments.is_empty();
        format!("/{}{}", segments.join("/"), if is_open { "/" } else { "" })
    }

    fn meets(pattern: &str, path: &str) -> bool {
        let (pattern, path): (Vec<_>, Vec<_>) =
            (pattern.split('/').collect(), path.split('/').collect());
        let fits =
            |(part, own): (&&str, &&str)| part == own || part.starts_with('{') && !own.is_empty();
        pattern.len() == path.len() && pattern.iter().zip(&path).all(fits)
    }

    #[test]
    fn no_name_changes_the_address_of_a_call() {
        for route in routes() {
            // Only words of the broker itself are segments.
            assert!(!route.path.contains('{') || route.path == "/settings/{key}", "{}", route.path);
        }
    }

    #[test]
    fn a_shortened_path_changes_nothing_else() {
        assert_eq!(shortened("/clients/../disconnect"), "/disconnect");
        assert_eq!(shortened("/users/.."), "/");
        for route in routes().filter(|route| route.method != Method::Get) {
            for name in [".", ".."] {
                let Some(pattern) = route.segment_path.or(Some(route.path)) else { continue };
                let Some((before, after)) = pattern.split_once('{') else { continue };
                let rest = after.split_once('}').map_or("", |(_, rest)| rest);
                let path = shortened(&format!("{before}{name}{rest}"));
                let patterns = |route: &'static Route| {
                    [Some(route.path), route.segment_path].into_iter().flatten()
                };
                let other = routes()
                    .filter(|other| other.method == route.method)
                    .find(|other| patterns(other).any(|pattern| meets(pattern, &path)));
                // It refuses a call without a filter (`clients::disconnect_some`).
                let is_refused = other.is_some_and(|other| other.path == "/disconnect");
                assert!(other.is_none() || is_refused, "{pattern} with {name} is {path}");
            }
        }
    }

    #[test]
    fn what_a_standby_answers_changes_nothing() {
        let answered: Vec<&Route> = routes().filter(|route| route.without_shards).collect();
        // Log-in sessions are of the node, and a backup is a copy of what it has.
        let is_of_node =
            |route: &Route| route.path.starts_with("/sessions") || route.path == "/backup";
        assert!(answered.iter().all(|route| route.method == Method::Get || is_of_node(route)));
        assert!(answered.iter().any(|route| route.path == "/cluster"));
        let refused = |path| routes().any(|it| it.path == path && !it.without_shards);
        assert!(["/clients", "/bans", "/retained", "/publish"].into_iter().all(refused));
    }
}
