"""Configurations of bridges, and brokers at their other end."""

import socket
import subprocess
import time
from contextlib import contextmanager

from broker import PATIENCE_SECS

LISTENER = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\nallow_anonymous = true\n'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    """A mosquitto that keeps its sessions over `kill` and `launch`."""

    def __init__(self, directory, more=""):
        self.port = free_port()
        self.config = directory / "mosquitto.conf"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n{more}\n"
            f"persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
            "autosave_on_changes true\nmax_queued_messages 0\n"
        )
        self.launch()

    def launch(self):
        self.process = subprocess.Popen(
            ["mosquitto", "-c", str(self.config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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


@contextmanager
def mosquitto(directory, more=""):
    remote = Mosquitto(directory, more)
    try:
        yield remote
    finally:
        remote.terminate()
