"""A data directory goes into a cluster and comes back, and backups are taken from its nodes."""

import json
import os
import re
import shutil
import subprocess

import pytest

from broker import PATIENCE_SECS, QUELEA, ROOT, Broker, eventually
from test_api import Api
from test_backup import archive, unpacked
from wire import PUBACK, PUBCOMP, PUBREC, PUBREL, Peer, ack, publish

EXPIRY = b"\x11\xff\xff\xff\xff"

BASE = """
[server]
shards = 2
workers = 1
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[namespaces]]
name = "blue"
[api]
listen = "http"
"""


def nats_server():
    """The path of a NATS server; a test is skipped where there is none."""
    path = os.environ.get("QUELEA_NATS_SERVER") or ROOT / "target/nats/nats-server"
    if not shutil.which(path):
        pytest.skip("no nats-server: run tests/nats, or set QUELEA_NATS_SERVER")
    return path


@pytest.fixture
def nats(tmp_path):
    """The URL of a NATS server of one machine."""
    directory = tmp_path / "nats"
    directory.mkdir()
    config = directory / "nats.conf"
    config.write_text(f"""
server_name: alone
listen: "127.0.0.1:-1"
ports_file_dir: "{directory}"
jetstream {{ store_dir: "{directory}/js", sync_interval: always }}
""")
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([nats_server(), "-c", config], stdout=log, stderr=log)
    try:
        ports = eventually(lambda: list(directory.glob("*.ports")), "the start of NATS")
        urls = eventually(lambda: json.loads(ports[0].read_text() or "{}").get("nats"), "its port")
        yield urls[0]
    finally:
        process.kill()
        process.wait()


def with_cluster(nats, node):
    return f'{BASE}\n[cluster]\nname = "plant"\nnode = "{node}"\nservers = ["{nats}"]\n'


def cluster(config, *arguments):
    """Runs `quelea cluster`."""
    command = [QUELEA, "cluster", arguments[0], "--config", config, *map(str, arguments[1:])]
    return subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_SECS)


def done(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def token_of(directory):
    """The token of the API in a data directory, which is for its owner's eyes only."""
    path = directory / "api.token"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text().splitlines()[0]


def fill(broker):
    """Queues, retained messages, a group, a ban."""
    api = Api(broker)
    with Peer(broker.port()) as kept, Peer(broker.port()) as member, Peer(broker.port()) as peer:
        kept.accepted(client_id="kept", clean=False, properties=EXPIRY)
        kept.subscribed("q/#", 2)
        member.accepted(client_id="member", clean=False, properties=EXPIRY)
        member.subscribed("$share/crew/jobs", 1)
        kept.close()
        member.close()
        peer.accepted(client_id="publisher")
        for number in range(1, 31):
            topic = ["q/one", "q/two", "jobs"][number % 3]
            qos = 2 if topic == "q/two" else 1
            peer.send(publish(topic, f"{number}", qos, packet_id=number))
            peer.expect(PUBREC if qos == 2 else PUBACK)
            if qos == 2:
                peer.send(ack(PUBREL, number))
                peer.expect(PUBCOMP)
        peer.send(publish("state", "red", 1, packet_id=99, retain=True))
        peer.expect(PUBACK)
    api("POST", "/bans", {"kind": "client", "who": "banned", "namespace": "default"})


def check(broker):
    """All of it is there; deliveries are not acknowledged, so it can be checked again."""
    expected = {topic: [] for topic in ("q/one", "q/two", "jobs")}
    for number in range(1, 31):
        expected[["q/one", "q/two", "jobs"][number % 3]].append(str(number).encode())
    found = {topic: [] for topic in expected}
    for client_id, count in (("kept", 20), ("member", 10)):
        with Peer(broker.port()) as peer:
            flags, reason, _ = peer.connect(client_id=client_id, clean=False, properties=EXPIRY)
            assert (flags, reason) == (1, 0)
            for _ in range(count):
                first, body = peer.recv()
                assert first & 0xF0 == 0x30
                length = int.from_bytes(body[:2], "big")
                # No properties: packet identifier, a zero, the payload.
                found[body[2 : 2 + length].decode()].append(body[2 + length + 3 :])
    assert found == expected
    with Peer(broker.port()) as peer:
        peer.accepted(client_id="reader").subscribed("state", 0)
        assert peer.message()[:2] == ("state", b"red")
    with Peer(broker.port()) as peer:
        assert peer.connect(client_id="banned")[1] == 0x8A
    assert "blue" in (broker.data / "namespaces").read_text(errors="replace")


def test_a_data_directory_goes_into_a_cluster_and_comes_back(nats, start, tmp_path):
    single = start(BASE)
    fill(single)
    check(single)
    single.terminate()
    assert single.wait() == 0
    token = token_of(single.data)
    config = tmp_path / "n1.toml"
    config.write_text(with_cluster(nats, "n1"))
    done(cluster(config, "init", "--allow-unreplicated", "--allow-unsynced"))
    told = done(cluster(config, "import", single.data))
    assert re.search(r"imported .*: 2 shards, [1-9]\d* records", told), told
    again = cluster(config, "import", single.data)
    assert again.returncode == 1 and "was imported into this cluster already" in again.stderr

    first = start(with_cluster(nats, "n1"))
    check(first)
    assert token_of(first.data) == token
    busy = cluster(config, "import", single.data)
    assert busy.returncode == 1 and "nodes of the cluster run (n1): stop them" in busy.stderr
    first.kill()
    second = start(with_cluster(nats, "n2"))
    check(second)
    # Whoever has the token of the first node is an admin on the node that took over.
    assert token_of(second.data) == token
    assert Api(second)("GET", "/caller")["role"] == "admin"

    exported = tmp_path / "exported"
    done(cluster(config, "export", exported))
    refused = cluster(config, "export", exported)
    assert refused.returncode == 1 and "must be empty" in refused.stderr
    copy = tmp_path / "copy"
    done(subprocess.run([QUELEA, "backup", second.data, copy], capture_output=True, text=True))
    for directory in (exported, copy):
        assert token_of(directory) == token
        check(start(BASE, data=directory))


def test_a_token_file_of_an_operator_stays_and_others_are_replaced(nats, start, tmp_path):
    config = tmp_path / "n1.toml"
    config.write_text(with_cluster(nats, "n1"))
    done(cluster(config, "init", "--allow-unreplicated", "--allow-unsynced"))
    own = tmp_path / "own.token"
    own.write_text("0123456789abcdef\n")
    own.chmod(0o600)
    with_own = with_cluster(nats, "n0").replace("[api]", f'[api]\ntoken_file = "{own}"')
    first = start(with_own)
    assert own.read_text().startswith("0123456789abcdef\n")
    assert not (first.data / "api.token").exists()
    first.kill()
    # The first node that uses its data directory's file decides for all others.
    second = start(with_cluster(nats, "n1"))
    token = token_of(second.data)
    second.kill()
    data = tmp_path / "other"
    data.mkdir()
    (data / "api.token").write_text("another token of this node\n")
    (data / "api.token").chmod(0o600)
    third = start(with_cluster(nats, "n2"), data=data)
    assert token_of(data) == token
    third.wait_for_log(lambda event: "token of the API was replaced" in event["message"])
    assert Api(third)("GET", "/caller")["role"] == "admin"


def by_command(standby, copy):
    done(subprocess.run([QUELEA, "backup", standby.data, copy], capture_output=True, text=True))


def by_api(standby, copy):
    unpacked(archive(standby), copy)


@pytest.mark.parametrize("back_up", [by_command, by_api])
def test_a_standby_is_backed_up_and_restored(nats, start, tmp_path, back_up):
    config = tmp_path / "n1.toml"
    config.write_text(with_cluster(nats, "n1"))
    done(cluster(config, "init", "--allow-unreplicated", "--allow-unsynced"))
    active = start(with_cluster(nats, "n1"))
    fill(active)
    standby = Standby(with_cluster(nats, "n2"))
    try:
        last = shown(config)["streams"][0]["last"]
        eventually(lambda: has_read(config, "n2", last), "the standby's catching up")
        done(cluster(config, "status"))
        copy = tmp_path / "copy"
        back_up(standby, copy)
    finally:
        standby.stop()
    node = shutil.copytree(copy, tmp_path / "node")
    single = start(BASE, data=copy)
    check(single)
    single.terminate()
    assert single.wait() == 0
    # A broker of its own has used it: it is no local copy any more.
    refused = subprocess.run(
        [QUELEA, "serve", f"--config={config}", f"--data={copy}", "--http=127.0.0.1:0"],
        capture_output=True, text=True, timeout=PATIENCE_SECS,
    )
    assert refused.returncode != 0 and "a broker without a cluster" in refused.stderr
    active.kill()
    restored = start(with_cluster(nats, "n3"), data=node)
    assert not any("read again from the stream" in event["message"] for event in restored.log)
    check(restored)


class Standby(Broker):
    """A node that is ready for a backup when it listens as a standby."""

    def _wait_until_ready(self):
        def is_http(event):
            return event["message"] == "listening as a standby" and event["url"].startswith("http")

        self.urls.append(self.wait_for_log(is_http)["url"])


def shown(config):
    return json.loads(done(cluster(config, "status", "--json")))


def has_read(config, node, last):
    for row in shown(config)["nodes"]:
        if row["node"] == node:
            return all(shard["last"] >= last for shard in row["shards"])
    return False
