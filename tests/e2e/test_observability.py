"""Rules and dashboards of packaging/observability before a real Prometheus that scrapes real programs."""

import itertools
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from broker import PATIENCE_SECS, ROOT, eventually
from test_cluster_process import configured, early, make_cluster, nats  # noqa: F401
from test_live_figures import FLOCK, SCENARIO
from wire import CONNACK, Peer, connect, fresh, publish

sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402

FILES = ROOT / "packaging/observability"
RULES = FILES / "quelea.rules.yml"
# Where tests/setup puts the programs.
OWN = Path(__file__).resolve().parent / ".prometheus"

BROKER = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
url = "tls://127.0.0.1:0"
tls.certificate = "{dir}/server.crt"
tls.key = "{dir}/server.key"
[auth]
password_file = "{dir}/passwords"
[[namespaces]]
name = "red"
[api]
listen = "http"
[self_check]
interval_secs = 1
# No broker listens at port 1.
[[bridges]]
name = "cloud"
addresses = ["tcp://127.0.0.1:1"]
[[bridges.topics]]
filter = "#"
direction = "out"
remote_prefix = "x/"
[routing]
file = "{dir}/rules.toml"
"""

ROUTING = """
[[streams]]
name = "plants"
filters = ["plants/#"]
[[targets]]
name = "alarms"
type = "http"
url = "https://alarms.invalid/in"
[[rules]]
name = "overheated"
filter = "plants/#"
target = "alarms"
"""


def program(name):
    found = shutil.which(name) or (str(OWN / name) if (OWN / name).exists() else None)
    if found is None:
        pytest.skip(f"no {name}: tests/setup takes it out of the Debian package prometheus")
    return found


class Prometheus:
    """A server with the rules, which scrapes `ports` as the job `quelea`."""

    def __init__(self, directory, ports):
        (self.port,) = free_ports(1)
        rules = directory / "rules.yml"
        shutil.copy(RULES, rules)
        targets = [f"127.0.0.1:{port}" for port in ports]
        scrape = {"job_name": "quelea", "static_configs": [{"targets": targets}]}
        intervals = {"scrape_interval": "500ms", "evaluation_interval": "500ms",
                     "scrape_timeout": "500ms"}
        config = directory / "prometheus.yml"
        config.write_text(json.dumps({"global": intervals, "rule_files": [str(rules)],
                                      "scrape_configs": [scrape]}))
        command = [program("prometheus"), f"--config.file={config}",
                   f"--storage.tsdb.path={directory}/tsdb",
                   f"--web.listen-address=127.0.0.1:{self.port}"]
        self.log = directory / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(self.is_ready, "the start of Prometheus")

    def is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("targets")["activeTargets"]
        except OSError:
            return False

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from error

    def series(self, expression):
        return self.ask("query", query=expression)["result"]

    def rules(self):
        groups = self.ask("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alerts(self):
        return {alert["labels"]["alertname"]: alert for alert in self.ask("alerts")["alerts"]}

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def prometheus(tmp_path):
    servers = []

    def start(*ports):
        program("prometheus")
        directory = tmp_path / "prometheus"
        directory.mkdir()
        servers.append(Prometheus(directory, ports))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def dashboards():
    return sorted((FILES / "grafana").glob("*.json"))


def expressions(path):
    """What a dashboard asks for, with values for its variables."""
    panels = json.loads(path.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for name, value in (("$job", "quelea"), ("$instance", ".*"), ("$namespace", ".*"),
                        ("$__rate_interval", "1m")):
        found = [one.replace(name, value) for one in found]
    assert found and not any("$" in one for one in found), path
    return found


SELECTOR = re.compile(r"\b(?:quelea|process|flock|up|instance(?:_reason)?:)[a-z0-9_:]*(?:\{[^}]*\})?")


def selectors(expression):
    """The metrics that an expression reads, with their labels."""
    lists = re.compile(r"\b(?:by|on|without|ignoring|group_left) ?\([^)]*\)")
    return SELECTOR.findall(lists.sub("", expression))


def asked(server, of_cluster):
    """All expressions of rules and dashboards, and those selectors that the cluster has or not."""
    found = [rule["query"] for rule in server.rules()]
    found += itertools.chain.from_iterable(expressions(path) for path in dashboards())
    chosen = {one for text in found for one in selectors(text)}
    return found, {one for one in chosen if one.startswith("quelea_cluster") == of_cluster}


def await_series(server, wanted):
    """Each selector has a series: its metric exists, and its labels have these values."""
    def missing():
        return {one for one in wanted if not server.series(one)}

    assert len(wanted) > 5
    eventually(lambda: not missing(), f"series of {sorted(missing())}")


def test_dashboards_are_up_to_date():
    done = subprocess.run([sys.executable, FILES / "dashboards.py", "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: path.stem)
def test_panels_have_ids_of_their_own_and_do_not_overlap(path):
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = set(itertools.product(range(place["x"], place["x"] + place["w"]),
                                      range(place["y"], place["y"] + place["h"])))
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_rules_and_dashboards_read_what_a_broker_has(start, certs, passwords, prometheus):
    files = {name: (certs / name).read_text() for name in ("server.crt", "server.key")}
    broker = start(BROKER, {**files, "passwords": passwords, "rules.toml": ROUTING})
    with Peer(broker.port()) as kept, Peer(broker.port()) as refused:
        kept.accepted(client_id=fresh("kept"), clean=False, properties=b"\x11\xff\xff\xff\xff")
        kept.subscribed("a/#", 1)
        kept.send(publish("a/b", b"x" * 1000, qos=1, retain=True))
        refused.send(connect(client_id=fresh("anna"), user="anna", password="wrong"))
        assert refused.expect(CONNACK)[1] == 0x87
        server = prometheus(broker.port("http"))
        texts, wanted = asked(server, of_cluster=False)
        await_series(server, wanted)
    for text in texts:
        server.series(text)
    # The certificates of the tests are valid for two days.
    eventually(lambda: "QueleaCertificateExpires" in server.alerts(), "the alert of certificates")
    alert = server.alerts()["QueleaCertificateExpires"]
    assert re.search(r"tls://.* expires in 1d ", alert["annotations"]["summary"]), alert
    assert set(server.alerts()) <= {"QueleaBridgeDown", "QueleaCertificateExpires", "QueleaConnectsRefused"}
    broker.kill()
    eventually(lambda: "QueleaDown" in server.alerts(), "the alert of the end")


def test_rules_and_dashboards_read_what_a_cluster_has(nats, tmp_path, early, prometheus):  # noqa: F811
    make_cluster(nats, tmp_path)
    active = early(configured(nats, "n1"))
    eventually(lambda: (active.try_get("/readyz") or (0,))[0] == 200, "an active node")
    standby = early(configured(nats, "n2"))
    server = prometheus(active.port("http"), standby.port("http"))
    _, wanted = asked(server, of_cluster=True)
    await_series(server, wanted)
    one_of_each = 'sum(quelea_cluster_role{role="active"}) + sum(quelea_cluster_role{role="standby"}) == 2'
    eventually(lambda: server.series(one_of_each), "one active node and one standby")
    assert "QueleaClusterNotServed" not in server.alerts()


def test_the_dashboard_of_flock_reads_what_a_run_has(plain, prometheus, tmp_path):
    scenario = tmp_path / "live.toml"
    scenario.write_text(SCENARIO.replace("count = 50", "count = 5000"))
    (port,) = free_ports(1)
    command = [FLOCK, "run", scenario, "--broker", f"127.0.0.1:{plain.port()}", "--quiet"]
    command += ["--pid", str(plain.process.pid), "--prometheus", f"127.0.0.1:{port}"]
    command += ["--threads", "1", "--out", tmp_path, "--name", "live"]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = prometheus(port)
        texts = expressions(ROOT / "docs/flock/grafana.json")
        await_series(server, {one for text in texts for one in selectors(text)})
        for text in texts:
            server.series(text)
    finally:
        load.kill()
        load.wait()


# What a healthy broker reports: name, labels, and one value per minute for an hour.
HEALTHY = {
    "up": "1x60",
    "process_start_time_seconds": "1x60",
    'quelea_self_check_success{listener="tcp://*:1883"}': "1x60",
    "process_open_fds": "10x60",
    "process_max_fds": "1000x60",
    "quelea_events_lost_total": "0x60",
    "quelea_logging_lines_lost_total": "0x60",
    'quelea_messages_dropped_total{reason="queue_full"}': "0x60",
    'quelea_messages_dropped_total{reason="slow_subscriber"}': "0x60",
    'quelea_messages_dropped_total{reason="offline"}': "0+1000x60",
    "quelea_publishes_refused_total": "0x60",
    "quelea_retained_refused_total": "0x60",
    "quelea_queued_messages": "20000x60",
    'quelea_memory_shortages_total{stage="tight"}': "0x60",
    'quelea_memory_shortages_total{stage="out"}': "0x60",
    "quelea_memory_held_bytes": "80x60",
    "quelea_memory_limit_bytes": "100x60",
    "quelea_incoming_cuts_total": "0x60",
    "quelea_memory_cuts_total": "0x60",
    "quelea_sessions_refused_total": "0x60",
    "quelea_log_poisoned": "0x60",
    "quelea_log_full": "0x60",
    'quelea_log_live_bytes{shard="0"}': "80x60",
    'quelea_log_live_limit_bytes{shard="0"}': "100x60",
    "quelea_log_damaged": "0x60",
    "quelea_log_unavailable": "0x60",
    'quelea_log_commit_seconds_bucket{le="0.1"}': "0+10x60",
    'quelea_log_commit_seconds_bucket{le="2"}': "0+10x60",
    'quelea_log_commit_seconds_bucket{le="+Inf"}': "0+10x60",
    'quelea_worker_turn_seconds_bucket{le="0.01"}': "0+10x60",
    'quelea_worker_turn_seconds_bucket{le="1"}': "0+10x60",
    'quelea_worker_turn_seconds_bucket{le="+Inf"}': "0+10x60",
    'quelea_certificate_expiry_timestamp_seconds{listener="tls://*:8883"}': "2000000x60",
    'quelea_connects_refused_total{listener="l",code="0x86",reason="bad"}': "0+10x60",
    'quelea_connections_turned_away_total{listener="l",reason="handshake"}': "0+10x60",
    'quelea_connections_turned_away_total{listener="l",reason="resources"}': "0x60",
    "quelea_api_logins_refused_total": "0x60",
    'quelea_bridge_connected{bridge="cloud"}': "1x60",
    'quelea_bridge_lag_messages{bridge="cloud"}': "1000x60",
    'quelea_rule_pending_messages{rule="r"}': "5x60",
    'quelea_rule_in_flight_messages{rule="r"}': "5x60",
    'quelea_rule_messages_total{rule="r",outcome="delivered"}': "0+10x60",
    'quelea_rule_messages_total{rule="r",outcome="given_up"}': "0x60",
    'quelea_stream_full{stream="s"}': "0x60",
    'quelea_stream_write_fault{stream="s"}': "0x60",
    'quelea_cluster_role{role="active"}': "1x60",
    'quelea_cluster_role{role="standby"}': "1x60",
    "quelea_cluster_engine_connected": "1x60",
    "quelea_cluster_lag_seconds": "1x60",
    "quelea_cluster_suspensions_total": "0x60",
}

# For each alert: what differs from a healthy broker, and minutes at which it does not fire and does.
# A value changes at minute 5.
ALERTS = {
    "QueleaDown": ({"up": "1x4 0x60"}, 5, 6),
    "QueleaRestarts": ({"process_start_time_seconds": "1x4 2 3 4x60"}, 6, 7),
    "QueleaSelfCheckFails": (
        {'quelea_self_check_success{listener="tcp://*:1883"}': "1x4 0x60"}, 6, 7),
    "QueleaWorkersBusy": ({'quelea_worker_turn_seconds_bucket{le="0.01"}': "0x60"}, 8, 13),
    "QueleaOpenFiles": ({"process_open_fds": "900x4 901x60"}, 9, 10),
    "QueleaLogLinesLost": ({"quelea_logging_lines_lost_total": "0x4 1x60"}, 4, 5),
    "QueleaMessagesLost": (
        {'quelea_messages_dropped_total{reason="queue_full"}': "0x4 1x60"}, 5, 7),
    "QueleaSlowSubscribers": (
        {'quelea_messages_dropped_total{reason="slow_subscriber"}': "0+61x60"}, 15, 22),
    "QueleaPublishesRefused": ({"quelea_retained_refused_total": "0x4 0+1x60"}, 9, 11),
    "QueleaQueuesGrow": ({"quelea_queued_messages": "10001+1x60"}, 29, 34),
    "QueleaMemoryHigh": ({"quelea_memory_held_bytes": "80x4 81x60"}, 14, 15),
    "QueleaMemoryPressure": (
        {'quelea_memory_shortages_total{stage="tight"}': "0x4 1x60"}, 4, 5),
    "QueleaMemoryOut": ({"quelea_memory_cuts_total": "0x4 1x60"}, 4, 5),
    "QueleaSessionsRefused": ({"quelea_sessions_refused_total": "0x4 1x60"}, 4, 5),
    "QueleaLogFailed": ({"quelea_log_poisoned": "0x4 1x60"}, 4, 5),
    "QueleaLogSpace": ({'quelea_log_live_bytes{shard="0"}': "80x4 81x60"}, 9, 10),
    "QueleaLogFull": ({"quelea_log_full": "0x4 1x60"}, 4, 5),
    "QueleaLogDamaged": ({"quelea_log_damaged": "0x4 1x60"}, 9, 10),
    "QueleaCommitsSlow": ({'quelea_log_commit_seconds_bucket{le="0.1"}': "0x60"}, 8, 13),
    # The clock of these tests begins at 0: two weeks and five minutes.
    "QueleaCertificateExpires": (
        {'quelea_certificate_expiry_timestamp_seconds{listener="tls://*:8883"}': "1209900x60"},
        5, 6),
    "QueleaCertificateExpired": (
        {'quelea_certificate_expiry_timestamp_seconds{listener="tls://*:8883"}': "300x60"}, 5, 6),
    "QueleaConnectsRefused": (
        {'quelea_connects_refused_total{listener="l",code="0x86",reason="bad"}': "0+61x60"}, 10, 17),
    "QueleaHandshakesFail": (
        {'quelea_connections_turned_away_total{listener="l",reason="handshake"}': "0+61x60"},
        10, 17),
    "QueleaNoResources": (
        {'quelea_connections_turned_away_total{listener="l",reason="resources"}': "0x4 1x60"},
        4, 5),
    "QueleaApiLoginsRefused": ({"quelea_api_logins_refused_total": "0+13x60"}, 10, 17),
    "QueleaBridgeDown": ({'quelea_bridge_connected{bridge="cloud"}': "1x4 0x60"}, 9, 10),
    "QueleaBridgeLag": ({'quelea_bridge_lag_messages{bridge="cloud"}': "1000x4 1001x60"}, 14, 15),
    "QueleaRuleStalled": (
        {'quelea_rule_messages_total{rule="r",outcome="delivered"}': "0+10x4 40x60"}, 17, 20),
    "QueleaRuleMessagesLost": (
        {'quelea_rule_messages_total{rule="r",outcome="given_up"}': "0x4 1x60"}, 4, 5),
    "QueleaStreamFull": ({'quelea_stream_full{stream="s"}': "0x4 1x60"}, 5, 6),
    "QueleaStreamWriteFault": ({'quelea_stream_write_fault{stream="s"}': "0x4 1x60"}, 5, 6),
    "QueleaClusterNotServed": ({'quelea_cluster_role{role="active"}': "1x4 0x60"}, 5, 6),
    "QueleaClusterWithoutStandby": ({'quelea_cluster_role{role="standby"}': "1x4 0x60"}, 9, 10),
    "QueleaClusterNatsLost": ({"quelea_cluster_engine_connected": "1x4 0x60"}, 5, 6),
    "QueleaClusterLag": ({"quelea_cluster_lag_seconds": "10x4 11x60"}, 5, 6),
    "QueleaClusterNoQuorum": ({"quelea_log_unavailable": "0x4 1x60"}, 5, 6),
    "QueleaClusterSuspended": ({"quelea_cluster_suspensions_total": "0x4 1x60"}, 4, 5),
}
# These fire together.
ALSO = {"QueleaCertificateExpired": ["QueleaCertificateExpires"]}


def labelled(series):
    name, _, labels = series.partition("{")
    return f'{name}{{job="quelea",instance="a",{labels.rstrip("}")}}}'


def case(alert):
    differs, quiet, fires = ALERTS[alert]
    assert set(differs) <= set(HEALTHY), alert
    series = [{"series": labelled(name), "values": values}
              for name, values in {**HEALTHY, **differs}.items()]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    others = ALSO.get(alert, [])
    one = lambda name: {"labels": f'{{alertname="{name}"}}', "value": 1}  # noqa: E731
    after = [one(name) for name in sorted([alert, *others])]
    before = [one(name) for name in others]
    return {"name": alert, "interval": "1m", "input_series": series, "promql_expr_test": [
        {"expr": expression, "eval_time": f"{quiet}m", "exp_samples": before},
        {"expr": expression, "eval_time": f"{fires}m", "exp_samples": after},
    ]}


def test_each_alert_fires_for_its_reason_and_no_other(tmp_path):
    """HEALTHY alone fires none: each case says so of all alerts but its own."""
    text = RULES.read_text()
    assert set(re.findall(r"- alert: (\w+)", text)) == set(ALERTS)
    groups = re.findall(r"- name: ([\w-]+)", text)
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({
        "rule_files": [str(RULES)], "evaluation_interval": "1m", "group_eval_order": groups,
        "tests": [case(alert) for alert in ALERTS],
    }))
    command = [program("promtool"), "test", "rules", cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_example_configuration():
    command = [program("promtool"), "check", "config", FILES / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
