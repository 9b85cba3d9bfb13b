#!/usr/bin/env python3
"""Writes the Grafana dashboards of quelea into packaging/observability/grafana.

The rows below are the source: title, unit, and expressions with their legends. `$i` stands for the
chosen instances and `$r` for Grafana's rate interval. `--check` fails if a file is not up to date.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "grafana"
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
INSTANCE, INTERVAL = 'job="$job",instance=~"$instance"', "$__rate_interval"


def graph(title, unit, *targets, description=""):
    return {"type": "timeseries", "title": title, "unit": unit, "targets": targets,
            "description": description}


def stat(title, unit, expression, red=None, description=""):
    """One number. From `red` on its background is red."""
    return {"type": "stat", "title": title, "unit": unit, "targets": [(expression, "")],
            "red": red, "description": description}


def table(title, unit, expression, description=""):
    return {"type": "table", "title": title, "unit": unit, "targets": [(expression, "")],
            "description": description}


OVERVIEW = [
    ("", [
        stat("Brokers up", "short", "sum(up{$i})"),
        stat("Clients", "short", "sum(quelea_connections{$i})"),
        stat("Sessions", "short", "sum(quelea_sessions{$i})"),
        stat("Messages received", "ops", "sum(rate(quelea_publishes_received_total{$i}[$r]))"),
        stat("Messages sent", "ops", "sum(rate(quelea_publishes_sent_total{$i}[$r]))"),
        stat("Messages lost at a limit, 1 h", "short",
             'sum(increase(quelea_messages_dropped_total{$i,reason=~"queue_full|shared_group"}[1h]))',
             red=1),
    ]),
    ("Traffic", [
        graph("Messages", "ops",
              ("sum(rate(quelea_publishes_received_total{$i}[$r]))", "received"),
              ("sum(rate(quelea_publishes_sent_total{$i}[$r]))", "sent"),
              ("sum(rate(quelea_publishes_queued_total{$i}[$r]))", "queued"),
              ("sum(rate(quelea_publishes_unmatched_total{$i}[$r]))", "without a subscriber")),
        graph("Bytes of MQTT packets", "Bps",
              ("sum(rate(quelea_received_bytes_total{$i}[$r]))", "received"),
              ("sum(rate(quelea_sent_bytes_total{$i}[$r]))", "sent")),
        graph("Dropped messages by reason", "ops",
              ("sum by (reason, limit) (rate(quelea_messages_dropped_total{$i}[$r]))",
               "{{reason}} {{limit}}"),
              description="slow_subscriber, offline and expired are normal for some clients. "
                          "queue_full and shared_group are losses at a limit."),
        graph("Refused publishes", "ops",
              ("sum(rate(quelea_publishes_denied_total{$i}[$r]))", "denied by access rules"),
              ("sum(rate(quelea_publishes_refused_total{$i}[$r]))", "no space or quota"),
              ("sum(rate(quelea_retained_refused_total{$i}[$r]))", "retained store full")),
        graph("Messages received by QoS", "ops",
              ("sum by (qos) (rate(quelea_publishes_received_total{$i}[$r]))", "QoS {{qos}}")),
        graph("Messages sent by QoS", "ops",
              ("sum by (qos) (rate(quelea_publishes_sent_total{$i}[$r]))", "QoS {{qos}}")),
        graph("Packets received by type", "ops",
              ("sum by (type) (rate(quelea_packets_received_total{$i}[$r]))", "{{type}}")),
        graph("Packets sent by type", "ops",
              ("sum by (type) (rate(quelea_control_packets_sent_total{$i}[$r]))", "{{type}}"),
              ("sum(rate(quelea_publishes_sent_total{$i}[$r]))", "publish")),
        graph("Queues", "short",
              ("sum(quelea_queued_messages{$i})", "queued"),
              ("sum(quelea_in_flight_messages{$i})", "in flight")),
    ]),
    ("Resources", [
        graph("CPU cores used", "short",
              ("rate(process_cpu_seconds_total{$i}[$r])", "{{instance}}")),
        graph("Memory", "bytes",
              ("quelea_memory_held_bytes{$i}", "{{instance}} allocated"),
              ("process_resident_memory_bytes{$i}", "{{instance}} resident"),
              ("quelea_memory_limit_bytes{$i}", "{{instance}} limit")),
        graph("Memory by use", "bytes",
              ('sum by (kind) (quelea_held_bytes{$i,kind!="logged"})', "{{kind}}"),
              ("sum(quelea_memory_log_cache_bytes{$i})", "log cache")),
        table("Largest owners", "bytes",
              "topk(20, sum by (instance, owner, kind) (quelea_owner_bytes{$i}) > 0)",
              description="Users, or addresses of anonymous clients."),
        graph("Event-loop iteration, 99th percentile", "s",
              ("histogram_quantile(0.99, sum by (instance, le) "
               "(rate(quelea_worker_turn_seconds_bucket{$i}[$r])))", "{{instance}}"),
              description="A worker that is busy for 10 ms delays its clients by up to 10 ms."),
        graph("Throttling", "ops",
              ("sum(rate(quelea_publisher_holds_total{$i}[$r]))", "subscriber queue too long"),
              ("sum(rate(quelea_unread_waits_total{$i}[$r]))", "client does not read"),
              ("sum(rate(quelea_work_waits_total{$i}[$r]))", "work budget used up"),
              ("sum(rate(quelea_incoming_waits_total{$i}[$r]))", "no memory for the packet"),
              ("sum(rate(quelea_mail_waits_total{$i}[$r]))", "other shard is behind")),
        graph("Memory shortages", "short",
              ("sum by (stage) (increase(quelea_memory_shortages_total{$i}[$r]))", "{{stage}}")),
        graph("Open files", "short",
              ("process_open_fds{$i}", "{{instance}} open"),
              ("process_max_fds{$i}", "{{instance}} limit")),
    ]),
]

CLIENTS = [
    ("", [
        stat("Clients", "short", "sum(quelea_connections{$i})"),
        stat("Sessions", "short", "sum(quelea_sessions{$i})"),
        stat("Subscriptions", "short", "sum(quelea_subscriptions{$i})"),
        stat("Shared subscriptions", "short", "sum(quelea_shared_subscriptions{$i})"),
        stat("Retained messages", "short", "sum(quelea_retained_messages{$i})"),
        stat("Bans", "short", "sum(quelea_bans{$i})"),
    ]),
    ("Connections", [
        graph("Open connections by listener", "short",
              ("sum by (listener) (quelea_listener_connections{$i})", "{{listener}}")),
        graph("Connects and disconnects", "ops",
              ("sum(rate(quelea_connections_opened_total{$i}[$r]))", "connected"),
              ("sum(rate(quelea_connections_closed_total{$i}[$r]))", "disconnected")),
        graph("Accepted and admitted", "ops",
              ("sum by (listener) (rate(quelea_connections_accepted_total{$i}[$r]))",
               "{{listener}} accepted"),
              ("sum by (listener) (rate(quelea_connections_admitted_total{$i}[$r]))",
               "{{listener}} admitted")),
        graph("Connections that ended before a session", "ops",
              ("sum by (listener, reason) "
               "(rate(quelea_connections_turned_away_total{$i}[$r])) > 0",
               "{{listener}} {{reason}}")),
        graph("Refused CONNECTs by reason code", "ops",
              ("sum by (reason, code) (rate(quelea_connects_refused_total{$i}[$r]))",
               "{{code}} {{reason}}")),
        graph("Why the broker closed connections", "ops",
              ("sum(rate(quelea_keep_alive_timeouts_total{$i}[$r]))", "keep-alive timeout"),
              ("sum(rate(quelea_session_takeovers_total{$i}[$r]))", "taken over"),
              ("sum(rate(quelea_protocol_violations_total{$i}[$r]))", "protocol violation"),
              ("sum(rate(quelea_credentials_expired_total{$i}[$r]))", "credential expired"),
              ("sum(rate(quelea_banned_disconnects_total{$i}[$r]))", "banned"),
              ("sum(rate(quelea_incoming_cuts_total{$i}[$r]))", "no memory for its packets"),
              ("sum(rate(quelea_memory_cuts_total{$i}[$r]))", "largest consumer of memory")),
        graph("Self-check: round trip", "s",
              ("quelea_self_check_round_trip_seconds{$i}", "{{instance}} {{listener}}")),
        graph("Self-check: failures", "ops",
              ('sum by (instance, listener) (rate(quelea_self_checks_total{$i,result="failed"}[$r]))',
               "{{instance}} {{listener}}"),
              description="Off unless self_check.interval_secs is set."),
        graph("Refused by a ban", "ops",
              ("sum by (by) (rate(quelea_bans_enforced_total{$i}[$r]))", "{{by}}")),
        graph("Days until certificates expire", "d",
              ("(quelea_certificate_expiry_timestamp_seconds{$i} - time()) / 86400",
               "{{instance}} {{listener}}")),
    ]),
    ("Sessions", [
        graph("Sessions", "short",
              ("sum(quelea_sessions{$i})", "all"),
              ("sum(quelea_connections{$i})", "connected")),
        graph("Ended and refused sessions", "ops",
              ("sum(rate(quelea_sessions_expired_total{$i}[$r]))", "expired"),
              ("sum(rate(quelea_sessions_refused_total{$i}[$r]))", "refused: memory of its user"),
              ("sum(rate(quelea_session_owner_refusals_total{$i}[$r]))",
               "refused: session of another user")),
        graph("Subscriptions", "short",
              ("sum(quelea_subscriptions{$i})", "all"),
              ("sum(quelea_shared_subscriptions{$i})", "shared"),
              ("sum(quelea_topic_filters{$i})", "topic filters")),
        graph("Refused topic filters", "ops",
              ("sum(rate(quelea_subscriptions_refused_total{$i}[$r]))", "at a limit")),
        graph("Retained messages", "short",
              ("sum(quelea_retained_messages{$i})", "messages")),
        graph("Bytes of retained messages", "bytes",
              ("sum(quelea_retained_bytes{$i})", "bytes")),
        graph("Wills", "ops",
              ("sum(rate(quelea_wills_published_total{$i}[$r]))", "published")),
        graph("API log-ins refused", "ops",
              ("sum(rate(quelea_api_logins_refused_total{$i}[$r]))", "refused")),
    ]),
]

DURABILITY = [
    ("", [
        stat("Log full", "short", "sum(quelea_log_full{$i})", red=1),
        stat("Log failed", "short", "sum(quelea_log_poisoned{$i})", red=1),
        stat("Log damaged", "short", "sum(quelea_log_damaged{$i})", red=1),
        stat("Log used", "bytes", "sum(quelea_log_used_bytes{$i})"),
        stat("Commit, mean", "s",
             "sum(rate(quelea_log_commit_seconds_sum{$i}[$r])) "
             "/ sum(rate(quelea_log_commit_seconds_count{$i}[$r]))"),
        stat("Records refused, 1 h", "short", "sum(increase(quelea_log_refused_total{$i}[1h]))",
             red=1),
    ]),
    ("Log", [
        graph("Space", "bytes",
              ("sum(quelea_log_used_bytes{$i})", "used"),
              ("sum(quelea_log_live_bytes{$i})", "still needed"),
              ("sum(quelea_log_live_limit_bytes{$i})", "limit of what is needed"),
              ("sum(quelea_log_pending_bytes{$i})", "queued for a write")),
        graph("Duration of commits", "s",
              ("histogram_quantile(0.5, sum by (le) "
               "(rate(quelea_log_commit_seconds_bucket{$i}[$r])))", "50 %"),
              ("histogram_quantile(0.99, sum by (le) "
               "(rate(quelea_log_commit_seconds_bucket{$i}[$r])))", "99 %"),
              ("histogram_quantile(0.999, sum by (le) "
               "(rate(quelea_log_commit_seconds_bucket{$i}[$r])))", "99.9 %")),
        graph("Commits", "ops",
              ("sum(rate(quelea_log_commits_total{$i}[$r]))", "writes"),
              ("sum(rate(quelea_log_syncs_total{$i}[$r]))", "syncs")),
        graph("Records per commit", "short",
              ("sum(rate(quelea_log_records_total{$i}[$r])) "
               "/ sum(rate(quelea_log_commits_total{$i}[$r]))", "records")),
        graph("Bytes appended and read to reclaim space", "Bps",
              ("sum(rate(quelea_log_appended_bytes_total{$i}[$r]))", "appended"),
              ("sum(rate(quelea_log_reclaim_read_bytes_total{$i}[$r]))", "read to reclaim")),
        graph("Segments", "short",
              ("sum(quelea_log_segments{$i})", "files"),
              ("sum(rate(quelea_log_segments_reclaimed_total{$i}[$r]))", "reclaimed per second")),
        graph("State by shard", "short",
              ("quelea_log_full{$i} > 0", "{{instance}} {{shard}} full"),
              ("quelea_log_unavailable{$i} > 0", "{{instance}} {{shard}} without quorum"),
              ("quelea_log_fenced{$i} > 0", "{{instance}} {{shard}} taken over"),
              ("quelea_log_poisoned{$i} > 0", "{{instance}} {{shard}} failed")),
        graph("Records refused for lack of space", "ops",
              ("sum(rate(quelea_log_refused_total{$i}[$r]))", "refused")),
        graph("Log lines and events lost", "ops",
              ("sum(rate(quelea_logging_lines_lost_total{$i}[$r]))", "log lines"),
              ("sum(rate(quelea_events_lost_total{$i}[$r]))", "events of shards"),
              ("sum(rate(quelea_events_withheld_total{$i}[$r]))", "life-cycle events")),
    ]),
]

BRIDGES = [
    ("", [
        stat("Bridges", "short", "count(quelea_bridge_connected{$i})"),
        stat("Not connected", "short", "sum(1 - quelea_bridge_connected{$i})", red=1),
        stat("Lag", "short", "sum(quelea_bridge_lag_messages{$i})"),
    ]),
    ("By bridge", [
        graph("Messages relayed", "ops",
              ("sum by (bridge, direction) (rate(quelea_bridge_messages_total{$i}[$r]))",
               "{{bridge}} {{direction}}")),
        graph("Lag in messages", "short", ("quelea_bridge_lag_messages{$i}", "{{bridge}}")),
        graph("Lag in bytes", "bytes", ("quelea_bridge_lag_bytes{$i}", "{{bridge}}")),
        graph("Messages not relayed", "ops",
              ("sum by (bridge, direction, reason) (rate(quelea_bridge_refused_total{$i}[$r])) > 0",
               "{{bridge}} {{direction}} {{reason}}")),
        graph("Connections", "ops",
              ("sum by (bridge) (rate(quelea_bridge_attempts_total{$i}[$r]))",
               "{{bridge}} attempts"),
              ("sum by (bridge) (rate(quelea_bridge_connects_total{$i}[$r]))",
               "{{bridge}} successes")),
    ]),
]

CLUSTER = [
    ("", [
        stat("Active nodes", "short", 'sum(quelea_cluster_role{$i,role="active"})'),
        stat("Standbys", "short", 'sum(quelea_cluster_role{$i,role="standby"})'),
        stat("Epoch", "short", "max(quelea_cluster_epoch{$i})"),
        stat("Largest lag", "s", "max(quelea_cluster_lag_seconds{$i})", red=10),
        stat("Nodes without NATS", "short", "sum(1 - quelea_cluster_engine_connected{$i})", red=1),
        stat("Shards without quorum", "short", "sum(quelea_log_unavailable{$i})", red=1),
    ]),
    ("Nodes", [
        table("Roles", "short", "quelea_cluster_role{$i} == 1"),
        graph("Lag", "s", ("quelea_cluster_lag_seconds{$i}", "{{instance}}")),
        graph("Lag in messages", "short", ("quelea_cluster_lag_messages{$i}", "{{instance}}")),
        graph("Lag in bytes", "bytes", ("quelea_cluster_lag_bytes{$i}", "{{instance}}")),
        graph("Lease", "s",
              ("quelea_cluster_lease_remaining_seconds{$i}", "{{instance}} remaining")),
        graph("Takeovers and suspensions", "short",
              ("increase(quelea_cluster_takeovers_total{$i}[$r])", "{{instance}} takeovers"),
              ("increase(quelea_cluster_suspensions_total{$i}[$r])", "{{instance}} suspensions")),
        graph("Appends that NATS did not answer in time", "ops",
              ("rate(quelea_cluster_append_unknown_total{$i}[$r])", "{{instance}}")),
        graph("Messages written to the stream", "ops",
              ("max by (instance) (rate(quelea_cluster_last_message{$i}[$r]))", "{{instance}}")),
    ]),
]

NAMESPACES = [
    ("", [
        stat("Namespaces", "short", "max(quelea_namespaces{$i})"),
        stat("Clients", "short", "sum(quelea_namespace_connections{$i,$n})"),
        stat("Messages received", "ops",
             "sum(rate(quelea_namespace_messages_in_total{$i,$n}[$r]))"),
        stat("Messages sent", "ops",
             "sum(rate(quelea_namespace_messages_out_total{$i,$n}[$r]))"),
        stat("Refused at a limit, 1 h", "short",
             "sum(increase(quelea_namespace_refused_total{$i,$n}[1h]))", red=1),
    ]),
    ("By namespace", [
        graph("Clients", "short",
              ("sum by (namespace) (quelea_namespace_connections{$i,$n})", "{{namespace}}")),
        graph("Sessions", "short",
              ("sum by (namespace) (quelea_namespace_sessions{$i,$n})", "{{namespace}}")),
        graph("Messages received", "ops",
              ("sum by (namespace) (rate(quelea_namespace_messages_in_total{$i,$n}[$r]))",
               "{{namespace}}")),
        graph("Messages sent", "ops",
              ("sum by (namespace) (rate(quelea_namespace_messages_out_total{$i,$n}[$r]))",
               "{{namespace}}")),
        graph("Bytes received", "Bps",
              ("sum by (namespace) (rate(quelea_namespace_bytes_in_total{$i,$n}[$r]))",
               "{{namespace}}")),
        graph("Bytes sent", "Bps",
              ("sum by (namespace) (rate(quelea_namespace_bytes_out_total{$i,$n}[$r]))",
               "{{namespace}}")),
        graph("Connects", "ops",
              ("sum by (namespace) (rate(quelea_namespace_connects_total{$i,$n}[$r]))",
               "{{namespace}}")),
        graph("Refused or throttled by limit", "ops",
              ("sum by (namespace, limit) (rate(quelea_namespace_refused_total{$i,$n}[$r])) > 0",
               "{{namespace}} {{limit}}")),
        graph("Memory of queued messages", "bytes",
              ("sum by (namespace) (quelea_namespace_queued_bytes{$i,$n})", "{{namespace}}")),
        graph("Memory of sessions", "bytes",
              ("sum by (namespace) (quelea_namespace_session_bytes{$i,$n})", "{{namespace}}")),
        graph("Bytes in the logs", "bytes",
              ("sum by (namespace) (quelea_namespace_logged_bytes{$i,$n})", "{{namespace}}")),
        graph("Retained messages", "short",
              ("sum by (namespace) (quelea_namespace_retained_messages{$i,$n})",
               "{{namespace}}")),
        graph("Bytes of retained messages", "bytes",
              ("sum by (namespace) (quelea_namespace_retained_bytes{$i,$n})", "{{namespace}}")),
        graph("Subscriptions", "short",
              ("sum by (namespace) (quelea_namespace_subscriptions{$i,$n})", "{{namespace}}")),
    ]),
]

ROUTING = [
    ("", [
        stat("Messages delivered", "ops",
             'sum(rate(quelea_rule_messages_total{$i,outcome="delivered"}[$r]))'),
        stat("Lag", "short",
             "sum(quelea_rule_pending_messages{$i}) + sum(quelea_rule_in_flight_messages{$i})"),
        stat("Longest lag", "s", "max(quelea_rule_lag_seconds{$i})"),
        stat("Rules on probation", "short", 'sum(quelea_rule_state{$i,state="probation"})', red=1),
        stat("Not delivered, 1 h", "short",
             "sum(increase(quelea_rule_messages_total"
             '{$i,outcome=~"dead_lettered|given_up|dropped_.*"}[1h]))', red=1),
        stat("Streams full or failed", "short",
             "sum(quelea_stream_full{$i}) + sum(quelea_stream_write_fault{$i})", red=1),
    ]),
    ("Streams", [
        graph("Messages stored", "ops",
              ("sum by (stream) (rate(quelea_stream_stored_messages_total{$i}[$r]))", "{{stream}}")),
        graph("Messages in files and in the log", "short",
              ("sum by (stream) (quelea_stream_file_messages{$i})", "{{stream}} files"),
              ("sum by (stream) (quelea_stream_log_messages{$i})", "{{stream}} log")),
        graph("Bytes of files", "bytes",
              ("sum by (stream) (quelea_stream_file_bytes{$i})", "{{stream}}")),
        graph("Memory of messages that are in no file yet", "bytes",
              ("quelea_streams_memory_bytes{$i}", "{{instance}}")),
        graph("Streams that refuse messages or cannot write", "short",
              ("sum by (stream) (quelea_stream_full{$i}) > 0", "{{stream}} full"),
              ("sum by (stream) (quelea_stream_write_fault{$i}) > 0", "{{stream}} failed")),
        graph("Messages without an acknowledgement that were not stored", "ops",
              ("sum(rate(quelea_stream_messages_unstored_total{$i}[$r]))", "not stored")),
    ]),
    ("Rules", [
        graph("Lag in messages", "short",
              ("sum by (rule) (quelea_rule_pending_messages{$i})", "{{rule}} pending"),
              ("sum by (rule) (quelea_rule_in_flight_messages{$i})", "{{rule}} in flight")),
        graph("Lag in seconds", "s", ("max by (rule) (quelea_rule_lag_seconds{$i})", "{{rule}}"),
              description="Age of the oldest message without an outcome."),
        graph("Messages delivered", "ops",
              ('sum by (rule) (rate(quelea_rule_messages_total{$i,outcome="delivered"}[$r]))',
               "{{rule}}")),
        graph("Messages not delivered, by reason", "ops",
              ("sum by (rule, outcome) (rate(quelea_rule_messages_total"
               '{$i,outcome=~"dead_lettered|given_up|dropped_.*"}[$r])) > 0',
               "{{rule}} {{outcome}}")),
        graph("Messages not for the rule, or skipped", "ops",
              ("sum by (rule, outcome) (rate(quelea_rule_messages_total"
               '{$i,outcome=~"not_matched|skipped_.*"}[$r])) > 0', "{{rule}} {{outcome}}")),
        graph("Batches", "ops",
              ("sum by (rule) (rate(quelea_rule_batches_total{$i}[$r]))", "{{rule}} sent"),
              ("sum by (rule) (rate(quelea_rule_failed_batches_total{$i}[$r])) > 0",
               "{{rule}} not accepted"),
              description="A batch that is not accepted is sent again or halved."),
        graph("Messages of a batch", "short",
              ("sum by (rule) (rate(quelea_rule_sent_messages_total{$i}[$r])) "
               "/ sum by (rule) (rate(quelea_rule_batches_total{$i}[$r]))", "{{rule}}")),
        graph("Rules by state", "short",
              ("sum by (state) (quelea_rule_state{$i})", "{{state}}")),
        table("State of each rule", "short", 'quelea_rule_state{$i,rule!=""} == 1'),
    ]),
]

# File and title, rows, and whether namespaces can be chosen.
DASHBOARDS = {
    "overview": ("quelea: overview", OVERVIEW, False),
    "clients": ("quelea: clients and sessions", CLIENTS, False),
    "durability": ("quelea: durability and disk", DURABILITY, False),
    "bridges": ("quelea: bridges", BRIDGES, False),
    "routing": ("quelea: streams and rules", ROUTING, False),
    "cluster": ("quelea: cluster", CLUSTER, False),
    "namespaces": ("quelea: namespaces", NAMESPACES, True),
}


def variable(name, label, metric, **more):
    query = f"label_values({metric}, {name})"
    return {"name": name, "label": label, "type": "query", "refresh": 2, "sort": 1,
            "datasource": {"type": "prometheus", "uid": "${source}"},
            "query": {"query": query, "refId": "A"}, "definition": query, **more}


def every(name, label, metric):
    """All values are chosen at first."""
    return variable(name, label, metric, multi=True, includeAll=True,
                    current={"text": ["All"], "value": ["$__all"]})


def expanded(expression):
    chosen = {"$i": INSTANCE, "$n": 'namespace=~"$namespace"', "$r": INTERVAL}
    for short, long in (("{$i", "{" + chosen["$i"]), (",$n", "," + chosen["$n"]),
                        ("[$r]", "[" + chosen["$r"] + "]")):
        expression = expression.replace(short, long)
    return expression


def field_config(panel):
    defaults = {"unit": panel["unit"]}
    if panel["type"] == "timeseries":
        defaults |= {"min": 0, "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}}
    if panel.get("red") is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel["red"]}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {"defaults": defaults, "overrides": []}


def options(panel):
    if panel["type"] == "stat":
        is_coloured = panel["red"] is not None
        return {"reduceOptions": {"calcs": ["lastNotNull"]},
                "colorMode": "background" if is_coloured else "value",
                "graphMode": "none" if is_coloured else "area"}
    if panel["type"] == "table":
        return {"showHeader": True}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def target(number, panel, expression, legend):
    is_table = panel["type"] == "table"
    return {"refId": chr(ord("A") + number), "expr": expanded(expression),
            "legendFormat": legend, "instant": is_table, "range": not is_table,
            "format": "table" if is_table else "time_series"}


def drawn(panel, place):
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [target(number, panel, *one) for number, one in enumerate(panel["targets"])]
    made = {"type": panel["type"], "title": panel["title"], "gridPos": place, "datasource": source,
            "fieldConfig": field_config(panel), "options": options(panel), "targets": targets}
    if panel["description"]:
        made["description"] = panel["description"]
    return made


def laid_out(rows):
    panels, y = [], 0
    for title, row in rows:
        if title:
            place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
            panels.append({"type": "row", "title": title, "gridPos": place, "collapsed": False,
                           "panels": []})
            y += 1
        is_stats = row[0]["type"] == "stat"
        width = WIDTH // len(row) if is_stats else WIDTH // 2
        height = STAT_HEIGHT if is_stats else HEIGHT
        for number, panel in enumerate(row):
            column = number % (WIDTH // width)
            place = {"x": column * width, "y": y, "w": width, "h": height}
            panels.append(drawn(panel, place))
            if column == WIDTH // width - 1 or number == len(row) - 1:
                y += height
    for number, panel in enumerate(panels):
        panel["id"] = number + 1
    return panels


def dashboard(name, title, rows, has_namespaces):
    source = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    job = variable("job", "Job", "quelea_build_info")
    variables = [source, job, every("instance", "Instance", 'quelea_build_info{job="$job"}')]
    if has_namespaces:
        variables.append(every("namespace", "Namespace",
                               'quelea_namespace_connections{job="$job"}'))
    link = {"type": "dashboards", "tags": ["quelea"], "title": "quelea", "asDropdown": True,
            "includeVars": True, "keepTime": True}
    return {"uid": f"quelea-{name}", "title": title, "tags": ["mqtt", "quelea"],
            "schemaVersion": 39, "version": 1, "editable": True, "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"}, "links": [link],
            "templating": {"list": variables}, "panels": laid_out(rows)}


def main():
    stale = []
    for name, (title, rows, has_namespaces) in DASHBOARDS.items():
        path = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(name, title, rows, has_namespaces), indent=1) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
    if stale and "--check" in sys.argv[1:]:
        print(f"stale: {', '.join(stale)}: run packaging/observability/dashboards.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
