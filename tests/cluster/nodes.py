"""Brokers of one cluster, each with wires to the engines that can be cut, and what befalls them."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/e2e")]

from engines import Engines, get
from ports import free_ports
from wall_clock import WallClock
from wires import Wire

QUELEA = os.environ.get("QUELEA_BIN", str(ROOT / "target/debug/quelea"))
NAME = "rounds"
# Of all shards.
STREAM = f"{NAME}-cell-000"
# Of a node of a cluster.
LEVEL = "quorum"

# Small segments, so that logs are rolled, and streams purged, all the time.
CONFIG = """
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:{mqtt}"
allow_anonymous = true
[http]
listen = "127.0.0.1:{http}"
[durability]
level = "{level}"
segment_bytes = "256KiB"
when_full = "{when_full}"
[limits]
packet_bytes_max = "16KiB"
"""

CLUSTER = """
[cluster]
name = "{name}"
node = "node-{index}"
servers = [{servers}]
"""

READY_SECS = 90
POLL_SECS = 0.05


class Broken(Exception):
    """Something happened that ends the run."""


class Node:
    """One `quelea serve` and its wires."""

    def __init__(self, index, directory, ports, level_alone):
        self.index, self.directory = index, directory
        # What a node without a cluster promises.
        self.level_alone = level_alone
        self.mqtt, self.http, *self._wire_ports = ports
        self.program = Path(QUELEA)
        self.data = directory / f"node-{index}"
        self.config = directory / f"node-{index}.toml"
        self.wires = []
        self.clock = WallClock()
        self.process = None
        self.lives = 0
        self.is_paused = False

    async def wire_up(self, engines):
        for engine, port in zip(engines, self._wire_ports):
            wire = Wire(engine.port)
            await wire.start(port)
            self.wires.append(wire)

    def configure(self, name=NAME, when_full="refuse", is_clustered=True):
        is_clustered = is_clustered and bool(self.wires)
        level = LEVEL if is_clustered else self.level_alone
        text = CONFIG.format(
            mqtt=self.mqtt, http=self.http, level=level, when_full=when_full
        )
        if is_clustered:
            servers = ", ".join(f'"nats://127.0.0.1:{wire.port}"' for wire in self.wires)
            text += CLUSTER.format(name=name, index=self.index, servers=servers)
        self.config.write_text(text)

    def start(self):
        self.lives += 1
        log = self.directory / f"node-{self.index}-life-{self.lives}.log"
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [self.program, "serve", "--log-format=json", f"--config={self.config}",
                 f"--data={self.data}"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **self.clock.environment},
            )  # fmt: skip

    @property
    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.is_running:
            self.process.kill()
        if self.process is not None:
            self.process.wait()
        self.is_paused = False

    async def stop(self):
        """SIGTERM, and the wait for the end."""
        self.process.terminate()
        code = await asyncio.to_thread(self.process.wait, READY_SECS)
        if code != 0:
            raise Broken(f"node {self.index} ended with {code} when asked to stop")

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self):
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def cut(self, *directions):
        for wire in self.wires:
            wire.cut(directions) if directions else wire.cut()

    def mend(self):
        for wire in self.wires:
            wire.mend()

    def wipe(self):
        shutil.rmtree(self.data, ignore_errors=True)

    async def readiness(self):
        """Status and reason of `/readyz`; 0 where nothing answers."""
        if not self.is_running or self.is_paused:
            return 0, "not running"
        try:
            return await asyncio.wait_for(get(self.http, "/readyz"), 1)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, IndexError) as error:
            return 0, repr(error)

    def is_stopped(self):
        """Whether SIGSTOP has reached each of its threads."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(one.read_text().rsplit(")", 1)[1].split()[0] == "T" for one in threads)

    def log_text(self):
        path = self.directory / f"node-{self.index}-life-{self.lives}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self):
        """The lines of its present life, as dictionaries."""
        lines = self.log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def last_words(self):
        return "\n".join(self.log_text().splitlines()[-8:]) or "it said nothing"


class Cluster:
    """Brokers and engines; or, without engines, one broker that is no cluster."""

    def __init__(self, directory, nodes=3, engines=3, level_alone="fsync"):
        per_node = 2 + engines
        ports = free_ports(engines * 3 + nodes * per_node)
        self.engines = Engines(directory, ports, engines) if engines else None
        ports = ports[engines * 3 :]
        self.nodes = [
            Node(at, directory, ports[at * per_node : (at + 1) * per_node], level_alone)
            for at in range(nodes)
        ]

    async def start(self):
        if self.engines is not None:
            await self.engines.start()
        for node in self.nodes:
            await node.wire_up(self.engines.all if self.engines is not None else [])
            node.configure()
        if self.engines is not None:
            await self.init(self.nodes[0])
        for node in self.nodes:
            node.start()
        await self.be_whole()

    async def init(self, node):
        urls = [f"http://127.0.0.1:{engine.http}" for engine in self.engines.all]
        await self.command("init", *(f"--monitoring={url}" for url in urls), node=node)

    async def command(self, *arguments, node=None):
        """`quelea cluster ...` with a node's configuration; its output."""
        node = node or self.nodes[0]
        command = [QUELEA, "cluster", *arguments, "--config", str(node.config)]
        code, output = await run(command)
        if code != 0:
            raise Broken(f"`{' '.join(arguments)}` ended with {code}: {output}")
        return output

    def switchover_command(self, node):
        return [QUELEA, "cluster", "switchover", f"node-{node.index}", "--config", str(node.config)]

    async def status(self, node=None):
        return json.loads(await self.command("status", "--json", node=node))

    async def active(self):
        """The node that serves, if one does. Two are the end of everything."""
        found = await asyncio.gather(*(node.readiness() for node in self.nodes))
        serving = [node for node, (status, _) in zip(self.nodes, found) if status == 200]
        if len(serving) > 1:
            raise Broken(f"{len(serving)} nodes say that they are ready")
        return serving[0] if serving else None

    async def await_active(self, other_than=None):
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_SECS
        while True:
            active = await self.active()
            if active is not None and active is not other_than:
                return active
            if loop.time() > deadline:
                raise Broken(f"no node serves within {READY_SECS} s: {await self.words()}")
            await asyncio.sleep(POLL_SECS)

    async def be_whole(self):
        """Every node runs, one serves, the others have caught up with it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_SECS
        why = "nothing was asked"
        while loop.time() < deadline:
            why = await self.why_not_whole()
            if why is None:
                return
            await asyncio.sleep(POLL_SECS)
        raise Broken(f"not whole within {READY_SECS} s: {why}; {await self.words()}")

    async def why_not_whole(self):
        active = await self.active()
        if active is None:
            return "no node serves"
        for node in self.nodes:
            if node is not active:
                status, reason = await node.readiness()
                if status not in (0, 503):
                    return f"node {node.index} answers {status}: {reason}"
        if self.engines is None:
            return None
        try:
            status = await self.status(active)
        except Broken as broken:
            return str(broken)
        return why_behind(status, len(self.nodes))

    async def words(self):
        """What everybody says of itself, for a message."""
        said = [f"node {n.index}: {await n.readiness()}, {n.last_words()}" for n in self.nodes]
        return "\n".join(said)

    async def close(self):
        for node in self.nodes:
            if node.is_running:
                node.resume()
            node.kill()
            shutil.rmtree(node.clock.directory, ignore_errors=True)
            for wire in node.wires:
                await wire.stop()
        if self.engines is not None:
            self.engines.close()


def why_behind(status, nodes):
    """What of the status says that a standby has not caught up; None if all have."""
    roles = sorted(node["role"] for node in status["nodes"])
    if roles != ["active", *["standby"] * (nodes - 1)]:
        return f"the nodes are {', '.join(roles)}"
    for node in status["nodes"]:
        for shard, one in enumerate(node["shards"]):
            if one["fault"] or not one["has_caught_up"]:
                return f"{node['node']}, shard {shard}: {one['fault'] or 'has not caught up'}"
    return None


async def run(command):
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), READY_SECS)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise Broken(f"`{' '.join(command)}` does not end") from None
    return process.returncode, output.decode(errors="replace").strip()
