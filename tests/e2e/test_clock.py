"""The wall clock is set, by NTP or by hand: that is not time that passes."""

import time

import pytest

from broker import PLAIN, eventually
from wall_clock import WallClock
from wire import PUBACK, Peer, fresh, packet, publish

HOUR_SECS = 3600
YEAR_SECS = 365 * 24 * HOUR_SECS
# A machine without a battery for its clock, a day after it was switched on.
IN_1970 = 24 * HOUR_SECS - int(time.time())

SESSION_FOR_AN_HOUR = b"\x11" + HOUR_SECS.to_bytes(4)
MESSAGE_FOR_AN_HOUR = b"\x02" + HOUR_SECS.to_bytes(4)


@pytest.fixture
def wall():
    with WallClock() as wall:
        yield wall


def subscribed_and_gone(broker, topic):
    """A session that ends an hour from now; what it connects with."""
    name = fresh("c").replace("/", "-")
    own = {"client_id": name, "clean": False, "properties": SESSION_FOR_AN_HOUR}
    with Peer(broker.port()) as peer:
        peer.accepted(**own).subscribed(topic, 1)
        leave(peer)
    return own


def leave(peer):
    peer.send(packet(0xE0))
    while peer.recv() is not None:
        pass


def put(broker, topic, payload):
    with Peer(broker.port()) as peer:
        peer.accepted()
        peer.send(publish(topic, payload, qos=1, properties=MESSAGE_FOR_AN_HOUR))
        peer.expect(PUBACK)


def back_for(broker, own, payload):
    """Whether the session is still there. If so it has to have kept the message."""
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(**own)
        assert reason == 0
        is_there = flags & 1 == 1
        # The one before comes again when its acknowledgement was lost in a crash.
        while is_there and peer.message()[1] != payload:
            pass
        leave(peer)
    return is_there


def noted_secs_ahead(broker):
    """What the next start will know."""
    first = (broker.data / "clock").read_text().splitlines()[1]
    return int(first.removeprefix("ahead_ms = ")) / 1000


@pytest.mark.parametrize("how", ["kill", "terminate"])
@pytest.mark.parametrize(
    "at_start, later",
    [(0, 3 * YEAR_SECS), (0, -3 * YEAR_SECS), (IN_1970, 0)],
    ids=["forward", "back", "from-1970"],
)
def test_a_session_for_an_hour_outlives_a_clock_that_is_set_by_years(
    start, wall, at_start, later, how
):
    wall.set(at_start)
    broker = start(PLAIN, environment=wall.environment)
    topic = fresh()
    own = subscribed_and_gone(broker, topic)
    put(broker, topic, b"before")

    wall.set(later)
    event = broker.wait_for_log(lambda event: "the wall clock was set" in event["message"])
    assert abs(event["set_by_secs"] - (later - at_start)) < HOUR_SECS
    eventually(lambda: abs(noted_secs_ahead(broker) - (later - at_start)) < HOUR_SECS, "a note")
    assert back_for(broker, own, b"before"), "while the broker runs"

    put(broker, topic, b"after")
    broker.restart(how)
    assert back_for(broker, own, b"after"), "after a start"


def test_years_that_nobody_set_the_clock_by_have_passed(start, wall):
    """What the test above would find if the broker took no note."""
    broker = start(PLAIN, environment=wall.environment)
    topic = fresh()
    own = subscribed_and_gone(broker, topic)
    put(broker, topic, b"before")
    broker.kill()
    wall.set(3 * YEAR_SECS)
    broker.restart()
    assert not back_for(broker, own, b"before")
