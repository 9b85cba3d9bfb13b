"""NATS falls silent at each step of a takeover: the node ends as a standby and tries again. Its
process never ends."""

import contextlib
import socket
import threading
import time

import pytest

from broker import PATIENCE_SECS
from test_cluster_process import configured, early, make_cluster, nats  # noqa: F401

# What a node sends first at each step, and how often it has sent that by then.
STEPS = {
    "lease": (b"HPUB $KV.plant-cluster.lease ", 1),
    "claim": (b"HPUB quelea.plant.cell.000 ", 1),
    "reading a file": (b'"$KV.plant-cluster.file.bans"', 1),
    "taking a file over": (b"HPUB $KV.plant-cluster.file.clock ", 1),
    "noting the clock": (b"HPUB $KV.plant-cluster.file.clock ", 2),
    "writing the secret": (b"HPUB $KV.plant-cluster.file.auth.secret ", 2),
    "writing the namespaces": (b"HPUB $KV.plant-cluster.file.shard-000.namespaces ", 2),
    "writing their copy": (b"HPUB $KV.plant-cluster.file.namespaces ", 2),
    "opening a log": (b"HPUB quelea.plant.cell.000 ", 2),
}
# A write of a file is given up after 1.2 s, the lease runs out after 3 s, a takeover of all files
# is given up after 5 s.
SILENCES = [2, 7]


class SilentWay:
    """Stands between a node and NATS. From the moment at which a text has been sent so often,
    nothing passes in either direction for a while."""

    def __init__(self, target):
        self.target = target
        self._pattern, self._times, self._secs = b"", 0, 0
        self.was_silent = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self, pattern, times, secs):
        self._pattern, self._times, self._secs = pattern, times, secs

    def close(self):
        self._open.set()
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source, sink, is_of_node):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_of_node and self._pattern and self._pattern in data:
                    self._times -= 1
                    if self._times <= 0:
                        self._begin()
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _begin(self):
        self._pattern = b""
        self._open.clear()
        self.was_silent.set()
        threading.Timer(self._secs, self._open.set).start()


def is_ready(node):
    return (node.try_get("/readyz") or (0,))[0] == 200


@pytest.mark.parametrize("secs", SILENCES)
@pytest.mark.parametrize("step", STEPS)
def test_a_silent_engine_ends_no_process(nats, tmp_path, early, step, secs):  # noqa: F811
    make_cluster(nats, tmp_path)
    way = SilentWay(nats.port)
    way.fall_silent(*STEPS[step], secs)
    node = early(configured(way, "n1"))
    try:
        deadline = time.monotonic() + 3 * PATIENCE_SECS
        while not (way.was_silent.is_set() and is_ready(node)):
            assert node.process.poll() is None, "the process has ended:\n" + node.log_text()
            assert time.monotonic() < deadline, "the node does not serve:\n" + node.log_text()
            time.sleep(0.05)
    finally:
        way.close()
    if step.startswith("writing"):
        told = [line for line in node.log if line["message"] == "restarting as a standby"]
        assert told and "does not answer" in told[0]["detail"], node.log_text()
