"""Bridges: of quelea to quelea and mosquitto, and of mosquitto to quelea."""

import json
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from bridges import (
    FIXED, LISTENER, MEMORY, MORE_QUEUE, PERSISTENT, Publisher, any_remote, bridge_to, bridging,
    drained, free_port, is_connected, lag, listening, mosquitto, relayed, remote_of,
)
from broker import PATIENCE_SECS, QUELEA, eventually, sum_of
from test_api import Api
from test_events import Stream
from wire import (
    CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer, ack, connect, fresh, packet, publish,
    subscribe,
)


@contextmanager
def bridged(broker, directory, protocol):
    """The port of a mosquitto that has a bridge for `#` to the broker."""
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        f"connection bridge\naddress 127.0.0.1:{broker.port()}\n"
        f"bridge_protocol_version {protocol}\nrestart_timeout 1\ntopic # both 1\n"
    )
    process = subprocess.Popen(
        ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
        eventually(lambda: sum_of(broker, "quelea_subscriptions") == 1, "the bridge's #")
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_SECS)


@pytest.mark.parametrize("protocol", ["mqttv31", "mqttv311"])
def test_a_bridge_of_mosquitto_gets_no_echo_and_keeps_retain_flags(start, tmp_path, protocol):
    broker = start()
    with bridged(broker, tmp_path, protocol) as port:
        topic = fresh("bridged")
        here = Peer(broker.port()).accepted(client_id="here")
        there = Peer(port).accepted(client_id="there")
        here.subscribed(topic)
        there.subscribed(topic)
        there.send(publish(topic, b"from there"))
        assert here.message()[1] == b"from there"
        # An echo would come before this one.
        here.send(publish(topic, b"from here", retain=True))
        assert [there.message()[1] for _ in range(2)] == [b"from there", b"from here"]
        # It was retained there, too.
        late = Peer(port).accepted(client_id="late")
        late.subscribed(topic)
        assert late.message()[1::2] == (b"from here", 1)
        for peer in (here, there, late):
            peer.close()


# --- quelea as a bridge ---


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("remote", ["quelea", "mosquitto"])
def test_messages_cross_a_bridge_once_with_their_qos_and_retain_flag(
    start, tmp_path, remote, protocol
):
    with any_remote(remote, start, tmp_path) as port:
        topics = ["# both 2 here/ there/", "a out 1", "b in 0 - far/"]
        broker = bridging(start, port, topics, protocol=protocol)
        here = listening(broker.port(), "#")
        there = listening(port, "#")
        with Peer(broker.port(), 4).accepted(client_id="one") as one:
            one.send(publish("here/x", b"0", retain=True, version=4))
            assert there.message() == ("there/x", b"0", 0, 0)
            assert here.message()[:2] == ("here/x", b"0")
            for number, qos in enumerate([1, 1, 0], 1):
                one.send(publish("here/x", f"{number}", qos, number, version=4))
            assert [there.message()[1:3] for _ in range(3)] == [(b"1", 1), (b"2", 1), (b"3", 0)]
            assert [here.message()[1] for _ in range(3)] == [b"1", b"2", b"3"]
            one.send(publish("a", b"to a", version=4), publish("far/b", b"not b", version=4))
            assert there.message()[:2] == ("a", b"to a")
            assert [here.message()[0] for _ in range(2)] == ["a", "far/b"]
        with Peer(port, 4).accepted(client_id="two") as two:
            two.send(publish("there/y", b"in", 1, 1, version=4))
            two.send(publish("far/b", b"to b", version=4))
            assert here.message()[:3] == ("here/y", b"in", 1)
            assert here.message()[:2] == ("b", b"to b")
            assert [there.message()[0] for _ in range(2)] == ["there/y", "far/b"]
        late = Peer(port, 4).accepted(client_id="late")
        late.send(subscribe("there/#", 0, version=4))
        late.recv()
        assert late.message() == ("there/x", b"0", 0, 1)
        name = 'quelea_bridge_messages_total{bridge="cloud",direction="%s"}'

        def counts():
            metrics = broker.metrics()
            return metrics[name % "out"], metrics[name % "in"]

        # They may lag behind the messages.
        eventually(lambda: counts() == (5, 2), "counts of the bridge of 5 and 2")
        for peer in (here, there, late):
            peer.close()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("victim", ["bridge", "remote"])
def test_a_kill_loses_nothing_and_doubles_nothing_at_qos_2(
    start, victim, direction, protocol, qos
):
    remote, port = remote_of(start, MORE_QUEUE)
    keys = {"protocol": protocol}
    broker = bridging(start, port, [f"t {direction} 2"], MORE_QUEUE, **keys)
    source, target = (broker, remote) if direction == "out" else (remote, broker)
    with Peer(target.port()).accepted(
        client_id="ledger", clean=False, properties=PERSISTENT
    ) as peer:
        peer.subscribed("t", 2)
    publisher = Publisher(source.port(), "t", qos)
    for number in range(120):
        publisher.publish(f"m:{number}")
        if number % 40 == 25:
            (broker if victim == "bridge" else remote).restart("kill")
    eventually(lambda: is_connected(broker), "the bridge")
    while b"m:end" not in publisher.acknowledged:
        publisher.publish("m:end")
    payloads = drained(target.port(), "ledger", b"end")
    wanted = [payload.split(b":")[1] for payload in publisher.acknowledged]
    assert len(wanted) > 100
    assert set(wanted) <= set(payloads), sorted(set(wanted) - set(payloads))
    if qos == 2:
        assert len(payloads) == len(set(payloads)), payloads


def test_a_remote_that_is_away_gets_its_messages_later_up_to_the_limit(start):
    remote, port = remote_of(start)
    broker = bridging(
        start, port, ["t out 1"], "\n[limits]\nqueued_messages_max = 50\n"
    )
    with Peer(port).accepted(client_id="ledger", clean=False, properties=PERSISTENT) as peer:
        peer.subscribed("t", 1)
    remote.kill()
    eventually(lambda: not is_connected(broker), "the end of the connection")
    publisher = Publisher(broker.port(), "t", 1)
    for number in range(70):
        publisher.publish(f"m:{number}")
    assert len(publisher.acknowledged) == 70
    eventually(lambda: lag(broker) == 50, "the lag")
    remote._launch()
    payloads = drained(port, "ledger", b"69")
    # `queue_overflow` drops the oldest.
    assert payloads == [str(number).encode() for number in range(20, 70)]
    eventually(lambda: lag(broker) == 0, "the lag")
    dropped = [v for name, v in broker.metrics().items() if "messages_dropped_total" in name]
    assert sum(dropped) == 20


def test_bridges_in_a_circle_do_not_relay_for_ever(start):
    """Two bridges between the same brokers, of which each relays what the other has relayed."""
    remote_port = free_port()
    broker = start(FIXED.format(free_port()) + bridge_to(remote_port, ["t both 1"], hops_max=4))
    back = bridge_to(broker.port(), ["t both 1"], name="back", hops_max=4)
    remote = start(FIXED.format(remote_port) + back)
    eventually(lambda: is_connected(broker) and is_connected(remote, "back"), "the bridges")
    with Peer(broker.port()).accepted(client_id="one") as one:
        one.send(publish("t", b"round", 1, 1))
        one.expect(PUBACK)

    def dropped():
        both = {**broker.metrics(), **remote.metrics()}
        return sum(v for name, v in both.items() if 'reason="hops"' in name)

    # Each copy ends at the fourth bridge: one in each direction.
    assert eventually(lambda: dropped() == 2, "the end of the copies")


def test_a_bridge_shows_a_refused_subscription_and_relays_the_rest(start):
    remote_port = free_port()
    remote = start(
        FIXED.format(remote_port) + '[access]\nacl_file = "{dir}/acl"\n',
        files={"acl": "topic readwrite open/#\n"},
    )
    broker = bridging(
        start, remote_port, ["open/# both 1", "closed/# in 1"], '[api]\nlisten = "http"\n',
        notifications=False,
    )
    run = [QUELEA, "ctl", "--data", str(broker.data), "--json", "bridges"]
    shown = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    (bridge,) = shown if isinstance(shown, list) else shown["items"]
    assert bridge["state"] == "connected"
    assert "closed/#" in bridge["refused_subscriptions"][0]
    broker.wait_for_log(lambda event: event["message"] == "subscription refused")
    here = listening(broker.port(), "open/#")
    with Peer(remote.port()).accepted(client_id="two") as two:
        two.send(publish("open/a", b"in"))
        assert here.message()[:2] == ("open/a", b"in")
    here.close()


def test_a_message_that_the_remote_does_not_take_blocks_no_other(start):
    _, port = remote_of(start, "\n[limits]\npacket_bytes_max = 1000\n")
    broker = bridging(start, port, ["t out 2"])
    there = listening(port, "t")
    with Peer(broker.port()).accepted(client_id="one") as one:
        for packet_id, payload in ((1, b"x" * 2000), (2, b"small")):
            one.send(publish("t", payload, 1, packet_id))
            one.expect(PUBACK)
    assert there.message()[1] == b"small"
    there.close()
    refused = 'quelea_bridge_refused_total{bridge="cloud",direction="out",reason="size"}'
    # Counted behind the relay of the next one.
    eventually(lambda: broker.metrics()[refused] == 1, "the count")
    eventually(lambda: lag(broker) == 0, "the lag")


def test_a_bridge_uses_tls_with_a_client_certificate(start, certs):
    port = free_port()
    remote = start(
        f'[[listeners]]\nurl = "tls://127.0.0.1:{port}"\n'
        f'identity_from_certificate = "cn"\n[listeners.tls]\ncertificate = "{certs}/server.crt"\n'
        f'key = "{certs}/server.key"\nclient_ca = "{certs}/ca.crt"\nclient_auth = "require"\n'
        + LISTENER
    )
    tls = (
        f'[bridges.tls]\nca = "{certs}/ca.crt"\ncertificate = "{certs}/client.crt"\n'
        f'key = "{certs}/client.key"\nserver_name = "localhost"\n'
    )
    config = FIXED.format(free_port()) + bridge_to(port, ["t out 1"], scheme="tls") + tls
    broker = start(config)
    eventually(lambda: is_connected(broker), "the bridge")
    there = listening(remote.port("tcp"), "t")
    with Peer(broker.port()).accepted(client_id="one") as one:
        # More than fits into buffers on the way.
        for number in range(200):
            one.send(publish("t", f"{number}" + " " * 50_000, 1, number + 1))
        assert [int(there.message()[1]) for _ in range(200)] == list(range(200))
    there.close()


@pytest.mark.parametrize("version", [4, 5])
def test_the_client_id_of_a_bridge_is_refused_to_clients(plain, version):
    with Peer(plain.port(), version) as peer:
        peer.send(connect("$bridge/cloud", version))
        assert peer.expect(CONNACK)[1] == (0x85 if version == 5 else 2)


def test_the_state_of_a_bridge_is_retained_at_both_brokers(start):
    remote, port = remote_of(start)
    broker = bridging(start, port, ["t out 1"])
    topic = "$SYS/broker/connection/cloud/state"

    def watching(broker_port):
        peer = Peer(broker_port, 4).accepted(client_id="watch")
        peer.subscribed(topic)
        state = peer.message()[:2]
        if state == (topic, b"0"):
            # A broker that has just started publishes the will first. The bridge is connected
            # before its publish has arrived.
            state = peer.message()[:2]
        assert state == (topic, b"1")
        return peer

    here, there = watching(broker.port()), watching(port)
    remote.kill()
    assert here.message()[:2] == (topic, b"0")
    remote._launch()
    assert here.message()[:2] == (topic, b"1")
    there.close()
    there = watching(port)
    broker.kill()
    assert there.message()[:2] == (topic, b"0")
    here.close()
    there.close()


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_subscriptions_of_an_earlier_configuration_are_removed(start, protocol):
    remote, port = remote_of(start)
    broker = bridging(start, port, ["a out 1", "b in 1", "old/# both 1"], protocol=protocol)
    text = broker.config.read_text()
    broker.config.write_text(text.replace('filter = "old/#"', 'filter = "new/#"'))
    broker.restart("terminate")
    eventually(lambda: is_connected(broker), "the bridge")
    assert sum_of(broker, "quelea_subscriptions") == 2
    assert sum_of(remote, "quelea_subscriptions") == 2
    here, there = listening(broker.port(), "#"), listening(port, "#")
    with Peer(port, 4).accepted(client_id="two") as two:
        for topic in ("old/x", "new/x"):
            two.send(publish(topic, topic, version=4))
    assert here.message()[0] == "new/x"
    here.close()
    there.close()


@pytest.mark.parametrize("remote", ["quelea", "mosquitto"])
def test_a_large_message_of_an_old_remote_is_skipped(start, tmp_path, remote):
    with any_remote(remote, start, tmp_path) as port:
        more = "\n[limits]\npacket_bytes_max = 1000\n"
        broker = bridging(start, port, ["t in 2"], more, protocol="3.1.1")
        here = listening(broker.port(), "t")
        with Peer(port, 4).accepted(client_id="two") as two:
            for qos in (0, 1, 2):
                two.send(publish("t", b"x" * 90_000, qos, 5 + qos, version=4))
                two.send(publish("t", f"{qos}", qos, 15 + qos, version=4))
            # mosquitto forwards a QoS 2 message when it is released.
            two.send(ack(PUBREL, 7), ack(PUBREL, 17))
            for number in b"012":
                first, body = here.recv()
                assert first & 0xF0 == PUBLISH and body[-1] == number, body
        here.close()
        refused = 'quelea_bridge_refused_total{bridge="cloud",direction="in",reason="size"}'
        eventually(lambda: broker.metrics()[refused] == 3, "the count")
        assert broker.metrics()['quelea_bridge_connects_total{bridge="cloud"}'] == 1


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_overlapping_maps_relay_a_message_of_mosquitto_once(start, tmp_path, protocol):
    with mosquitto(tmp_path) as remote:
        topics = ["a/b in 1 first/", "a/# in 1", "a/+/c in 0"]
        broker = bridging(start, remote.port, topics, protocol=protocol)
        here = listening(broker.port(), "#")
        with Peer(remote.port, 4).accepted(client_id="two") as two:
            for topic in ("a/b", "a/x/c", "a/end"):
                two.send(publish(topic, topic, version=4))
        assert [here.message()[0] for _ in range(3)] == ["first/a/b", "a/x/c", "a/end"]
        here.close()


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("remote", ["quelea", "mosquitto"])
def test_maps_that_overlap_in_part_relay_a_message_once(
    start, tmp_path, remote, protocol, direction
):
    with any_remote(remote, start, tmp_path) as port:
        topics = [f"a/+ {direction} 2", f"+/b {direction} 2"]
        broker = bridging(start, port, topics, protocol=protocol)
        source, target = (broker.port(), port) if direction == "out" else (port, broker.port())
        with Peer(target).accepted(
            client_id="ledger", clean=False, properties=PERSISTENT
        ) as peer:
            peer.subscribed("#", 2)
        publisher = Publisher(source, "a/b", 2)
        for number in range(10):
            publisher.publish(f"m:{number}")
        if direction == "in":
            # Copies that were queued meanwhile are copies, too.
            broker.kill()
            publisher.publish("m:queued")
            broker._launch()
        publisher.publish("m:end")
        payloads = drained(target, "ledger", b"end")
        assert len(payloads) == len(set(payloads)) == (12 if direction == "in" else 11), payloads
        copies = 'quelea_bridge_refused_total{bridge="cloud",direction="in",reason="copy"}'
        are_sent = (remote, protocol, direction) == ("mosquitto", "5", "in")
        if are_sent:
            eventually(lambda: broker.metrics()[copies] > 0, "the count")
        else:
            assert broker.metrics()[copies] == 0


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
def test_a_kill_beside_mosquitto_loses_nothing_and_doubles_nothing(
    start, tmp_path, direction, protocol
):
    with mosquitto(tmp_path) as remote:
        topics = [f"t {direction} 2"]
        broker = bridging(start, remote.port, topics, MORE_QUEUE, protocol=protocol)
        ports = [broker.port(), remote.port]
        source, target = ports if direction == "out" else ports[::-1]
        with Peer(target).accepted(
            client_id="ledger", clean=False, properties=PERSISTENT
        ) as peer:
            peer.subscribed("t", 2)
        publisher = Publisher(source, "t", 2)
        for number in range(120):
            publisher.publish(f"m:{number}")
            if number % 40 == 25:
                broker.restart("kill")
        eventually(lambda: is_connected(broker), "the bridge")
        while b"m:end" not in publisher.acknowledged:
            publisher.publish("m:end")
        payloads = drained(target, "ledger", b"end")
        wanted = {payload.split(b":")[1] for payload in publisher.acknowledged}
        assert wanted <= set(payloads), sorted(wanted - set(payloads))
        assert len(payloads) == len(set(payloads)), payloads


def ring_of_three(start, topics_of, **keys):
    """Three brokers, each with a bridge to the next one."""
    ports = [free_port() for _ in range(3)]
    ring = [
        start(
            FIXED.format(port)
            + bridge_to(ports[(index + 1) % 3], topics_of(index), name=f"b{index}", **keys)
        )
        for index, port in enumerate(ports)
    ]
    for index, broker in enumerate(ring):
        eventually(lambda: is_connected(broker, f"b{index}"), "the bridge")
    return ring


def test_a_ring_of_three_brokers_does_not_relay_for_ever(start):
    ring = ring_of_three(start, lambda _: ["t both 1"], hops_max=5)
    Publisher(ring[0].port(), "t", 1).publish("round")

    def dropped():
        counts = [broker.metrics() for broker in ring]
        return sum(v for own in counts for name, v in own.items() if 'reason="hops"' in name)

    # One copy in each direction.
    assert eventually(lambda: dropped() == 2, "the end of the copies")


def test_a_ring_of_three_brokers_over_3_1_1_relays_without_end(start):
    """No property counts bridges there. The documentation warns of it."""
    ring = ring_of_three(start, lambda _: ["t both 1"], protocol="3.1.1", hops_max=5)
    Publisher(ring[0].port(), "t", 1).publish("round")
    eventually(lambda: all(relayed(broker) > 100 for broker in ring), "many rounds")


def test_a_ring_over_3_1_1_in_which_each_bridge_relays_topics_of_its_ends_has_no_loop(start):
    def topics_of(index):
        return [f"site{index}/# out 1", f"site{(index + 1) % 3}/# in 1"]

    ring = ring_of_three(start, topics_of, protocol="3.1.1")
    listeners = [listening(broker.port(), "#") for broker in ring]
    for payload in ("one", "two"):
        for site, broker in enumerate(ring):
            Publisher(broker.port(), f"site{site}/a", 1).publish(payload)
            for listener in listeners:
                assert listener.message()[:2] == (f"site{site}/a", payload.encode())
    # Each message has crossed two bridges.
    eventually(lambda: sum(relayed(broker) for broker in ring) == 12, "the counts")
    for listener in listeners:
        listener.close()


def test_a_bridge_uses_the_next_address_a_password_and_a_namespace(start, passwords):
    port = free_port()
    remote = start(
        f'[[listeners]]\nurl = "ws://127.0.0.1:{port}/mqtt"\n'
        + FIXED.format(free_port())
        + '[auth]\npassword_file = "{dir}/passwords"\n',
        files={"passwords": passwords},
    )
    addresses = [f"tcp://127.0.0.1:{free_port()}", f"ws://127.0.0.1:{port}/mqtt"]
    keys = {"addresses": addresses, "username": "anna", "password_file": "secret"}
    namespaces = '[[namespaces]]\nname = "red"\n'
    own = free_port()
    broker = start(
        f'[[listeners]]\nurl = "tcp://127.0.0.1:{own}"\nallow_anonymous = true\n'
        'namespace = "red"\n' + FIXED.format(free_port()) + namespaces
        + bridge_to(port, ["t out 1"], namespace="red", **keys),
        files={"secret": "secret\n"},
    )
    eventually(lambda: is_connected(broker), "the bridge")
    there = Peer(remote.port()).accepted(client_id="there", user="anna", password="secret")
    there.subscribed("t")
    for broker_port, payload in ((broker.port("tcp", 1), b"other"), (own, b"red")):
        with Peer(broker_port).accepted(client_id="one") as one:
            one.send(publish("t", payload, 1, 1))
            one.expect(PUBACK)
    assert there.message()[1] == b"red"
    there.close()


def test_the_session_of_a_removed_bridge_queues_until_it_is_purged(start):
    remote, port = remote_of(start)
    broker = bridging(start, port, ["t out 1"], '[api]\nlisten = "http"\n')
    text = broker.config.read_text()
    broker.config.write_text(text[: text.index("[[bridges]]")] + text[text.index("[api]") :])
    broker.restart("terminate")
    publisher = Publisher(broker.port(), "t", 1)
    publisher.publish("m:1")

    def ctl(*command):
        run = [QUELEA, "ctl", "--data", str(broker.data), "--json", "clients", *command]
        return subprocess.run(run, check=True, capture_output=True).stdout

    assert json.loads(ctl("show", "$bridge/cloud"))["queued_messages"] == 1
    ctl("purge", "$bridge/cloud")
    assert sum_of(broker, "quelea_sessions") == 1
    assert remote.process.poll() is None


@pytest.mark.parametrize("victim", ["bridge", "remote"])
def test_kills_during_load_in_both_directions_lose_and_double_nothing(start, victim):
    """Publishers at both brokers go on while one of the brokers is killed."""
    remote, port = remote_of(start, MORE_QUEUE)
    topics = ["out/# out 2", "in/# in 2"]
    broker = bridging(start, port, topics, MORE_QUEUE, in_flight_max=20)
    for target, topic in ((remote, "out/#"), (broker, "in/#")):
        with Peer(target.port()).accepted(
            client_id="ledger", clean=False, properties=PERSISTENT
        ) as peer:
            peer.subscribed(topic, 2)
    sides = [(broker, remote, "out"), (remote, broker, "in")]
    publishers = [
        Publisher(source.port(), f"{topic}/{number}", 2)
        for source, _, topic in sides
        for number in range(4)
    ]
    stop = threading.Event()

    def load(index, publisher):
        number = 0
        while not stop.is_set():
            publisher.publish(f"m:{index}-{number}")
            number += 1

    threads = [threading.Thread(target=load, args=pair) for pair in enumerate(publishers)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            seen = relayed(broker)
            eventually(lambda: relayed(broker) > seen + 100, "load")
            (broker if victim == "bridge" else remote).restart("kill")
            eventually(lambda: is_connected(broker), "the bridge")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for publisher in publishers[::4]:
        while b"m:end" not in publisher.acknowledged:
            publisher.publish("m:end")
    for number, (_, target, _) in enumerate(sides):
        own = publishers[4 * number : 4 * number + 4]
        payloads = drained(target.port(), "ledger", b"end")
        wanted = {p.split(b":")[1] for publisher in own for p in publisher.acknowledged}
        assert wanted <= set(payloads), sorted(wanted - set(payloads))
        assert len(payloads) == len(set(payloads)), "doubled"


@pytest.mark.parametrize("direction", ["out", "in"])
@pytest.mark.parametrize("victim", ["bridge", "remote", "beside mosquitto"])
def test_after_one_broker_has_lost_its_session_later_messages_arrive_once(
    start, tmp_path, victim, direction
):
    with ExitStack() as stack:
        if victim == "beside mosquitto":
            port = stack.enter_context(mosquitto(tmp_path)).port
        else:
            remote, port = remote_of(start, MEMORY if victim == "remote" else "")
        more = "" if victim == "remote" else MEMORY
        broker = bridging(start, port, [f"t {direction} 2"], more, protocol="3.1.1")
        source, target = (broker.port(), port) if direction == "out" else (port, broker.port())
        publisher = Publisher(source, "t", 2)
        for number in range(20):
            publisher.publish(f"m:early-{number}")
        seen = len(broker.log)
        (remote if victim == "remote" else broker).restart("kill")
        lost = "the remote has no session" if victim == "remote" else "this broker has no session"
        broker.wait_for_log(lambda event: event["message"].startswith(lost), seen)
        eventually(lambda: is_connected(broker), "the bridge")
        peer = stack.enter_context(listening(target, "t"))
        wanted = [f"m:late-{number}".encode() for number in range(40)]
        got = []
        for payload in wanted:
            while payload not in publisher.acknowledged:
                publisher.publish(payload.decode())
            while payload not in got:
                first, body = peer.recv()
                if first & 0xF0 == PUBLISH:
                    got.append(body[5:])
                    peer.send(packet(PUBREC, body[3:5]))
                else:
                    peer.send(packet(PUBCOMP, body))
        assert [payload for payload in got if b"late" in payload] == wanted


def test_a_remote_that_forgot_its_latest_messages_uses_their_identifiers_again(start):
    """A remote of MQTT 3.1.1 that comes back with an earlier state of the session."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECS)
        port = server.getsockname()[1]
        broker = start(
            FIXED.format(free_port())
            + bridge_to(port, ["t in 2"], protocol="3.1.1", notifications=False)
        )
        here = listening(broker.port(), "t")

        def connected(session_present):
            remote = Peer(server.accept()[0], 4)
            assert remote.recv()[0] == 0x10
            remote.send(packet(CONNACK, bytes([session_present, 0])))
            while (got := remote.recv())[0] != 0x82:
                # Identifiers that this broker might know from before.
                assert got[0] == PUBREL
                remote.send(packet(PUBCOMP, got[1]))
            remote.send(packet(0x90, got[1][:2] + b"\2"))
            return remote

        with connected(0) as remote:
            remote.send(publish("t", b"first", 2, 7, version=4))
            remote.expect(PUBREC)
            assert here.message()[1] == b"first"
        with connected(1) as remote:
            remote.send(publish("t", b"second", 2, 7, version=4))
            remote.expect(PUBREC)
            remote.send(ack(PUBREL, 7))
            remote.expect(PUBCOMP)
            first, body = here.recv()
            assert first & 0xF0 == PUBLISH and body.endswith(b"second")
        here.close()


def test_a_remote_that_hangs_is_left_and_comes_back(start):
    remote, port = remote_of(start)
    broker = bridging(start, port, ["t out 1"], keep_alive_secs=5)
    remote.process.send_signal(signal.SIGSTOP)
    try:
        silent = "the remote has not answered within keep_alive_secs"
        broker.wait_for_log(lambda event: event.get("detail") == silent)
        assert not is_connected(broker)
    finally:
        remote.process.send_signal(signal.SIGCONT)
    eventually(lambda: is_connected(broker), "the bridge")
    there = listening(port, "t")
    with Peer(broker.port()).accepted(client_id="one") as one:
        one.send(publish("t", b"again", 1, 1))
        assert there.message()[1] == b"again"
    there.close()


def test_a_bridge_reports_its_connections_as_events(start, passwords):
    remote_port = free_port()
    users = {"passwords": passwords}
    auth = '[auth]\npassword_file = "{dir}/passwords"\n'
    remote = start(FIXED.format(remote_port) + auth, files=users)
    keys = {"username": "anna", "password_file": "secret"}
    own = bridge_to(remote_port, ["t out 1"], **keys) + '[api]\nlisten = "http"\n'
    broker = start(FIXED.format(free_port()) + own, files={"secret": "secret\n"})
    eventually(lambda: is_connected(broker), "the bridge")
    stream = Stream(Api(broker), "?type=quelea.bridge.")
    names = {"bridge": "cloud", "address": f"tcp://127.0.0.1:{remote_port}"}

    def told(kind, reason, part_of_detail):
        data = stream.until(kind)
        assert part_of_detail in data.pop("detail")
        assert data == {**names, "reason": reason}

    remote.kill()
    told("bridge.disconnected", "connection_lost", "remote broker")
    told("bridge.connect_failed", "connect_failed", "refused")
    remote._launch()
    assert stream.until("bridge.connected") == names
    # The remote is asked again with another password.
    (broker.directory / "secret").write_text("wrong\n")
    remote.restart("terminate")
    told("bridge.disconnected", "server_shutting_down", "the remote broker disconnected")
    reasons = set()
    while "not_authorized" not in reasons:
        reasons.add(stream.until("bridge.connect_failed")["reason"])
    (broker.directory / "secret").write_text("secret\n")
    assert stream.until("bridge.connected") == names
    broker.terminate()
    told("bridge.disconnected", "server_shutting_down", "this broker is stopping")
    broker.wait()
    lines = [event for event in broker.log if event["message"].startswith("bridge")]
    first, second = lines[:2]
    assert (first["message"], first["address"]) == ("bridge connected", names["address"])
    assert (second["message"], second["reason"]) == ("bridge disconnected", "connection_lost")
