"""A node of a cluster as a process: it starts before NATS does, and ends in order at any time."""

import json
import os
import signal
import subprocess
import sys

import pytest

from broker import ROOT, Broker, eventually
from manager import Manager
from test_access import may_publish
from test_cluster_directory import BASE, Standby, cluster, done, nats_server
from wire import Peer

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402


class Nats:
    """A NATS server of one machine, with a port and a store that outlive it."""

    def __init__(self, directory):
        self.directory, self.port = directory, free_ports(1)[0]
        self.url = f"nats://127.0.0.1:{self.port}"
        directory.mkdir()
        self.config = directory / "nats.conf"
        self.config.write_text(f"""
server_name: alone
listen: "127.0.0.1:{self.port}"
jetstream {{ store_dir: "{directory}/js", sync_interval: always }}
""")
        self.process = None

    def start(self):
        with (self.directory / "log").open("ab") as log:
            command = [nats_server(), "-c", self.config]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def nats(tmp_path):
    """Not started yet."""
    nats_server()
    server = Nats(tmp_path / "nats")
    yield server
    server.stop()


class Early(Broker):
    """A node that nobody waits for: its HTTP port is known before it answers."""

    def __init__(self, config, **others):
        self.http_port = free_ports(1)[0]
        config += f'[http]\nlisten = "127.0.0.1:{self.http_port}"\n'
        super().__init__(config, **others)

    def _wait_until_ready(self):
        pass

    def port(self, scheme="tcp", nth=0):
        return self.http_port if scheme == "http" else super().port(scheme, nth)

    def try_get(self, path):
        """Status and body; None: nobody answers now."""
        try:
            return self.get(path)
        except OSError:
            return None

    def says(self, event):
        return any(event == line["message"] for line in self.log)


def configured(nats, node):
    servers = f'servers = ["{nats.url}"]'
    return f'{BASE}[cluster]\nname = "plant"\nnode = "{node}"\n{servers}\n'


def make_cluster(nats, tmp_path):
    """Leaves NATS running."""
    config = tmp_path / "init.toml"
    config.write_text(configured(nats, "init"))
    nats.start()
    accept = ("--allow-unreplicated", "--allow-unsynced")
    made = lambda: cluster(config, "init", *accept)  # noqa: E731
    done(eventually(lambda: (ran := made()).returncode == 0 and ran, "the start of NATS"))
    return config


@pytest.fixture
def early():
    """Starts nodes, and stops them at the end of the test."""
    nodes = []

    def start(config, kind=Early, **others):
        nodes.append(kind(config, **others))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def test_a_node_answers_probes_before_nats_does(nats, tmp_path, early):
    make_cluster(nats, tmp_path)
    nats.stop()
    node = early(configured(nats, "n1"))
    reason = f"cannot reach NATS at {nats.url}"
    eventually(lambda: reason in (node.try_get("/readyz") or (0, ""))[1], "the reason")
    assert node.get("/readyz")[0] == 503
    assert node.get("/healthz")[0] == 200
    assert node.metrics()["quelea_cluster_engine_connected"] == 0
    status, body = node.get("/api/v1/broker")
    assert status == 503 and reason in json.loads(body)["detail"]
    nats.start()
    eventually(lambda: (node.try_get("/readyz") or (0,))[0] == 200, "the node's being ready")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_waits_for_nats_ends_in_order(nats, early, number):
    node = early(configured(nats, "n1"))
    eventually(lambda: node.try_get("/readyz"), "an answer")
    node.process.send_signal(number)
    assert node.wait() == 0
    assert node.says("stopping") and node.says("stopped")
    assert node.try_get("/healthz") is None


def test_a_cluster_that_was_not_made_yet_is_fatal(nats, early):
    node = early(configured(nats, "n1"))
    eventually(lambda: node.try_get("/readyz"), "an answer")
    nats.start()
    assert node.wait() == 1
    assert "does not exist: run `quelea cluster init`" in node.log_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_standby_ends_in_order(nats, tmp_path, early, number):
    config = make_cluster(nats, tmp_path)
    active = early(configured(nats, "n1"))
    eventually(lambda: (active.try_get("/readyz") or (0,))[0] == 200, "an active node")
    standby = early(configured(nats, "n2"), Standby)
    standby.wait_for_log(lambda event: "caught up" in event["message"])
    standby.process.send_signal(number)
    assert standby.wait() == 0
    last = [line["message"] for line in standby.log[-3:]]
    assert last[-1] == "stopped" and "stopping" in last
    assert active.get("/readyz")[0] == 200
    # It goes on where it was.
    standby._launch()
    standby.wait_for_log(lambda event: "caught up" in event["message"])
    assert not any("read again from the stream" in line["message"] for line in standby.log)
    # The role goes to it, and it ends in order as the active node.
    active.terminate()
    assert active.wait() == 0
    standby.wait_for_log(lambda event: event["message"] == "ready")
    os.kill(standby.process.pid, number)
    assert standby.wait() == 0
    assert json.loads(done(cluster(config, "status", "--json")))["nodes"] == []


def followed(nats, tmp_path, early):
    """An active node, and a standby that has caught up."""
    make_cluster(nats, tmp_path)
    active = early(configured(nats, "n1"))
    eventually(lambda: (active.try_get("/readyz") or (0,))[0] == 200, "an active node")
    standby = early(configured(nats, "n2"), Standby)
    standby.wait_for_log(lambda event: "caught up" in event["message"])
    return active, standby


def test_a_node_that_takes_over_ends_in_order(nats, tmp_path, early):
    active, standby = followed(nats, tmp_path, early)
    active.kill()
    standby.wait_for_log(lambda event: "takes over" in event["message"])
    standby.terminate()
    assert standby.wait() == 0
    assert any(line["message"] == "stopped" for line in standby.log)


def test_a_node_that_cannot_write_its_files_does_not_keep_the_role(nats, tmp_path, early):
    active, standby = followed(nats, tmp_path, early)
    (standby.data / "auth.secret").mkdir()
    active.kill()
    told = standby.wait_for_log(lambda event: event["message"] == "restarting as a standby")
    assert str(standby.data / "auth.secret") in told["detail"]
    (standby.data / "auth.secret").rmdir()
    standby.wait_for_log(lambda event: event["message"] == "ready")


def test_a_standby_says_what_sighup_reloads(nats, tmp_path, early):
    _, standby = followed(nats, tmp_path, early)
    standby.process.send_signal(signal.SIGHUP)
    standby.wait_for_log(lambda event: "read when this node becomes active" in event["message"])


def test_a_takeover_serves_by_the_rules_of_now(nats, tmp_path, early):
    make_cluster(nats, tmp_path)
    config = '[access]\nacl_file = "{dir}/acl"\n'
    config, files = configured(nats, "n1") + config, {"acl": "topic read garden/#\n"}
    active = early(config, files=files)
    eventually(lambda: (active.try_get("/readyz") or (0,))[0] == 200, "an active node")
    standby = early(config.replace('"n1"', '"n2"'), Standby, files=files)
    standby.wait_for_log(lambda event: "caught up" in event["message"])
    (standby.directory / "acl").write_text("topic readwrite garden/#\n")
    active.kill()
    standby.wait_for_log(lambda event: event["message"] == "ready")
    with Peer(int(standby.wait_for_log(listens)["url"].rsplit(":", 1)[1])) as peer:
        peer.accepted(client_id="gardener")
        assert may_publish(peer, "garden/lamp")


def listens(event):
    return event["message"] == "listening" and event["url"].startswith("tcp:")


def test_a_log_in_that_nats_refuses_is_fatal(nats, early):
    with nats.config.open("a") as config:
        config.write("authorization { user: quelea, password: secret }\n")
    nats.start()
    node = early(configured(nats, "n1"))
    assert node.wait() == 1
    assert "NATS refuses the login of this node" in node.log_text()


def test_commands_take_the_login_from_the_environment(nats, tmp_path, monkeypatch):
    with nats.config.open("a") as config:
        config.write("authorization { user: quelea, password: secret }\n")
    nats.start()
    password, config = tmp_path / "password", tmp_path / "quelea.toml"
    password.write_text("secret\n")
    password.chmod(0o600)
    config.write_text(configured(nats, "n1") + f'password_file = "{password}"\n')
    refused = cluster(config, "init", "--allow-unreplicated", "--allow-unsynced")
    assert refused.returncode == 2 and "needs username" in refused.stderr, refused.stderr
    monkeypatch.setenv("QUELEA_cluster__username", "quelea")
    make = lambda: cluster(config, "init", "--allow-unreplicated", "--allow-unsynced")  # noqa: E731
    done(eventually(lambda: (ran := make()).returncode == 0 and ran, "the start of NATS"))
    done(cluster(config, "status"))


@pytest.fixture
def managers():
    """The service managers of two nodes, with a watchdog."""
    made = [Manager(watchdog_secs=1), Manager(watchdog_secs=1)]
    yield made
    for manager in made:
        manager.close()


def test_the_service_manager_hears_of_each_role(nats, tmp_path, early, managers):
    def is_ready(message):
        return message.get("READY") == "1"

    def is_fed(message):
        return message.get("WATCHDOG") == "1"

    make_cluster(nats, tmp_path)
    nats.stop()
    first, second = managers
    active = early(configured(nats, "n1"), environment=first.environment)
    # A start may wait for NATS as long as it takes.
    waiting = first.message(lambda message: "cannot reach NATS" in message.get("STATUS", ""))
    assert int(waiting["EXTEND_TIMEOUT_USEC"]) > 0
    assert not any(is_ready(message) for message in first.messages)
    nats.start()
    first.wait_for(lambda message: message.get("STATUS", "").startswith("ready; "))
    standby = early(configured(nats, "n2"), Standby, environment=second.environment)
    seen = second.wait_for(is_ready)
    assert "standby" in second.messages[seen - 1]["STATUS"]
    seen = second.wait_for(is_fed, seen)
    standby.process.send_signal(signal.SIGHUP)
    seen = second.wait_for(lambda message: "RELOADING" in message, seen)
    seen = second.wait_for(is_ready, seen)
    active.terminate()
    assert active.wait() == 0
    first.wait_for(lambda message: message.get("STOPPING") == "1")
    seen = second.wait_for(lambda message: message.get("STATUS", "").startswith("ready; "), seen)
    second.wait_for(is_fed, seen)
