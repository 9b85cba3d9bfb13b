"""Commands of a cluster whose NATS server does not answer each request in time."""

import socket
import threading

import pytest

from test_cluster_directory import (  # noqa: F401
    BASE,
    check,
    cluster,
    done,
    fill,
    nats,
    with_cluster,
)
from test_cluster_misfits import ACCEPT


class Deaf:
    """Stands between clients and a NATS server. Of each kind of request to the store, the first one
    of all clients is lost on its way, or its answer is (`loses`: "request" or "answer")."""

    def __init__(self, url, loses):
        host, port = url.removeprefix("nats://").rsplit(":", 1)
        self.server, self.loses = (host, int(port)), loses
        self.lost, self.inboxes = set(), set()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.server)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self.pump, args=(source, target), daemon=True).start()
        except OSError:
            pass  # The end of the test.

    def pump(self, source, target):
        lines = source.makefile("rb")
        try:
            while line := lines.readline():
                words = line.decode().split()
                has_payload = words and words[0] in ("PUB", "HPUB", "MSG", "HMSG")
                payload = lines.read(int(words[-1]) + 2) if has_payload else b""
                if not (has_payload and self.takes(words)):
                    target.sendall(line + payload)
        except OSError:
            pass  # The other side has closed it.
        target.close()

    def takes(self, words):
        subject = words[1]
        with self.lock:
            if words[0] in ("MSG", "HMSG"):
                return subject in self.inboxes
            # The last part names a stream or a key.
            kind = tuple(subject.split(".")[:4])
            if kind[0] not in ("$JS", "$KV") or kind in self.lost:
                return False
            self.lost.add(kind)
            if self.loses == "answer":
                self.inboxes.add(words[2])
            return self.loses == "request"

    def close(self):
        self.listener.close()


@pytest.fixture(params=["request", "answer"])
def deaf(request, nats):  # noqa: F811
    """The server that loses something."""
    proxy = Deaf(nats, request.param)
    yield proxy
    proxy.close()


def forget(deaf):
    """The next command loses its requests, too."""
    deaf.lost.clear()


def test_commands_repeat_what_is_not_answered(deaf, start, tmp_path):
    config = tmp_path / "cluster.toml"
    config.write_text(with_cluster(deaf.url, "n1"))
    single = start(BASE)
    fill(single)
    single.terminate()
    assert single.wait() == 0
    made = cluster(config, "init", *ACCEPT)
    assert "created" in done(made) and "3 streams created" in made.stdout
    assert "NATS does not answer, retrying" in made.stderr
    for call in ("INFO", "CREATE", "MSG"):
        assert ("$JS", "API", "STREAM", call) in deaf.lost
    assert ("$KV", "plant-cluster", "cluster") in deaf.lost
    forget(deaf)
    assert "0 streams created, 3 found" in done(cluster(config, "init", *ACCEPT))
    forget(deaf)
    done(cluster(config, "import", single.data))
    assert ("$KV", "plant-cluster", "import") in deaf.lost
    forget(deaf)
    assert "lease: quelea-cluster-import" in done(cluster(config, "status"))
    forget(deaf)
    done(cluster(config, "export", tmp_path / "exported"))
    check(start(BASE, data=tmp_path / "exported"))
