"""Three NATS servers and three brokers on loopback: what `make cluster` and tests start."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

NODES = 3
READY_SECS = 60
STOP_SECS = 15


def nats_server():
    """The path of the NATS server: QUELEA_NATS_SERVER, or the one that tests/nats builds."""
    if named := os.environ.get("QUELEA_NATS_SERVER"):
        return named
    built = subprocess.run([ROOT / "tests/nats"], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        raise SystemExit(built.returncode)
    return built.stdout.strip()


class Lab:
    """All servers below one directory. Use it as a context: it stops what it has started.
    `shards`: of each cell."""

    def __init__(self, directory, broker, *, shards=4, cells=1):
        self.directory, self.broker = Path(directory), broker
        self.shards, self.cells = shards, cells
        self.nats = nats_server()
        numbers = iter(free_ports(6 * NODES))
        take = lambda: [next(numbers) for _ in range(NODES)]  # noqa: E731
        self.engine_ports, self.route_ports, self.monitor_ports = take(), take(), take()
        self.mqtt_ports, self.http_ports, self.link_ports = take(), take(), take()
        self.processes = {}

    def __enter__(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        return self

    def __exit__(self, *_):
        self.stop()

    def start_engine(self, node):
        directory = self.directory / f"nats{node + 1}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "nats.conf").write_text(self.engine_config(node, directory))
        self._start(f"nats{node + 1}", [self.nats, "-c", directory / "nats.conf"], directory)

    def engine_config(self, node, directory):
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.route_ports)
        return f"""\
server_name: nats{node + 1}
listen: 127.0.0.1:{self.engine_ports[node]}
http: 127.0.0.1:{self.monitor_ports[node]}
jetstream {{ store_dir: "{directory}/data", sync_interval: always }}
cluster {{ name: lab, listen: 127.0.0.1:{self.route_ports[node]}, routes: [{routes}] }}
"""

    def config(self, node):
        """The configuration file of a broker, which names its own NATS server first."""
        directory = self.directory / f"node{node + 1}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "quelea.toml"
        path.write_text(self.broker_config(node))
        return path

    def broker_config(self, node):
        ports = self.engine_ports[node:] + self.engine_ports[:node]
        servers = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        return f"""\
[server]
data_dir = "data"
shards = {self.shards}
workers = 1
[[listeners]]
name = "mqtt"
url = "tcp://127.0.0.1:{self.mqtt_ports[node]}"
[http]
listen = "127.0.0.1:{self.http_ports[node]}"
[cluster]
name = "lab"
node = "node{node + 1}"
servers = [{servers}]
advertise = "127.0.0.1:{self.mqtt_ports[node]}"
""" + (self.links_config(node) if self.cells > 1 else "redirect = true\n")

    def links_config(self, node):
        tls = self.directory / "tls"
        return f"""\
listen = "127.0.0.1:{self.link_ports[node]}"
[cluster.tls]
certificate = "{tls}/node{node + 1}.crt"
key = "{tls}/node{node + 1}.key"
ca = "{tls}/ca.crt"
"""

    def make_certificates(self):
        """An authority, and a certificate for each node."""
        tls = self.directory / "tls"
        tls.mkdir(parents=True)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]

        def openssl(*words):
            made = subprocess.run(
                ["openssl", *words], cwd=tls, capture_output=True, text=True, check=False
            )
            if made.returncode:
                raise SystemExit(f"openssl {' '.join(words)}: {made.stderr}")

        openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=lab")
        for node in range(1, NODES + 1):
            name = f"node{node}"
            openssl(
                "req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt",
                "-subj", f"/CN={name}", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-addext", f"subjectAltName=DNS:{name}",
                "-addext", "extendedKeyUsage=serverAuth,clientAuth",
                "-addext", "basicConstraints=critical,CA:FALSE",
            )  # fmt: skip

    def start_broker(self, node):
        path = self.config(node)
        command = [self.broker, "serve", "--config", path]
        self._start(f"node{node + 1}", command, path.parent)

    def monitoring(self):
        """Flags that let `init` see whether the servers sync."""
        urls = [f"http://127.0.0.1:{port}" for port in self.monitor_ports]
        return [word for url in urls for word in ("--monitoring", url)]

    def init(self, *flags):
        return self.operate("init", *flags)

    def operate(self, *words):
        """`quelea cluster`, at the first node."""
        command = [self.broker, "cluster", *words, "--config", self.config(0)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def create(self):
        """The cluster, and its nodes if they have to be known."""
        cells = ["--cells", str(self.cells)] if self.cells > 1 else []
        commands = [["init", *cells, *self.monitoring()]]
        if self.cells > 1:
            commands += [
                ["node", "add", f"node{node + 1}", "--link", f"127.0.0.1:{port}"]
                for node, port in enumerate(self.link_ports)
            ]
        for words in commands:
            made = self.operate(*words)
            if made.returncode:
                raise SystemExit(f"quelea cluster {' '.join(words)}: {made.stderr or made.stdout}")

    def engine_is_ready(self, node):
        """Has the server a leader for what JetStream stores?"""
        url = f"http://127.0.0.1:{self.monitor_ports[node]}/jsz"
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(url, timeout=2) as answer:
                meta = json.load(answer).get("meta_cluster") or {}
                return bool(meta.get("leader")) and meta.get("cluster_size") == NODES
        return False

    def readiness(self, node):
        """The status code and text of /readyz; None: nobody answers."""
        url = f"http://127.0.0.1:{self.http_ports[node]}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None

    def owners(self):
        """The node that is active for each cell, as the nodes say; None: nobody."""
        owners = [None] * self.cells
        for node in range(NODES):
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self.http_ports[node]}/metrics"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    text = answer.read().decode()
                for cell in re.findall(
                    r'^quelea_cluster_role\{cell="(\d+)",role="active"\} 1$', text, re.MULTILINE
                ):
                    owners[int(cell)] = node
        return owners

    def all_owners(self):
        """The same, once all cells have one."""
        owners = self.owners()
        return None if None in owners else owners

    def active(self):
        """The node that serves, if one does."""
        states = [self.readiness(node) for node in range(NODES)]
        ready = [node for node, state in enumerate(states) if state and state[0] == 200]
        return ready[0] if ready else None

    def wait(self, what, is_done):
        """Waits for what is neither None nor False. It is an error if a server has ended."""
        deadline = time.monotonic() + READY_SECS
        # 0 is a node like the others.
        while (found := is_done()) is None or found is False:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} has ended: see {self.directory / name / 'log'}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} takes longer than {READY_SECS} s: see {self.directory}")
            time.sleep(0.1)
        return found

    def start(self, tell=lambda _: None):
        """Starts everything, step by step."""
        if self.cells > 1:
            self.make_certificates()
        for node in range(NODES):
            self.start_engine(node)
        tell("waiting for the NATS servers to elect a leader")
        for node in range(NODES):
            self.wait("the election of NATS", lambda node=node: self.engine_is_ready(node))
        tell("quelea cluster init")
        self.create()
        for node in range(NODES):
            self.start_broker(node)
        if self.cells > 1:
            tell("waiting until each cell has a node")
            return self.wait("the start of the cells", self.all_owners)
        tell("waiting for a broker to become active")
        return self.wait("the start of a broker", self.active)

    def stop(self):
        """Brokers first, which need the engine to end in order; what does not end is killed."""
        for kind in ("node", "nats"):
            names = [name for name in self.processes if name.startswith(kind)]
            processes = [self.processes.pop(name) for name in names]
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(timeout=STOP_SECS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start(self, name, command, directory):
        # In a session of its own: Ctrl-C reaches the script, which stops them in order.
        with open(directory / "log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
