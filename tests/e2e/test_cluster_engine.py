"""`quelea cluster init` against real NATS servers, plain and with the files of examples/cluster."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker import eventually

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))

from lab import NODES, Lab  # noqa: E402

BROKER = os.environ.get("QUELEA_BIN", ROOT / "target/debug/quelea")
EXAMPLE = ROOT / "examples/cluster"
NATS = os.environ.get("QUELEA_NATS_SERVER", ROOT / "target/nats/nats-server")

pytestmark = pytest.mark.skipif(
    not Path(NATS).exists() and not shutil.which("go"),
    reason="no NATS server: install Go, or set QUELEA_NATS_SERVER",
)


def with_engines(lab):
    for node in range(NODES):
        lab.start_engine(node)
    for node in range(NODES):
        lab.wait("the election of NATS", lambda node=node: lab.engine_is_ready(node))
    return lab


def test_init_makes_a_cluster_once_and_checks_it_then(tmp_path):
    with with_engines(Lab(tmp_path, BROKER)) as lab:
        made = lab.init(*lab.monitoring())
        assert made.returncode == 0, made.stderr
        assert "4 shards, 3 replicas; 3 streams created, 0 found" in made.stdout
        assert "note" not in made.stderr
        again = lab.init("--allow-unsynced")
        assert again.returncode == 0, again.stderr
        assert "exists" in again.stdout and "0 streams created, 3 found" in again.stdout
        assert again.stdout.split("id ")[1][:32] == made.stdout.split("id ")[1][:32]
        unverified = lab.init()
        assert unverified.returncode == 1
        assert "could not verify that 3 of 3 NATS servers sync" in unverified.stderr
        lab.shards = 5
        other = lab.init(*lab.monitoring())
        assert other.returncode == 1
        assert "must be 4, the fixed number of this cluster, got 5" in other.stderr


class Alone(Lab):
    """One NATS server that does not sync."""

    def engine_config(self, node, directory):
        lines = super().engine_config(node, directory).splitlines()
        text = "\n".join(line for line in lines if not line.startswith("cluster"))
        return text.replace("sync_interval: always", "sync_interval: 2m")

    def broker_config(self, node):
        lines = super().broker_config(node).splitlines()
        own = f'servers = ["nats://127.0.0.1:{self.engine_ports[0]}"]'
        return "\n".join(own if line.startswith("servers") else line for line in lines)


def test_init_refuses_an_engine_that_may_lose_what_it_acknowledges(tmp_path):
    with Alone(tmp_path, BROKER) as lab:
        lab.start_engine(0)
        ask = ["--monitoring", f"http://127.0.0.1:{lab.monitor_ports[0]}"]
        few = "the NATS cluster needs at least 3 servers"
        eventually(lambda: few in lab.init().stderr, "an engine that can be reached")
        unsynced = lab.init("--allow-unreplicated", *ask)
        assert unsynced.returncode == 1
        assert "acknowledges before it syncs" in unsynced.stderr
        allowed = lab.init("--allow-unreplicated", "--allow-unsynced", *ask)
        assert allowed.returncode == 0, allowed.stderr
        assert "1 replicas; 3 streams created" in allowed.stdout


class Secured(Lab):
    """The files of the example, with the addresses of this machine."""

    def __enter__(self):
        super().__enter__()
        names = [f"node{node + 1}" for node in range(NODES)]
        command = [EXAMPLE / "make-secrets", self.directory / "secrets", *names]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return self

    def secrets(self, node):
        return str(self.directory / "secrets" / f"node{node + 1}")

    def engine_config(self, node, directory):
        shutil.copy(Path(self.secrets(node)) / "nats-users.conf", directory)
        text = (EXAMPLE / "nats.conf").read_text()
        text = text.replace("$NODE", f"nats{node + 1}")
        text = text.replace("/var/lib/nats", f"{directory}/data")
        text = text.replace("/etc/quelea/cluster", self.secrets(node))
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{self.engine_ports[node]}")
        text = text.replace("0.0.0.0:8222", f"127.0.0.1:{self.monitor_ports[node]}")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self.route_ports[node]}")
        for other, port in enumerate(self.route_ports):
            text = text.replace(f"broker{other + 1}.example:6222", f"127.0.0.1:{port}")
        return text

    def broker_config(self, node):
        text = (EXAMPLE / "quelea.toml").read_text()
        text = text.replace("/etc/quelea/cluster", self.secrets(node))
        text = text.replace("/var/lib/quelea", "data").replace("/etc/quelea/passwords", "passwords")
        text = text.replace("tls://*:8883", f"tls://127.0.0.1:{self.mqtt_ports[node]}")
        text = text.replace("localhost:4222", f"localhost:{self.engine_ports[node]}")
        for other, port in enumerate(self.engine_ports):
            own = f', "tls://broker{other + 1}.example:4222"'
            text = text.replace(own, "" if other == node else f', "tls://127.0.0.1:{port}"')
        text = text.replace("0.0.0.0:9883", f"127.0.0.1:{self.http_ports[node]}")
        own = f'node = "node{node + 1}"\nadvertise = "127.0.0.1:{self.mqtt_ports[node]}"\n'
        passwords = self.directory / f"node{node + 1}" / "passwords"
        if not passwords.exists():
            passwords.touch(mode=0o600)
        return text.replace("[cluster]\n", "[cluster]\n" + own)


def test_the_example_with_tls_and_passwords_becomes_one_broker(tmp_path):
    with Secured(tmp_path, BROKER, shards=8) as lab:
        active = lab.start()
        assert active in range(NODES)
        status = subprocess.run(
            [BROKER, "cluster", "status", "--config", lab.config(active)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert status.returncode == 0, status.stderr
        assert status.stdout.count("3 of 3 current") == 2


def test_the_example_admits_no_broker_without_password(tmp_path):
    with Secured(tmp_path, BROKER) as lab:
        with_engines(lab)
        for node in range(NODES):
            (Path(lab.secrets(node)) / "nats.password").write_text("wrong\n")
        refused = lab.init()
        assert refused.returncode == 1
        assert "cannot reach NATS" in refused.stderr
