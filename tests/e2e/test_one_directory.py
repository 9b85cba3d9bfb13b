"""The parts of a data directory belong together: none is replaced by an older or a foreign one."""

import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from broker import PLAIN, QUELEA
from test_data_directory import serve
from wire import PUBACK, PUBLISH, Peer, publish, subscribe


NAMESPACES = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace_from = ["username"]
[[namespaces]]
name = "red"
"""
SMALL = ["bans", "clock", "namespaces"]


def stop(broker):
    broker.terminate()
    assert broker.wait() == 0


def filled(start, config=PLAIN, **options):
    broker = start(config, arguments=["--shards=2"], **options)
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number in range(20):
            peer.send(publish(f"t/{number}", b"x", qos=1, retain=True))
            peer.expect(PUBACK)
    stop(broker)
    return broker


def again(broker):
    broker._launch()
    broker.port()
    stop(broker)


def tool(*arguments):
    return subprocess.run([QUELEA, *arguments], capture_output=True, text=True)


def refused(broker, *words):
    """A start, `log check` and `backup` say so alike."""
    ran = serve(broker.data)
    assert ran.returncode == 1
    checked = tool("log", "check", broker.data)
    assert checked.returncode == 1, checked.stdout
    target = broker.directory / "refused"
    copied = tool("backup", broker.data, target)
    assert copied.returncode == 1 and not target.exists(), copied.stdout
    for text in (ran.stderr, checked.stdout, copied.stderr):
        for word in (*words, "restore"):
            assert word in text, text
    shutil.rmtree(broker.directory / "refused.partial", ignore_errors=True)


def given_up(broker):
    """A repair gives up a shard, and the broker serves from the rest."""
    repaired = tool("log", "repair", broker.data, "--give-up-what-follows")
    assert repaired.returncode == 0 and "discarded" in repaired.stdout, repaired.stdout
    assert tool("log", "check", broker.data).returncode == 0
    again(broker)
    assert tool("log", "check", broker.data).returncode == 0


def replace(target, source):
    if target.is_dir():
        shutil.rmtree(target)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def test_an_older_copy_of_one_shard_is_refused(start, tmp_path):
    broker = filled(start)
    shutil.copytree(broker.data / "shard-001", tmp_path / "old")
    again(broker)
    replace(broker.data / "shard-001", tmp_path / "old")
    refused(broker, "shard-001", "start 1", "start 2")
    given_up(broker)


def test_a_shard_of_another_directory_is_refused(start):
    own, other = filled(start), filled(start)
    replace(own.data / "shard-001", other.data / "shard-001")
    refused(own, "shard-001", "another data directory")
    given_up(own)


def test_a_shard_without_any_file_is_refused(start):
    broker = filled(start)
    for path in (broker.data / "shard-001").iterdir():
        path.unlink()
    refused(broker, "shard-001")
    given_up(broker)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("how", ["emptied", "cut", "turned", "older", "lost"])
def test_a_small_file_that_is_not_as_it_was_is_refused(start, tmp_path, name, how):
    broker = filled(start)
    path = broker.data / name
    twin = broker.data / "shard-000" / name
    shutil.copy(path, tmp_path / name)
    again(broker)
    whole = path.read_bytes()
    for file in (path, twin):
        if not file.exists():
            continue
        if how == "older":
            shutil.copy(tmp_path / name, file)
        elif how == "lost":
            file.unlink()
        else:
            cut = {"emptied": b"", "cut": whole[:-5], "turned": whole.replace(b"e", b"o", 1)}[how]
            file.write_bytes(cut)
    refused(broker, name)
    if name == "namespaces":
        return
    repaired = tool("log", "repair", broker.data, "--give-up-what-follows")
    assert repaired.returncode == 0 and "created again" in repaired.stdout, repaired.stdout
    again(broker)


@pytest.mark.parametrize("how", ["lost", "older", "emptied"])
def test_the_names_of_namespaces_are_rebuilt_from_the_logs(start, tmp_path, how):
    config = NAMESPACES
    broker = start(config, arguments=["--shards=2"])
    own = {"client_id": "c", "clean": False, "properties": b"\x11\xff\xff\xff\xff"}
    with Peer(broker.port()) as peer:
        peer.accepted(user="red:c", **own)
        peer.subscribed("a", 1)
    stop(broker)
    names = broker.data / "namespaces"
    shutil.copy(names, tmp_path / "names")
    blue = '[[namespaces]]\nname = "blue"\n'
    text = broker.config.read_text()
    broker.config.write_text(text.replace("[[namespaces]]", blue + "[[namespaces]]", 1))
    again(broker)
    if how == "older":
        shutil.copy(tmp_path / "names", names)
    elif how == "lost":
        names.unlink()
    else:
        names.write_text("")
    broker._launch()
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(user="blue:c", **own)
        assert (flags & 1, reason) == (0, 0)
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(user="red:c", **own)
        assert (flags & 1, reason) == (1, 0)


def test_names_lost_give_nobody_another_ones_data(start):
    broker = start(NAMESPACES, arguments=["--shards=2"])
    own = {"client_id": "c", "clean": False, "properties": b"\x11\xff\xff\xff\xff"}
    with Peer(broker.port()) as peer:
        peer.accepted(user="red:c", **own)
        peer.subscribed("a", 1)
    stop(broker)
    (broker.data / "namespaces").unlink()
    twin = broker.data / "shard-000" / "namespaces"
    if twin.exists():
        twin.unlink()
    blue = '[[namespaces]]\nname = "blue"\n'
    text = broker.config.read_text()
    broker.config.write_text(text.replace("[[namespaces]]", blue + "[[namespaces]]", 1))
    with pytest.raises(AssertionError, match="namespaces"):
        broker._launch()


def test_a_secret_that_is_made_anew_is_told(start):
    def told(broker):
        return [line for line in broker.log if "secret" in line.get("message", "")]

    broker = filled(start)
    assert not told(broker)
    again(broker)
    assert not told(broker)
    (broker.data / "auth.secret").unlink()
    again(broker)
    [line] = told(broker)
    assert line["level"] == "WARN" and "SCRAM" in line["message"]
    assert line["path"] == str(broker.data / "auth.secret")


def test_a_backup_has_all_small_files_and_they_are_private(start):
    config = PLAIN + '[api]\nlisten = "http"\n'
    broker = filled(start, config)
    target = broker.directory / "copy"
    ran = tool("backup", broker.data, target)
    assert ran.returncode == 0, ran.stderr
    for name in [*SMALL, "auth.secret", "api.token", "shard-000/namespaces"]:
        assert (target / name).read_bytes() == (broker.data / name).read_bytes()
        for directory in (broker.data, target):
            assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((broker.data / "lock").stat().st_mode) == 0o600
    assert tool("log", "check", target).returncode == 0
    broker.data = target
    again(broker)


FORMAT_1 = Path(__file__).parent / "data" / "format-1.tar.xz"
KEEP = b"\x11\xff\xff\xff\xff"


def queued(broker, user):
    """What waits for the session `kept` of a user, by topic."""
    with Peer(broker.port()) as peer:
        peer.accepted(client_id="kept", user=user, clean=False, properties=KEEP)
        return dict(peer.message()[:2] for _ in range(5))


def retained(broker, user, count):
    with Peer(broker.port()) as peer:
        peer.accepted(user=user)
        peer.send(subscribe("r/#"))
        found = {}
        while len(found) < count:
            first, body = peer.recv()
            # They may come before the SUBACK.
            if first == PUBLISH | 1:
                length = int.from_bytes(body[:2])
                found[body[2 : 2 + length].decode()] = body[3 + length :]
        return found


def test_a_directory_of_format_1_is_taken_over_with_all_that_is_in_it(start, tmp_path):
    """Two shards, as the builds before format 2 left them: of two namespaces a session with five
    messages, and five retained ones."""
    with tarfile.open(FORMAT_1) as archive:
        archive.extractall(tmp_path, filter="data")
    config = NAMESPACES.replace("namespace_from", 'namespace = "default"\nnamespace_from')
    broker = start(config, arguments=["--shards=2"], data=tmp_path / "format-1")
    for user in ("red:anna", "anna"):
        payloads = [f"{user} {number}".encode() for number in range(5)]
        assert queued(broker, user) == {f"t/{n}": payload for n, payload in enumerate(payloads)}
        kept = {f"r/{n}": payload for n, payload in enumerate(payloads)}
        assert retained(broker, user, 5) == kept
    stop(broker)
    checked = tool("log", "check", broker.data)
    assert checked.returncode == 0, checked.stdout
    again(broker)
