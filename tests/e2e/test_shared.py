"""Shared subscriptions: every strategy delivers each message once, and none starves the group."""

import collections

import pytest

from broker import PLAIN
from wire import PUBACK, SUBACK, Peer, ack, connect, fresh, packet, publish, subscribe

STRATEGIES = ["random", "round_robin", "least_in_flight", "sticky", "hash_client", "hash_topic"]


def group(broker, topic, size, qos=1, **options):
    members = [Peer(broker.port()).accepted(**options) for _ in range(size)]
    for member in members:
        member.subscribed(f"$share/group/{topic}", qos)
    return members


def shares(members, broker):
    """What each member has got: everything before a message to all that is sent now."""
    fence = fresh("fence")
    for member in members:
        member.send(subscribe(fence))
    got = []
    ready = 0
    for member in members:
        mine = []
        while True:
            first, body = member.recv()
            if first == SUBACK:
                ready += 1
                break
            mine.append(payload_of(member, first, body))
        got.append(mine)
    assert ready == len(members)
    with Peer(broker.port()) as peer:
        peer.accepted().send(publish(fence, "fence"))
        for member, mine in zip(members, got, strict=True):
            while True:
                payload = payload_of(member, *member.recv())
                if payload == "fence":
                    break
                mine.append(payload)
    return got


def payload_of(member, first, body):
    assert first & 0xF0 == 0x30
    at = 2 + int.from_bytes(body[:2])
    if first >> 1 & 3:
        member.send(ack(PUBACK, int.from_bytes(body[at : at + 2])))
        at += 2
    return body[at + 1 :].decode()


def send_all(broker, topics, client_id=""):
    with Peer(broker.port()) as peer:
        peer.accepted(client_id=client_id)
        for number, topic in enumerate(topics):
            peer.send(publish(topic, str(number), qos=1, packet_id=number + 1))
            peer.expect(PUBACK)


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


@pytest.fixture
def broker(start, strategy):
    return start(PLAIN + f'[shared]\nstrategy = "{strategy}"\n')


def test_each_message_goes_to_one_member(broker, strategy):
    topic = fresh("shared")
    members = group(broker, f"{topic}/#", 4)
    send_all(broker, [f"{topic}/{number % 25}" for number in range(100)])
    got = shares(members, broker)
    assert sorted(sum(got, []), key=int) == [str(number) for number in range(100)]
    sizes = sorted(map(len, got))
    if strategy == "round_robin":
        assert sizes == [25] * 4
    elif strategy in ("sticky", "hash_client"):
        assert sizes == [0, 0, 0, 100]
    elif strategy == "random":
        assert sizes[0] >= 5, "four members, a hundred throws"
    elif strategy == "hash_topic":
        by_topic = collections.defaultdict(set)
        for index, mine in enumerate(got):
            for payload in mine:
                by_topic[int(payload) % 25].add(index)
        assert all(len(found) == 1 for found in by_topic.values())
        assert sizes[-1] < 100


def test_a_member_that_leaves_does_not_starve_the_group(broker):
    topic = fresh("shared")
    members = group(broker, topic, 3)
    members.pop().close()
    leaver = members.pop()
    leaver.send(packet(0xE0))
    leaver.expect_end()
    send_all(broker, [topic] * 30)
    # The broker may see the closed connection only now, and give what it sent there to the others.
    [member] = members
    got = [payload_of(member, *member.recv()) for _ in range(30)]
    assert sorted(got, key=int) == [str(number) for number in range(30)]


def test_a_member_that_is_offline_with_its_session_does_not_starve_the_group(broker):
    topic = fresh("shared")
    session = {"properties": b"\x11\x00\x00\x0e\x10"}
    [absent] = group(broker, topic, 1, **session)
    members = group(broker, topic, 2)
    absent.send(packet(0xE0))
    absent.expect_end()
    send_all(broker, [topic] * 30)
    assert sum(map(len, shares(members, broker))) == 30


@pytest.mark.parametrize("strategy", ["random", "round_robin", "least_in_flight"])
def test_a_member_that_acknowledges_nothing_does_not_starve_the_group(start, strategy):
    """The other strategies are chosen in order that one member gets all."""
    broker = start(PLAIN + f'[shared]\nstrategy = "{strategy}"\n')
    topic = fresh("shared")
    stuck = Peer(broker.port()).accepted(properties=b"\x21\x00\x01")
    stuck.subscribed(f"$share/group/{topic}", 1)
    members = group(broker, topic, 2)
    send_all(broker, [topic] * 30)
    # One message fills the window of the stuck member, the rest is for the others.
    assert sum(map(len, shares(members, broker))) >= 29
    stuck.close()


def test_unacknowledged_messages_go_back_to_the_group(broker):
    topic = fresh("shared")
    first = Peer(broker.port()).accepted()
    first.subscribed(f"$share/group/{topic}", 1)
    send_all(broker, [topic] * 5)
    for _ in range(5):
        assert first.recv()[0] & 0xF0 == 0x30
    [second] = group(broker, topic, 1)
    first.close()
    got = {second.message()[1].decode() for _ in range(5)}
    assert got == {str(number) for number in range(5)}


def test_3_1_1_clients_share_too(broker):
    topic = fresh("shared")
    with Peer(broker.port(), 4) as member:
        member.send(connect("three", version=4))
        member.expect(0x20)
        member.subscribed(f"$share/group/{topic}", 1)
        send_all(broker, [topic])
        assert member.message()[:2] == (topic, b"0")
