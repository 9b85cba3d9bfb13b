"""Configurations of bridges, and brokers at their other end."""

import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager

from broker import PATIENCE_SECS, ROOT, eventually, sum_of
from wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer, ack, fresh, publish

sys.path.insert(0, str(ROOT / "tests"))
from ports import free_port  # noqa: E402, F401

LISTENER = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\nallow_anonymous = true\n'
FIXED = '[[listeners]]\nurl = "tcp://127.0.0.1:{}"\nallow_anonymous = true\n'
# A line of the log of a mosquitto.
KILLED = "killed\n"
PERSISTENT = b"\x11\xff\xff\xff\xff"
MEMORY = '\n[durability]\nlevel = "memory"\n'
MORE_QUEUE = "\n[limits]\nqueued_messages_max = 100000\n"


def bridge_to(port, topics, name="cloud", scheme="tcp", **keys):
    """A configuration with one bridge. `topics` are lines as in mosquitto.conf, with `-` for no
    prefix: `# both 1 here/ there/`."""
    values = {"name": name, "addresses": [f"{scheme}://127.0.0.1:{port}"], **keys}
    lines = ["[[bridges]]"] + [f"{key} = {shown(value)}" for key, value in values.items()]
    for topic in topics:
        pattern, direction, qos, local, remote = (topic.split() + ["-", "-"])[:5]
        lines += ["[[bridges.topics]]", f'direction = "{direction}"', f"qos = {qos}"]
        texts = {"filter": pattern, "local_prefix": local, "remote_prefix": remote}
        lines += [f'{key} = "{value}"' for key, value in texts.items() if value != "-"]
    return "\n".join(lines) + "\n"


def shown(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def is_connected(broker, name="cloud"):
    return broker.metrics().get(f'quelea_bridge_connected{{bridge="{name}"}}') == 1


class Mosquitto:
    """A mosquitto that keeps its sessions over `kill` and `launch`, as far as it has saved them.
    It saves after each change, and logs each packet to `log`."""

    def __init__(self, directory, more="", port=None):
        self.port = port or free_port()
        self.config = directory / "mosquitto.conf"
        self.log = directory / "mosquitto.log"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n{more}\n"
            # Started as root it would become a user that cannot write here.
            "user root\n"
            f"persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
            "autosave_on_changes true\nmax_queued_messages 0\nlog_dest stderr\nlog_type all\n"
        )
        self.launch()

    def launch(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["mosquitto", "-c", str(self.config)], stdout=subprocess.DEVNULL, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None
                time.sleep(0.01)

    def terminate(self):
        self.process.terminate()
        self.process.wait(PATIENCE_SECS)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_SECS)
        with self.log.open("a") as log:
            log.write(KILLED)


@contextmanager
def mosquitto(directory, more="", port=None):
    remote = Mosquitto(directory, more, port)
    try:
        yield remote
    finally:
        remote.terminate()


@contextmanager
def any_remote(kind, start, directory):
    if kind == "mosquitto":
        with mosquitto(directory) as remote:
            yield remote.port
    else:
        yield remote_of(start)[1]


def remote_of(start, more=""):
    """A second quelea on a port that it keeps over restarts."""
    port = free_port()
    return start(FIXED.format(port) + more), port


def bridging(start, port, topics, more="", **keys):
    """A quelea with a bridge to this port, connected."""
    own = FIXED.format(free_port())
    broker = start(own + bridge_to(port, topics, **keys) + more)
    eventually(lambda: is_connected(broker), "the bridge")
    return broker


def listening(port, *filters):
    peer = Peer(port, 4).accepted(client_id=fresh("listener"))
    for topic_filter in filters:
        peer.subscribed(topic_filter, 2)
    return peer


def lag(broker):
    return broker.metrics()['quelea_bridge_lag_messages{bridge="cloud"}']


def relayed(broker):
    return sum_of(broker, "quelea_bridge_messages_total")


class Publisher:
    """Publishes each payload once, and notes those that were acknowledged. `{}` in the topic is
    replaced by the payload. QoS 2: acknowledged with PUBREC, and completed with PUBCOMP."""

    def __init__(self, port, topic, qos):
        self.port, self.topic, self.qos = port, topic, qos
        self.acknowledged, self.completed = [], []
        self.peer = None

    def publish(self, payload):
        try:
            if self.peer is None:
                self.peer = Peer(self.port, 4).accepted(client_id=fresh("publisher"))
            topic = self.topic.replace("{}", payload)
            self.peer.send(publish(topic, payload, self.qos, 7, version=4))
            self.peer.expect(PUBACK if self.qos == 1 else PUBREC)
            self.acknowledged.append(payload.encode())
            if self.qos == 2:
                self.peer.send(ack(PUBREL, 7))
                self.peer.expect(PUBCOMP)
            self.completed.append(payload.encode())
        except (AssertionError, OSError):
            self.peer = None


def drained(port, client_id, until):
    """Payloads that wait for a session, up to this one."""
    payloads = []
    with Peer(port, 5) as peer:
        peer.accepted(client_id=client_id, clean=False, properties=PERSISTENT)
        while True:
            first, body = peer.recv()
            if first & 0xF0 == PUBLISH:
                qos, length = first >> 1 & 3, struct.unpack(">H", body[:2])[0]
                at = 2 + length
                packet_id = struct.unpack(">H", body[at : at + 2])[0]
                peer.send(ack(PUBACK if qos == 1 else PUBREC, packet_id))
                payloads.append(body.rsplit(b":", 1)[1])
                if payloads[-1] == until and qos == 1:
                    return payloads
            elif first == PUBREL:
                peer.send(ack(PUBCOMP, struct.unpack(">H", body[:2])[0]))
                if payloads[-1] == until:
                    return payloads
