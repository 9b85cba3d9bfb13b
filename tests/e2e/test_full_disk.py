"""A broker that starts on a full disk serves as one that was running when the disk became full."""

import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from broker import eventually
from small_disk import SmallDisk, may_mount
from test_cluster_process import configured, early, make_cluster, nats  # noqa: F401
from test_durability import (
    SMALL, fill, leave, named, put, received, session, subscribed_and_gone, waiting,
)
from wire import Peer, publish

pytestmark = pytest.mark.skipif(not may_mount(), reason="no unshare or nsenter")

API = '[http]\nlisten = "127.0.0.1:0"\n[api]\nlisten = "http"\n'
TENANTS = '[[namespaces]]\nname = "blue"\nhosts = ["blue.example"]\n'


@pytest.fixture
def disk(tmp_path):
    disks = []

    def make(options="size=24m"):
        disks.append(SmallDisk(tmp_path / "disk", options))
        return disks[-1]

    yield make
    for each in disks:
        each.close()


def on(disk, start, config=SMALL, **options):
    return start(config, data=disk.data, within=disk.within, **options)


def serves_what_needs_no_space(broker, own, payloads):
    """What `docs/use/operations.md` promises for a full disk."""
    assert received(broker, own, len(payloads)) == payloads
    with Peer(broker.port()) as reader, Peer(broker.port()) as peer:
        reader.accepted().subscribed("live", 0)
        peer.accepted().send(publish("live", "x"))
        assert reader.message()[1] == b"x"
    assert broker.get("/readyz")[0] == 200


def call(broker, method, path, token, body=None):
    """Status and answer of the management API."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.port('http')}/api/v1{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def starts_named(disk):
    """The start that each small file names, of those that have a stamp."""
    stamp = re.compile(rb"# quelea 2 [0-9a-f]{32} (\d+) ")
    found = {name: stamp.match(content) for name, content in disk.files().items()}
    return {name: int(match[1]) for name, match in found.items() if match}


@pytest.mark.parametrize("how", ["kill", "terminate"])
@pytest.mark.parametrize("more", ["", API, API + TENANTS], ids=["plain", "api", "namespaces"])
def test_a_start_on_a_full_disk_serves_and_all_is_there_with_space_again(disk, start, how, more):
    disk = disk()
    broker = on(disk, start, SMALL + more)
    token = ""
    if more:
        token = (disk.seen_data / "api.token").read_text().split()[0]
        status, answer = call(broker, "POST", "/bans", token, {"kind": "user", "who": "eve", "namespace": "*"})
        assert status < 300, answer
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        assert [put(peer, "a", str(number), number + 1) for number in range(20)] == [0] * 20
        assert put(peer, "kept", "k", retain=True) < 0x80
    disk.fill()
    before = disk.files()
    for _ in range(2):
        broker.restart(how)
        assert not [path for path in disk.seen_data.rglob("*.new")]
    serves_what_needs_no_space(broker, own, [str(number) for number in range(20)])
    assert all(len(content) >= len(before[name]) for name, content in disk.files().items())
    if token:
        assert call(broker, "GET", "/bans", token)[0] == 200
    disk.free()
    with Peer(broker.port()) as peer:
        peer.accepted()
        eventually(lambda: put(peer, "a", "again") < 0x80, "space for the next message")
    starts = starts_named(disk)
    assert len(starts) >= 5 and len(set(starts.values())) == 1, "all have the stamp of this start"
    for _ in range(2):
        broker.restart(how)
    assert waiting(broker, own) == (True, ["again"])
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("kept", 0)
        assert peer.message()[1] == b"k"
    if token:
        status, answer = call(broker, "GET", "/bans", token)
        assert status == 200 and "eve" in answer


def test_a_log_that_was_full_already_drains_after_a_start(disk, start):
    disk = disk()
    broker = on(disk, start, SMALL + 'log_bytes_max = "1MiB"\n')
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        taken = fill(peer, "a")
    disk.fill()
    broker.restart()
    serves_what_needs_no_space(broker, own, taken)
    disk.free()
    with Peer(broker.port()) as peer:
        peer.accepted()
        eventually(lambda: put(peer, "a", "again") < 0x80, "space for the next message")


def test_a_start_without_inodes_serves(disk, start):
    disk = disk("size=24m,nr_inodes=200")
    broker = on(disk, start, SMALL + API)
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        put(peer, "a", "one")
    disk.fill_inodes()
    broker.restart()
    serves_what_needs_no_space(broker, own, ["one"])
    disk.free()
    broker.restart("terminate")
    assert waiting(broker, own) == (True, [])


def test_small_files_whose_size_changes_wait_for_space(disk, start):
    """The tenth start has a longer number: what was written in place until then cannot be."""
    disk = disk()
    broker = on(disk, start)
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        put(peer, "a", "one")
    while max(starts_named(disk).values()) < 9:
        broker.restart()
    disk.fill()
    broker.restart()
    broker.wait_for_log(lambda event: "when there is space" in event["message"])
    assert set(starts_named(disk).values()) == {9}
    serves_what_needs_no_space(broker, own, ["one"])
    broker.restart()
    disk.free()
    eventually(lambda: set(starts_named(disk).values()) == {10}, "the stamps of this start")
    broker.wait_for_log(lambda event: "the stamps of the logs" in event["message"])
    broker.restart("terminate")
    assert set(starts_named(disk).values()) == {11}, "the start before had finished"
    # From now on a small file of an earlier time is refused again.
    assert waiting(broker, own) == (True, [])


def test_a_namespace_that_is_new_on_a_full_disk_waits_and_the_others_serve(disk, start):
    disk = disk()
    broker = on(disk, start, SMALL + API)
    token = (disk.seen_data / "api.token").read_text().split()[0]
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        put(peer, "a", "one")
    disk.fill()
    broker.config.write_text(broker.config.read_text() + TENANTS)
    broker.restart()
    serves_what_needs_no_space(broker, own, ["one"])
    assert call(broker, "GET", "/namespaces/blue", token)[0] == 404
    disk.free()

    def is_there():
        return call(broker, "GET", "/namespaces/blue", token)[0] == 200

    eventually(is_there, "the new namespace")
    broker.restart()
    assert is_there()


def test_a_token_that_cannot_be_written_lets_nobody_in_and_comes_with_space(disk, start):
    disk = disk()
    broker = on(disk, start, SMALL)
    own = subscribed_and_gone(broker, "a")
    disk.fill()
    broker.config.write_text(broker.config.read_text() + '[api]\nlisten = "http"\n')
    broker.restart()
    token_file = disk.seen_data / "api.token"
    assert not token_file.exists()
    assert call(broker, "GET", "/caller", "0" * 64)[0] == 401
    serves_what_needs_no_space(broker, own, [])
    disk.free()
    eventually(token_file.exists, "the token")
    token = token_file.read_text().split()[0]
    eventually(lambda: call(broker, "GET", "/caller", token)[0] == 200, "a caller with it")


def test_salts_of_unknown_users_stay_when_the_secret_cannot_be_written(disk, start, passwords):
    import scram

    disk = disk()
    config = SMALL.replace("allow_anonymous = true", "") + "[auth]\npassword_file = \"{dir}/p\"\n"
    broker = on(disk, start, config, files={"p": passwords})
    secret = disk.seen_data / "auth.secret"
    secret.unlink()
    disk.fill()
    salts = []
    for _ in range(2):
        broker.restart()
        salts.append(scram.salt_of(broker.port(), "nobody"))
    assert not secret.exists()
    disk.free()
    eventually(secret.exists, "the secret")
    broker.restart("terminate")
    salts.append(scram.salt_of(broker.port(), "nobody"))
    assert len(set(salts)) == 1, "who does not exist looks the same at each start"


def test_a_start_that_needs_space_for_a_manifest_waits_for_it(disk, start):
    """As on a file system that copies on write: what is written in place has no block."""
    disk = disk()
    broker = on(disk, start)
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        put(peer, "a", "one")
    broker.kill()
    for manifest in disk.seen_data.glob("shard-*/manifest"):
        slots = manifest.read_bytes()
        numbers = [int.from_bytes(slots[at + 32 : at + 40], "little") for at in (0, 4096)]
        offset = (max(numbers) + 1) % 2 * 4096
        command = ["fallocate", "-p", "-o", str(offset), "-l", "4096", str(manifest)]
        subprocess.run(command, check=True)
    disk.fill()
    launch = threading.Thread(target=broker._launch, daemon=True)
    seen = len(broker.log)
    launch.start()
    broker.wait_for_log(lambda event: "the start waits for space" in event["message"], seen)
    disk.free()
    launch.join()
    assert waiting(broker, own) == (True, ["one"])


@pytest.mark.parametrize("lost", [None, "api.token", "all"])
def test_a_node_of_a_cluster_waits_for_space(nats, tmp_path, early, disk, lost):  # noqa: F811
    make_cluster(nats, tmp_path)
    disk = disk("size=8m")
    node = early(configured(nats, "n1"), data=disk.data, within=disk.within)

    def is_ready():
        return (node.try_get("/readyz") or (0,))[0] == 200

    eventually(is_ready, "an active node")
    node.kill()
    if lost == "all":
        shutil.rmtree(disk.seen_data)
    elif lost:
        (disk.seen_data / lost).unlink()
    disk.fill()
    seen = len(node.log)
    node._launch()
    # It may serve until it has something to write, or begin again and again.
    node.wait_for_log(
        lambda event: event["message"] in ("ready", "restarting as a standby"), seen
    )
    assert node.process.poll() is None, node.log_text()
    disk.free()
    eventually(is_ready, "the node with space again")
    assert node.process.poll() is None, node.log_text()
