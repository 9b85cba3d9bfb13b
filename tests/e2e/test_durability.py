"""What survives the end of the process, what does not, and what is done about full and broken disks.

`kill` is kill -9: nothing is left to the broker. Loss of power cannot be had here; the simulator has it.
"""

import resource
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from broker import PATIENCE_SECS, PLAIN, QUELEA, eventually
from slow_sync import Gate
from wire import (
    CONNACK, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Peer, ack, connect, fresh, packet,
    publish, subscribe,
)

NEVER = b"\x11\xff\xff\xff\xff"
LEVELS = ["disk", "fsync"]
ENDS = ["kill", "terminate"]


def at_level(level, more=""):
    return PLAIN + f'[durability]\nlevel = "{level}"\n{more}'


# A log that is full after some hundred messages, and goes on in a new file often.
SMALL = PLAIN + """
[server]
shards = 1
[sys]
interval_secs = "off"
[limits]
packet_bytes_max = "32KiB"
topic_bytes_max = 256
[durability]
segment_bytes = "128KiB"
"""


def named():
    return fresh("c").replace("/", "-")


def session(client_id, properties=NEVER):
    return {"client_id": client_id, "clean": False, "properties": properties}


def leave(peer):
    """An orderly end, which the broker has seen. What it sends meanwhile is not acknowledged."""
    peer.send(packet(0xE0))
    while peer.recv() is not None:
        pass


def subscribed_and_gone(broker, topic, options=1, properties=NEVER):
    """A persistent session with one subscription and no connection; returns its options."""
    own = session(named(), properties)
    with Peer(broker.port()) as peer:
        peer.accepted(**own).subscribed(topic, options)
        leave(peer)
    return own


def put(peer, topic, payload, packet_id=1, **options):
    """Publishes at QoS 1; returns the reason once it is acknowledged."""
    peer.send(publish(topic, payload, qos=1, packet_id=packet_id, version=peer.version, **options))
    body = peer.expect(PUBACK)
    assert body[:2] == packet_id.to_bytes(2)
    return body[2] if len(body) > 2 else 0


def put_all(broker, topic, payloads, **options):
    with Peer(broker.port()) as peer:
        peer.accepted()
        for number, payload in enumerate(payloads):
            assert put(peer, topic, payload, number % 60_000 + 1, **options) < 0x80


def waiting(broker, own):
    """What a returning subscriber gets, up to the answer to its PINGREQ. All acknowledged."""
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(**own)
        assert reason == 0
        got = drained(peer)
        leave(peer)
    return (flags & 1 == 1), got


def drained(peer):
    """Payloads up to a message through a subscription made now, which comes after all that waits."""
    fence = fresh("fence")
    peer.send(subscribe(fence, 1, packet_id=9, version=peer.version))
    got = []
    releases = 0
    is_last = False
    while True:
        first, body = peer.recv()
        if first == SUBACK:
            peer.send(publish(fence, "", qos=1, packet_id=10, version=peer.version))
        elif first & 0xF0 == PUBLISH:
            topic, payload, qos = taken(peer, first, body)
            is_last |= topic == fence
            # That of an earlier call comes again when its acknowledgement was lost in a crash.
            got += [payload] if not topic.startswith("fence/") else []
            releases += qos == 2
        elif first == PUBREL:
            peer.send(ack(PUBCOMP, int.from_bytes(body[:2])))
            releases -= 1
        if is_last and releases <= 0:
            return got


def received(broker, own, count):
    """The next messages, as many as are expected; for a log that takes no fence."""
    with Peer(broker.port()) as peer:
        peer.accepted(**own)
        got = [peer.message()[1].decode() for _ in range(count)]
        leave(peer)
    return got


def taken(peer, first, body):
    """Topic, payload and QoS of a PUBLISH, after answering it."""
    at = 2 + int.from_bytes(body[:2])
    topic, qos = body[2:at].decode(), first >> 1 & 3
    if qos:
        peer.send(ack(PUBACK if qos == 1 else PUBREC, int.from_bytes(body[at : at + 2])))
        at += 2
    if peer.version == 5:
        at += 1 + body[at]
    return topic, body[at:].decode(), qos


def total(broker, name):
    found = broker.metrics().items()
    return sum(value for metric, value in found if metric.split("{")[0] == name)


def run(*arguments):
    command = [QUELEA, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECS)


# What survives.


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ENDS)
def test_sessions_with_their_messages_survive(start, level, how):
    broker = start(at_level(level))
    owns = [subscribed_and_gone(broker, "a/#") for _ in range(5)]
    payloads = [str(number) for number in range(100)]
    put_all(broker, "a/b", payloads)
    broker.restart(how)
    restored = broker.wait_for_log(lambda event: event["message"] == "state restored", 1)
    assert restored["sessions"] == 5 and restored["subscriptions"] == 5, restored
    assert restored["messages"] >= 100, restored
    for own in owns:
        assert waiting(broker, own) == (True, payloads)
    broker.restart(how)
    for own in owns:
        present, got = waiting(broker, own)
        # A crash may bring back what was acknowledged just before, and in order; a stop may not.
        assert present and got == (payloads[-len(got) :] if how == "kill" and got else [])


def test_messages_of_several_turns_share_a_commit_that_waits(start):
    config = at_level("fsync", "commit_delay_ms = 1000\n[server]\nshards = 1\n")
    with Gate() as gate:
        # A commit is alone, and waits for nobody, if the one before is over when its message comes.
        slow = {"SYNC_DELAY_MS": "100"}
        broker = start(config, environment=gate.environment | slow)
        own = subscribed_and_gone(broker, "a/#")
        payloads = [str(number) for number in range(100)]
        begun, before, acknowledged = time.monotonic(), gate.begun(), 0
        with Peer(broker.port()) as peer:
            peer.accepted()
            for number, payload in enumerate(payloads):
                message = publish("a/b", payload, qos=1, packet_id=number + 1, version=peer.version)
                peer.send(message)
                # A turn of its own for each.
                peer.send(packet(0xC0))
                while peer.recv()[0] != PINGRESP:
                    acknowledged += 1
            for _ in range(len(payloads) - acknowledged):
                peer.expect(PUBACK)
        # Each second has one sync at most, beside those of the session.
        assert 0 < gate.begun() - before < 3 + time.monotonic() - begun
        broker.restart("kill")
        assert waiting(broker, own) == (True, payloads)


@pytest.mark.parametrize("version", [4, 5])
def test_a_subscription_is_kept_once_it_is_acknowledged(start, version):
    broker = start()
    own = session(named(), NEVER if version == 5 else b"")
    with Peer(broker.port(), version) as peer:
        peer.accepted(**own).subscribed("a", 1).subscribed("b", 1)
        peer.send(packet(0xA2, b"\0\1" + (b"\0" if version == 5 else b"") + b"\0\1b"))
        peer.expect(0xB0)
        broker.restart()
    put_all(broker, "a", ["kept"])
    put_all(broker, "b", ["not asked for"])
    with Peer(broker.port(), version) as peer:
        flags, _, _ = peer.connect(**own)
        assert flags & 1 == 1
        assert peer.message()[1] == b"kept"
        peer.ping()


def test_messages_go_on_after_a_restart_as_before(start):
    broker = start()
    own = subscribed_and_gone(broker, "a")
    for number in range(4):
        put_all(broker, "a", [f"{number} before"])
        broker.restart(ENDS[number % 2])
        put_all(broker, "a", [f"{number} after"])
    present, got = waiting(broker, own)
    assert present
    assert got == [f"{number} {when}" for number in range(4) for when in ("before", "after")]


@pytest.mark.parametrize("how", ENDS)
def test_retained_messages_survive(start, how):
    broker = start()
    put_all(broker, "kept", ["old"], retain=True)
    put_all(broker, "kept", ["new"], retain=True)
    put_all(broker, "cleared", ["x"], retain=True)
    put_all(broker, "cleared", [""], retain=True)
    for _ in range(2):
        broker.restart(how)
        with Peer(broker.port()) as peer:
            peer.accepted().subscribed("kept", 1)
            assert peer.message() == ("kept", b"new", 1, 1)
            peer.subscribed("cleared", 1)
            peer.ping()


@pytest.mark.parametrize("level", LEVELS)
def test_order_and_what_is_retained_hold_for_a_publisher_that_mixes_qos(start, level):
    broker = start(at_level(level))
    base = fresh("mixed")
    qualities = [2, 1, 2, 0, 2, 1]
    with Peer(broker.port()) as reader, Peer(broker.port()) as peer:
        reader.accepted().subscribed(f"{base}/#", 2)
        peer.accepted(**session(named()))
        for topic in [f"{base}/{number}" for number in range(30)]:
            peer.send(b"".join(
                publish(topic, str(number), qos=qos, packet_id=number + 1, retain=True)
                for number, qos in enumerate(qualities)
            ))
            # PUBACK or PUBREC of each, in their order (MQTT-4.6.0-2).
            for number, qos in enumerate(qualities):
                if qos:
                    body = peer.expect(PUBACK if qos == 1 else PUBREC)
                    assert int.from_bytes(body[:2]) == number + 1
            for number, qos in enumerate(qualities):
                if qos == 2:
                    peer.send(ack(PUBREL, number + 1))
                    peer.expect(PUBCOMP)
            got = []
            while len(got) < len(qualities):
                first, body = reader.recv()
                if first & 0xF0 == PUBLISH:
                    got.append(taken(reader, first, body)[1])
                else:
                    reader.send(ack(PUBCOMP, int.from_bytes(body[:2])))
            assert got == ["0", "1", "2", "3", "4", "5"]
    for _ in range(2):
        with Peer(broker.port()) as late:
            late.accepted().subscribed(f"{base}/#", 0)
            assert {late.message()[1] for _ in range(30)} == {b"5"}
        broker.restart("kill")


def test_a_level_of_memory_keeps_nothing(start):
    broker = start(at_level("memory"))
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["x"], retain=True)
    broker.restart("terminate")
    assert waiting(broker, own) == (False, [])


def test_sessions_that_end_with_their_connection_write_nothing(start):
    broker = start(SMALL)
    with Peer(broker.port()) as reader:
        reader.accepted().subscribed("a", 1)
        eventually(lambda: total(broker, "quelea_log_segments") > 0, "a log")
        before = total(broker, "quelea_log_records_total")
        put_all(broker, "a", ["x"] * 50)
        for _ in range(50):
            reader.message()
    assert total(broker, "quelea_log_records_total") == before


def test_a_listener_may_keep_nothing(start):
    config = PLAIN + '[[listeners]]\nurl = "tcp://127.0.0.1:0"\ndurability = "memory"\n'
    broker = start(config)
    kept = subscribed_and_gone(broker, "a")
    lost = session(named())
    with Peer(broker.port(nth=1)) as peer:
        peer.accepted(**lost).subscribed("a", 1)
        leave(peer)
    put_all(broker, "a", ["x"])
    broker.restart()
    assert waiting(broker, kept) == (True, ["x"])
    assert waiting(broker, lost) == (False, [])


def test_topics_have_levels_of_their_own(start):
    broker = start(at_level("fsync", 'topics = ["cache/#=memory"]\n'))
    own = subscribed_and_gone(broker, "#")
    put_all(broker, "cache/a", ["lost"])
    put_all(broker, "a", ["kept"])
    broker.restart()
    assert waiting(broker, own) == (True, ["kept"])


# Exactly once.


def test_a_qos_2_publish_is_taken_once_across_a_restart(start):
    broker = start()
    own = subscribed_and_gone(broker, "a", 2)
    sender = session(named())
    with Peer(broker.port()) as peer:
        peer.accepted(**sender).send(publish("a", "once", qos=2, packet_id=7))
        peer.expect(PUBREC)
        broker.restart()
    with Peer(broker.port()) as peer:
        assert peer.connect(**sender)[0] & 1 == 1
        again = bytearray(publish("a", "once", qos=2, packet_id=7))
        again[0] |= 8
        peer.send(bytes(again))
        assert peer.expect(PUBREC)[:2] == b"\0\7"
        peer.send(ack(PUBREL, 7))
        peer.expect(PUBCOMP)
        broker.restart()
    assert waiting(broker, own) == (True, ["once"])


def test_a_qos_2_delivery_is_finished_after_a_restart(start):
    broker = start()
    own = subscribed_and_gone(broker, "a", 2)
    with Peer(broker.port()) as peer:
        peer.accepted()
        peer.send(publish("a", "once", qos=2, packet_id=1))
        peer.expect(PUBREC)
        peer.send(ack(PUBREL, 1))
        peer.expect(PUBCOMP)
    with Peer(broker.port()) as peer:
        peer.accepted(**own)
        first, body = peer.recv()
        assert first & 0xF6 == PUBLISH | 4
        packet_id = int.from_bytes(body[3:5])
        broker.restart()
    with Peer(broker.port()) as peer:
        peer.accepted(**own)
        first, body = peer.recv()
        assert first == PUBLISH | 4 | 8, "the same delivery again"
        assert int.from_bytes(body[3:5]) == packet_id, "with the same packet id"
        peer.send(ack(PUBREC, packet_id))
        assert int.from_bytes(peer.expect(PUBREL)[:2]) == packet_id
        broker.restart()
    with Peer(broker.port()) as peer:
        peer.accepted(**own)
        assert int.from_bytes(peer.expect(PUBREL)[:2]) == packet_id
        peer.send(ack(PUBCOMP, packet_id))
        peer.ping()
        leave(peer)
    broker.restart()
    assert waiting(broker, own) == (True, [])


# Times and wills.


def test_expiry_goes_on_while_the_broker_is_down(start):
    broker = start()
    short = subscribed_and_gone(broker, "a", properties=b"\x11\0\0\0\x01")
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["gone"], properties=b"\x02\0\0\0\x01")
    put_all(broker, "a", ["kept"], properties=b"\x02\0\0\x0e\x10")
    broker.kill()
    # Expiry has a grain of a second; this is the time that passes, not a wait for something.
    time.sleep(2.1)
    broker._launch()
    assert waiting(broker, own) == (True, ["kept"])
    assert waiting(broker, short) == (False, [])


@pytest.mark.parametrize("how", ["kill", "gone"])
def test_a_will_with_a_delay_survives(start, how):
    """`kill`: the broker ends under the connection. `gone`: the connection has ended before."""
    broker = start()
    watcher = subscribed_and_gone(broker, "will")
    body = connect(**session(named()), will=("will", "last words", 1, False))
    # The delay is a property of the will, which `connect` leaves empty. A connection that has ended
    # leaves so much time for the restart before its will.
    delay = b"\1" if how == "kill" else b"\5"
    body = body.replace(b"\0" + b"\0\4will", b"\5\x18\0\0\0" + delay + b"\0\4will")
    body = bytes([body[0], body[1] + 5]) + body[2:]
    with Peer(broker.port()) as peer:
        peer.send(body)
        assert peer.recv()[1][1] == 0
        # What a SUBACK waits for is behind the will.
        peer.subscribed("other", 1)
        if how == "kill":
            broker.restart()
    if how == "gone":
        eventually(lambda: total(broker, "quelea_connections") == 0, "the end of the connection")
        broker.restart()
    eventually(lambda: total(broker, "quelea_wills_published_total") == 1, "the will")
    assert waiting(broker, watcher) == (True, ["last words"])


@pytest.mark.parametrize("how", ENDS)
def test_the_will_of_a_clean_session_survives(start, how):
    broker = start(at_level("fsync", "will_grace_secs = 2\n"))
    watcher = subscribed_and_gone(broker, "will/#")
    lost, back = named(), named()
    peers = [Peer(broker.port()), Peer(broker.port())]
    for peer, name in zip(peers, [lost, back], strict=True):
        peer.accepted(client_id=name, will=(f"will/{name}", name, 1, False))
    broker.restart(how)
    with Peer(broker.port()) as again:
        again.accepted(client_id=back)
        eventually(lambda: total(broker, "quelea_wills_published_total") == 1, "the will")
        assert waiting(broker, watcher) == (True, [lost])
    for peer in peers:
        peer.close()


# Shared subscriptions.


def test_a_shared_group_queues_across_a_restart(start):
    broker = start()
    owns = [subscribed_and_gone(broker, "$share/g/a") for _ in range(2)]
    payloads = [str(number) for number in range(20)]
    put_all(broker, "a", payloads)
    broker.restart()
    put_all(broker, "a", ["last"])
    got = []

    def all_have_come():
        # What its home gives a member comes when it comes: no answer of the member's shard says so.
        got.extend(payload for own in owns for payload in waiting(broker, own)[1])
        return len(got) > len(payloads)

    eventually(all_have_come, "the messages of the group")
    assert sorted(got) == sorted([*payloads, "last"])


# Full logs: one publisher alone may fill nearly half of `log_bytes_max` (decision 46), which is
# more than this. The others, and disks that are full, are for the tests of the broker and the
# simulator.

SHARE_BYTES = 3 * 1024 * 1024 // 8


def fill(peer, topic, start_at=0):
    """Publishes until it is refused; returns the payloads that were acknowledged."""
    taken = []
    for number in range(start_at, start_at + 10_000):
        payload = str(number).ljust(1000)
        reason = put(peer, topic, payload, number % 60_000 + 1)
        if reason >= 0x80:
            assert reason in (0x97, 0x83), hex(reason)
            return taken
        taken.append(payload)
    raise AssertionError("the log took everything")


def test_a_full_log_refuses_and_recovers(start):
    broker = start(SMALL + 'log_bytes_max = "1MiB"\n')
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as peer:
        peer.accepted()
        taken = fill(peer, "a")
        assert len(taken) > 100
        event = broker.wait_for_log(lambda event: "publishes refused" in event["message"])
        assert event["level"] == "WARN" and "memory is full" in event["message"]
        assert broker.get("/readyz")[0] == 200, "clients are served all the same"
        # What needs no space goes on.
        with Peer(broker.port()) as reader:
            reader.accepted().subscribed("live", 0)
            peer.send(publish("live", "x"))
            assert reader.message()[1] == b"x"
        broker.restart()
    assert received(broker, own, len(taken)) == taken
    with Peer(broker.port()) as peer:
        peer.accepted()
        eventually(lambda: put(peer, "a", "again") < 0x80, "space for the next message")
    assert waiting(broker, own) == (True, ["again"])
    lines = [event for event in broker.log if "publishes refused" in event["message"]]
    assert len(lines) <= 4, "once a second for a client, not for each message"


def test_a_full_log_may_make_publishers_wait(start):
    broker = start(SMALL + 'log_bytes_max = "1MiB"\nwhen_full = "wait"\n')
    own = subscribed_and_gone(broker, "a")
    count = 1500
    acknowledged = []

    def publish_all():
        with Peer(broker.port()) as peer:
            peer.accepted()
            for number in range(count):
                acknowledged.append(put(peer, "a", str(number).ljust(1000), number + 1))

    thread = threading.Thread(target=publish_all, daemon=True)
    thread.start()
    # As far as its share goes; the rest has to wait until somebody takes what is there.
    eventually(lambda: len(acknowledged) > SHARE_BYTES // 2 // 1000, "the first of them")
    assert len(acknowledged) < count
    got = received(broker, own, count)
    thread.join(PATIENCE_SECS)
    assert acknowledged == [0] * count
    assert [payload.strip() for payload in got] == [str(number) for number in range(count)]


def test_a_publisher_that_has_to_wait_is_not_taken_for_dead(start):
    broker = start(SMALL + 'log_bytes_max = "1MiB"\nwhen_full = "wait"\n')
    own = subscribed_and_gone(broker, "a")
    with Peer(broker.port()) as filler, Peer(broker.port()) as peer:
        filler.accepted()
        filled = SHARE_BYTES // 1000 + 200
        for number in range(filled):
            filler.send(publish("a", "x" * 1000, qos=1, packet_id=1 + number))
        # They are not read before there is space, and neither are PINGREQs.
        count = 100
        messages = [publish("a", "y" * 1000, qos=1, packet_id=1 + at) for at in range(count)]
        peer.send(connect(keep_alive=1), *messages)
        # Twice what a silent client is given.
        time.sleep(3)
        assert len(received(broker, own, filled + count)) == filled + count
        assert peer.expect(CONNACK)[1] == 0
        assert [peer.expect(PUBACK)[:2] for _ in range(count)] == [
            number.to_bytes(2) for number in range(1, count + 1)
        ]


def test_a_failed_write_ends_all_promises(start):
    """The system refuses the next write, as a broken disk would. (Not a sync: nothing here can make
    one fail. The simulator can.)"""
    broker = start(PLAIN + "[server]\nshards = 1\n")
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["kept"])
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (1, 1))
    with Peer(broker.port()) as peer:
        peer.accepted()
        peer.send(publish("a", "lost", qos=1))
        first, body = peer.recv()
        assert first != PUBACK or body[2] >= 0x80, "it promises"
    event = broker.wait_for_log(lambda event: "no message that must be stored" in event["message"])
    assert event["level"] == "ERROR"
    eventually(lambda: total(broker, "quelea_log_poisoned") == 1, "the failed log in the metrics")
    assert broker.get("/readyz")[0] == broker.get("/healthz")[0] == 503
    with Peer(broker.port()) as peer, Peer(broker.port()) as reader:
        reader.accepted().subscribed("live", 0)
        peer.accepted().send(publish("live", "x"))
        assert reader.message()[1] == b"x", "what needs no log goes on"
    broker.restart("terminate")
    assert broker.get("/readyz")[0] == 200
    assert waiting(broker, own) == (True, ["kept"])


# Torn and broken files.


def log_file(data, shard, segment):
    return data / f"shard-{shard:03}" / f"{segment:010}.log"


def write_at(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_torn_tail_is_cut_and_told(start):
    """The last batch has its header, and not all of its body."""
    broker = start(PLAIN + "[server]\nshards = 1\n")
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["before", "torn"])
    broker.kill()
    file = log_file(broker.data, 0, 1)
    write_at(file, file.read_bytes().index(b"torn"), b"\0\0\0\0")
    assert "torn tail" in run("log", "check", broker.data).stdout
    seen = len(broker.log)
    broker._launch()
    event = broker.wait_for_log(lambda event: "torn by a crash" in event["message"], seen)
    assert event["level"] == "WARN"
    assert waiting(broker, own) == (True, ["before"])


def test_damage_is_refused_and_mended_only_on_demand(start):
    broker = start(PLAIN + "[server]\nshards = 1\n")
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["before", "damaged", "behind"])
    broker.terminate()
    assert broker.wait() == 0
    file = log_file(broker.data, 0, 1)
    write_at(file, file.read_bytes().index(b"damaged"), b"D")
    ran = run("serve", "--port=0", "--http=off", f"--data={broker.data}")
    assert ran.returncode == 1
    assert "damaged" in ran.stderr and "quelea log check" in ran.stderr
    assert "restore a backup" in ran.stderr

    checked = run("log", "check", broker.data)
    assert checked.returncode == 1 and "REFUSED" in checked.stdout
    planned = run("log", "repair", broker.data)
    assert planned.returncode == 1 and "nothing was changed" in planned.stdout
    assert run("log", "repair", broker.data, "--give-up-what-follows").returncode == 0
    broker._launch()
    assert waiting(broker, own) == (True, ["before"])


def newest_file(data, shard=0):
    """The last file of a log that was begun: its header has its own number."""
    files = sorted((data / f"shard-{shard:03}").glob("*.log"))
    begun = [file for file in files if header_number(file) == int(file.stem)]
    return begun[-1]


def header_number(file):
    with file.open("rb") as content:
        return int.from_bytes(content.read(36)[32:], "little")


def cut(file, size):
    with file.open("r+b") as content:
        content.truncate(size)


LOSSES = {
    "removed": lambda file, older: file.unlink(),
    "cut short": lambda file, older: cut(file, file.stat().st_size // 2),
    "emptied": lambda file, older: cut(file, 0),
    "an older copy": lambda file, older: file.write_bytes(older),
    "without a manifest": lambda file, older: (file.parent / "manifest").unlink(),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_newest_file_is_refused_and_given_up_on_demand(start, how, loss):
    broker = start(SMALL)
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["first"])
    broker.restart()
    older = newest_file(broker.data).read_bytes()
    payloads = [str(number).ljust(1000) for number in range(300)]
    put_all(broker, "a", payloads)
    if loss == "an older copy":
        # Of this very file: it was not the newest one any more.
        older = newest_file(broker.data).read_bytes()
        broker.restart()
        put_all(broker, "a", ["last"])
    getattr(broker, how)()
    broker.wait()
    assert run("log", "check", broker.data).returncode == 0
    LOSSES[loss](newest_file(broker.data), older)

    ran = run("serve", "--port=0", "--http=off", f"--data={broker.data}", f"--config={broker.config}")
    assert ran.returncode == 1, ran.stderr
    assert "shard-000" in ran.stderr and "quelea log repair" in ran.stderr
    checked = run("log", "check", broker.data)
    assert checked.returncode == 1 and "REFUSED" in checked.stdout, checked.stdout
    assert run("log", "repair", broker.data).returncode == 1
    assert run("log", "repair", broker.data, "--give-up-what-follows").returncode == 0
    assert run("log", "check", broker.data).returncode == 0
    broker._launch()
    with Peer(broker.port()) as peer:
        peer.accepted()
        # The last file that is left may be full to the brim.
        eventually(lambda: put(peer, "kept", "x", retain=True) < 0x80, "room in the log")
    present, got = waiting(broker, own)
    everything = ["first", *payloads, "last"]
    assert present and got == everything[: len(got)]


def test_a_start_reads_what_is_used_of_the_files(start):
    broker = start()
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["x", "y", "z"])
    broker.restart()
    size = sum(file.stat().st_size for file in broker.data.glob("shard-*/*.log"))
    with open(f"/proc/{broker.process.pid}/io") as file:
        read = int(file.readline().removeprefix("rchar: "))
    assert read < 8 << 20 < 100 << 20 < size
    assert waiting(broker, own) == (True, ["x", "y", "z"])


def test_a_file_that_cannot_be_read_is_named(start):
    broker = start(PLAIN + "[server]\nshards = 1\n")
    broker.terminate()
    assert broker.wait() == 0
    file = log_file(broker.data, 0, 1)
    file.unlink()
    file.mkdir()
    ran = run("serve", "--port=0", "--http=off", f"--data={broker.data}")
    assert ran.returncode == 1
    assert f"cannot read {file} at offset 0" in ran.stderr, ran.stderr


def test_a_dump_says_what_the_records_say(start):
    broker = start()
    own = subscribed_and_gone(broker, "some/+/filter")
    put_all(broker, "some/new/filter", ["the payload"])
    broker.terminate()
    assert broker.wait() == 0
    dumped = run("log", "dump", broker.data).stdout
    for text in (own["client_id"], '"some/+/filter"', '"some/new/filter"', '"the payload"'):
        assert text in dumped, dumped
    assert run("log", "check", broker.data).stdout.count("closed in order") >= 1


# Backups.


@contextmanager
def flow(broker, topic):
    """Messages that are published until the block ends; yields the list of the acknowledged ones."""
    is_over = threading.Event()
    sent = []

    def publish_on():
        with Peer(broker.port()) as peer:
            peer.accepted()
            while not is_over.is_set():
                payload = f"during {len(sent)}"
                assert put(peer, topic, payload, len(sent) % 60_000 + 1) == 0
                sent.append(payload)

    thread = threading.Thread(target=publish_on, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join(PATIENCE_SECS)


BEFORE = [str(number) for number in range(200)]


def with_messages(broker):
    """A session for which `BEFORE` waits, and a retained message."""
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "kept", ["retained"], retain=True)
    put_all(broker, "a", BEFORE)
    return own


def is_whole_in(restored, own, sent):
    """A broker on a backup that was made while `sent` came."""
    present, got = waiting(restored, own)
    assert present and got[: len(BEFORE)] == BEFORE
    # The first of what came during the backup may be in it, in order.
    assert got[len(BEFORE) :] == sent[: len(got) - len(BEFORE)]
    with Peer(restored.port()) as peer:
        peer.accepted().subscribed("kept", 1)
        assert peer.message() == ("kept", b"retained", 1, 1)
    # The copy is a broker's own: it goes on, and is found again.
    put_all(restored, "a", ["news"])
    restored.restart()
    assert waiting(restored, own) == (True, ["news"])


def test_a_backup_is_made_while_messages_flow(start):
    broker = start()
    own = with_messages(broker)
    copy = broker.directory / "copy"
    with flow(broker, "a") as sent:
        ran = run("backup", broker.data, copy)
    assert ran.returncode == 0, ran.stderr
    assert "ok" in ran.stdout
    broker.wait_for_log(lambda event: event["message"] == "backup done")
    assert waiting(broker, own) == (True, BEFORE + sent)
    is_whole_in(start(data=copy), own, sent)


def test_space_comes_back_after_a_backup(start):
    broker = start(SMALL)
    own = subscribed_and_gone(broker, "a")
    assert run("backup", broker.data, broker.directory / "copy").returncode == 0
    for _ in range(5):
        put_all(broker, "a", ["x" * 1000] * 300)
        assert len(waiting(broker, own)[1]) == 300
    reclaimed = "quelea_log_segments_reclaimed_total"
    eventually(lambda: total(broker, reclaimed) > 0, "a file that came back")


def test_backups_of_a_log_that_is_reclaimed_all_the_time(start):
    broker = start(SMALL)
    own = session(named())
    is_over = threading.Event()

    def flow():
        with Peer(broker.port()) as reader, Peer(broker.port()) as peer:
            reader.accepted(**own).subscribed("a", 1)
            peer.accepted()
            while not is_over.is_set():
                put(peer, "a", "x" * 4000)
                first, body = reader.recv()
                taken(reader, first, body)

    thread = threading.Thread(target=flow, daemon=True)
    thread.start()
    try:
        for number in range(20):
            ran = run("backup", broker.data, broker.directory / f"copy-{number}")
            assert ran.returncode == 0, ran.stderr
    finally:
        is_over.set()
        thread.join(PATIENCE_SECS)


def test_what_a_backup_that_did_not_end_has_left_is_replaced(start):
    broker = start()
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["x"])
    left = broker.directory / "copy.partial" / "shard-000"
    left.mkdir(parents=True)
    (left / "0000000007.log").write_bytes(b"half of it")
    ran = run("backup", broker.data, broker.directory / "copy")
    assert ran.returncode == 0, ran.stderr
    assert not left.parent.exists()
    assert waiting(start(data=broker.directory / "copy"), own) == (True, ["x"])


def test_a_backup_of_a_stopped_broker(start):
    broker = start()
    own = subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["x"])
    broker.kill()
    copy = broker.directory / "copy"
    ran = run("backup", broker.data, copy)
    assert ran.returncode == 0, ran.stderr
    again = run("backup", broker.data, copy)
    assert again.returncode == 1 and "must be empty" in again.stderr
    assert waiting(start(data=copy), own) == (True, ["x"])


# Figures.


def test_figures_of_the_log_are_shown(start):
    broker = start(PLAIN + "[sys]\ninterval_secs = 1\n")
    subscribed_and_gone(broker, "a")
    put_all(broker, "a", ["x"] * 10)
    eventually(lambda: total(broker, "quelea_log_records_total") >= 10, "records")
    metrics = broker.metrics()
    assert metrics["quelea_log_commit_seconds_count"] > 0
    assert metrics['quelea_log_commit_seconds_bucket{le="+Inf"}'] == (
        metrics["quelea_log_commit_seconds_count"]
    )
    assert total(broker, "quelea_log_live_bytes") <= total(broker, "quelea_log_used_bytes")
    assert total(broker, "quelea_log_full") == total(broker, "quelea_log_poisoned") == 0
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("$SYS/broker/log/+")
        found = {}
        while int(found.get("$SYS/broker/log/records", 0)) < 10 or "$SYS/broker/log/state" not in found:
            found.update([peer.message()[:2]])
    assert found["$SYS/broker/log/state"] == b"ready"


def test_the_topics_of_sys_are_not_kept(start):
    broker = start(PLAIN + "[sys]\ninterval_secs = 1\n")
    with Peer(broker.port()) as peer:
        peer.accepted().subscribed("$SYS/broker/uptime")
        peer.message()
    broker.kill()
    assert "$SYS" not in run("log", "dump", broker.data).stdout
