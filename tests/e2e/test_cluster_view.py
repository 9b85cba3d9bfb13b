"""What operators see of a cluster: API, probes, metrics and log lines of real nodes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from broker import QUELEA, eventually

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from lab import NODES, ROOT, Lab  # noqa: E402


class Operated(Lab):
    """Nodes with the management API on the port of the probes."""

    def broker_config(self, node):
        return super().broker_config(node) + '[api]\nlisten = "http"\n'

    def token_file(self, node):
        return self.directory / f"node{node + 1}" / "data" / "api.token"

    def ask(self, node, method, path, status=200, body=None, token_of=None):
        """The answer of the API, which has to have this status. `token_of`: another node."""
        tokens = self.token_file(node if token_of is None else token_of)
        url = f"http://127.0.0.1:{self.http_ports[node]}/api/v1{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method)
        request.add_header("Authorization", "Bearer " + tokens.read_text().splitlines()[0])
        if data:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                found, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            found, text = error.code, error.read()
        assert found == status, text
        return json.loads(text) if text else None

    def metrics(self, node):
        url = f"http://127.0.0.1:{self.http_ports[node]}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in values}

    def log(self, node):
        return (self.directory / f"node{node + 1}" / "log").read_text()

    def send(self, name, number):
        self.processes[name].send_signal(number)


def _why_not():
    named = os.environ.get("QUELEA_NATS_SERVER")
    if named or (ROOT / "target/nats/nats-server").exists():
        return None
    return "no NATS server: set QUELEA_NATS_SERVER, or run tests/nats"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if why := _why_not():
        print(why)
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("cluster")
    with Operated(directory / "lab", QUELEA) as lab:
        lab.start()
        yield lab
    shutil.rmtree(directory, ignore_errors=True)


def roles(lab, node):
    return {it["node"]: it["role"] for it in lab.ask(node, "GET", "/cluster")["nodes"]}


def settled(lab):
    """The active node, once every node names it and has caught up."""

    def look():
        active = lab.active()
        if active is None:
            return None
        for node in range(NODES):
            try:
                shown = lab.ask(node, "GET", "/cluster")
            except (OSError, AssertionError):
                return None  # it starts again
            whole = [it["caught_up"] for of in shown["nodes"] for it in of["shards"]]
            others = [of["role"] for of in shown["nodes"]].count("standby")
            if len(shown["nodes"]) != NODES or not all(whole) or others != NODES - 1:
                return None
        return (active,)

    return eventually(look, "a settled cluster")[0]


def test_every_node_shows_the_same_cluster(lab):
    active = settled(lab)
    lab.ask(active, "PUT", "/retained/message?topic=seen", body={"payload": "x"})
    for node in range(NODES):
        shown = lab.ask(node, "GET", "/cluster")
        assert shown["node"] == f"node{node + 1}"
        assert shown["active"] == f"node{active + 1}"
        assert shown["active_address"].endswith(str(lab.mqtt_ports[active]))
        assert shown["engine_connected"] and shown["epoch"] > 0
        assert (shown["lease_remaining_seconds"] > 0) == (node == active)

    def none_lags():
        shown = lab.ask(active, "GET", "/cluster")["nodes"]
        return all(it["lag_messages"] == 0 and it["lag_bytes"] == 0 for it in shown)

    eventually(none_lags, "the end of all lags")


def test_the_token_of_one_node_opens_the_api_of_every_node(lab):
    settled(lab)
    for node in range(NODES):
        assert lab.token_file(node).stat().st_mode & 0o777 == 0o600
        for other in range(NODES):
            assert lab.ask(node, "GET", "/caller", token_of=other)["role"] == "admin"


def test_a_standby_is_only_read_and_names_the_active_node(lab):
    active = settled(lab)
    standby = (active + 1) % NODES
    refused = [
        ("GET", "/clients", None),
        ("GET", "/bans", None),
        ("DELETE", "/clients/nobody", None),
        ("POST", "/bans", {"kind": "client", "who": "x"}),
        ("POST", "/listeners/pause?name=x", None),
        ("PUT", "/settings/sys.interval_secs", {"value": "7"}),
        ("DELETE", "/settings/sys.interval_secs", None),
        ("POST", "/reload", None),
    ]
    settings = lab.ask(standby, "GET", "/settings")
    for method, path, body in refused:
        problem = lab.ask(standby, method, path, status=503, body=body)
        assert f"'node{active + 1}'" in problem["detail"], problem
        assert str(lab.mqtt_ports[active]) in problem["detail"], problem
    for path in ("/broker", "/listeners", "/logs", "/caller"):
        lab.ask(standby, "GET", path)
    assert lab.ask(standby, "GET", "/settings") == settings, "a refused change changes nothing"
    lab.ask(active, "PUT", "/settings/sys.interval_secs", body={"value": "7"})
    assert lab.ask(standby, "GET", "/settings") == settings, "settings are of one node"
    lab.ask(active, "DELETE", "/settings/sys.interval_secs")
    assert lab.ask(active, "GET", "/clients")["items"] == []
    broker = lab.ask(standby, "GET", "/broker")
    assert broker["state"] == "standby" and f"'node{active + 1}'" in broker["detail"]
    assert lab.ask(active, "GET", "/broker")["state"] == "ready"
    code, text = lab.readiness(standby)
    assert code == 503 and f"'node{active + 1}'" in text


def test_metrics_tell_the_role_of_each_node(lab):
    active = settled(lab)
    lab.ask(active, "PUT", "/retained/message?topic=timed", body={"payload": "x"})
    for node in range(NODES):
        values = lab.metrics(node)
        role = "active" if node == active else "standby"
        shown = {name for name, value in values.items() if "cluster_role{" in name and value == 1}
        assert shown == {f'quelea_cluster_role{{role="{role}"}}'}
        assert values["quelea_cluster_engine_connected"] == 1
        assert values["quelea_cluster_takeovers_total"] == (node == active)
        assert (values["quelea_cluster_lease_remaining_seconds"] > 0) == (node == active)
        assert 'quelea_cluster_last_message{shard="0"}' in values
    values = lab.metrics(active)
    assert values["quelea_log_commit_seconds_count"] > 0
    assert values["quelea_log_commit_seconds_sum"] > 0


def test_log_lines_tell_what_the_nodes_do_and_not_what_the_library_does(lab):
    active = settled(lab)
    assert "this node is active" in lab.log(active)
    assert "caught up with the replicated logs" in lab.log((active + 1) % NODES)
    for node in range(NODES):
        assert "event: connected" not in lab.log(node)
        assert "connected successfully" not in lab.log(node)


def test_a_planned_switchover_is_no_error(lab):
    active = settled(lab)
    before = len(lab.log(active))
    target = (active + 1) % NODES
    command = [QUELEA, "cluster", "switchover", "--config", lab.config(0), f"node{target + 1}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert settled(lab) == target
    assert lab.ask(target, "GET", "/clients", token_of=active)["items"] == []
    log = lab.log(active)[before:]
    assert "switched over" in log and "ERROR" not in log, log


def test_a_drain_moves_the_only_cell_once(lab):
    active = settled(lab)
    drain = lambda name: lab.operate("drain", name)  # noqa: E731
    unknown = drain("node9")
    assert unknown.returncode == 1 and "known nodes: node1, node2, node3" in unknown.stderr
    standby = f"node{(active + 1) % NODES + 1}"
    assert drain(standby).stdout == f"'{standby}' is not active\n"
    assert settled(lab) == active
    drained = drain(f"node{active + 1}")
    assert drained.returncode == 0, drained.stderr
    moved, done = drained.stdout.splitlines()
    assert moved.startswith(f"'node{settled(lab) + 1}' is active, epoch ")
    assert done == f"'node{active + 1}' is not active"
    assert settled(lab) != active


def test_switchovers_one_right_after_the_other_end_no_process(lab):
    settled(lab)
    command = [str(part) for part in (QUELEA, "cluster", "switchover", "--config", lab.config(0))]
    for _ in range(4):
        # Refused as long as the active node does not serve yet, or no standby has all messages.
        accepted = lambda: subprocess.run(command, capture_output=True).returncode == 0  # noqa: E731
        eventually(accepted, "a switchover")
    settled(lab)
    ended = [name for name, process in lab.processes.items() if process.poll() is not None]
    assert not ended


def test_without_a_quorum_the_active_node_is_not_ready_and_says_when_it_is_back(lab):
    active = settled(lab)
    cut = [f"nats{node + 1}" for node in range(NODES) if node != active]
    before = len(lab.log(active))
    for name in cut:
        lab.send(name, signal.SIGSTOP)
    try:
        eventually(lambda: (lab.readiness(active) or (0,))[0] == 503, "the suspension")
        code, text = lab.readiness(active)
        assert code == 503 and "lease expired: this node is suspended" in text, text
        problem = lab.ask(active, "GET", "/clients", status=503)
        assert "suspended" in problem["detail"]
        role = lambda: lab.ask(active, "GET", "/cluster")["role"]  # noqa: E731
        eventually(lambda: role() == "suspended", "the role")
        broker = lab.ask(active, "GET", "/broker")
        assert broker["state"] == "not_ready"
        assert "lease expired: this node is suspended" in broker["detail"]
        data = lab.token_file(active).parent
        command = [QUELEA, "ctl", "--data", data, "info"]
        told = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert "not_ready" in told.stdout and "suspended" in told.stdout, told
        assert lab.metrics(active)["quelea_cluster_suspensions_total"] >= 1
    finally:
        for name in cut:
            lab.send(name, signal.SIGCONT)
    eventually(lambda: lab.active() is not None, "the resumption")
    resumed = "lease renewed: this node serves again"
    eventually(lambda: resumed in lab.log(active)[before:], "the line of the resumption")
    log = lab.log(active)[before:]
    assert "lease expired: this node is suspended" in log, log
