"""The wall clock is set while rules deliver: nothing is lost, doubled or deleted for that."""

import time

import pytest

from broker import Broker, eventually
from receiver import Receiver
from test_api import Api
from test_routing import ROUTING, closed_port, numbered, publish_all
from test_routing_api import rule_of, wait_for
from wall_clock import WallClock

HOUR_SECS, DAY_SECS = 3600, 24 * 3600
CONFIG = ROUTING + '[api]\nlisten = "http"\n'
# The second stream shows that messages are deleted by age at all.
RULES = """
[[streams]]
name = "cars"
filters = ["cars/#"]
age_max_secs = "2h"
file_bytes = "1MiB"

[[streams]]
name = "short"
filters = ["cars/#"]
age_max_secs = "1s"
file_bytes = "1MiB"

[[targets]]
name = "hook"
type = "http"
url = "http://127.0.0.1:PORT/in"

[[rules]]
name = "all"
stream = "cars"
filter = "cars/#"
form = "binary"
target = "hook"
order = "topic"
retry_secs = [1]
"""
# More than waits in memory for a file.
LARGE = 120
LARGE_BYTES = 50_000


@pytest.fixture
def wall():
    with WallClock() as wall:
        yield wall


@pytest.fixture
def routing(wall):
    """Starts a broker whose wall clock is `wall`, with rules that send to a port."""
    brokers = []

    def start(port):
        files = {"rules.toml": RULES.replace("PORT", str(port))}
        brokers.append(Broker(CONFIG, files, environment=wall.environment))
        return brokers[-1], Api(brokers[-1])

    yield start
    for broker in brokers:
        broker.stop()


def set_clock(broker, wall, secs_ahead):
    seen = len(broker.log)
    wall.set(secs_ahead)
    broker.wait_for_log(lambda event: "the wall clock was set" in event["message"], seen)


def large(first):
    return [f"{number:05}" + "x" * LARGE_BYTES for number in range(first, first + LARGE)]


def kept(api, stream):
    found = api("GET", f"/streams/{stream}")
    return found["file_messages"] + found["log_messages"]


def fill(broker, api, first):
    """Large messages, which become files; messages of the stream `short` are deleted meanwhile."""
    before = api("GET", "/streams/short")["stored_messages"]
    publish_all(broker, large(first))
    eventually(lambda: api("GET", "/streams/short")["stored_messages"] == before + LARGE)
    # The latest file is still open.
    eventually(lambda: kept(api, "short") < LARGE, "old messages are deleted")


def secs_ahead(headers):
    """How far the time of an event is ahead of the right time, in whole hours."""
    text = headers["ce-time"]
    assert text.endswith("Z")
    shown = time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return round((shown - time.time()) / HOUR_SECS) * HOUR_SECS


def test_messages_of_a_target_that_is_away_outlive_a_clock_that_is_set(routing, wall):
    port = closed_port()
    broker, api = routing(port)
    fill(broker, api, 0)
    wait_for(api, {"state": "probation"})
    set_clock(broker, wall, -HOUR_SECS)
    fill(broker, api, 1000)
    set_clock(broker, wall, DAY_SECS)
    fill(broker, api, 2000)
    # Nothing that a rule waits for is too old, though a day seems to have passed.
    assert kept(api, "cars") == 3 * LARGE
    assert rule_of(api)["lag_messages"] == 3 * LARGE
    receiver = Receiver(port=port)
    try:
        wait_for(api, {"delivered": 3 * LARGE, "pending": 0, "in_flight": 0})
        assert receiver.payloads() == large(0) + large(1000) + large(2000)
        # All times are by the clock as it is now.
        assert {secs_ahead(headers) for headers, _ in receiver.got} == {DAY_SECS}
        ids = {headers["ce-id"] for headers, _ in receiver.got}
        assert len(ids) == 3 * LARGE
    finally:
        receiver.stop()


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_rule_delivers_while_the_clock_is_set_back_and_forward(routing, wall, how):
    receiver = Receiver()
    try:
        broker, api = routing(receiver.port)
        sent = 0
        for ahead in (0, -HOUR_SECS, DAY_SECS, 0):
            if ahead != 0 or sent:
                set_clock(broker, wall, ahead)
            publish_all(broker, numbered(sent, sent + 20))
            sent += 20
            wait_for(api, {"delivered": sent, "pending": 0, "in_flight": 0})
            assert {secs_ahead(headers) for headers, _ in receiver.got[-20:]} == {ahead}
        assert receiver.payloads() == numbered(0, sent)
        # The clock goes back while a retry is due.
        receiver.answers = lambda body: 503
        publish_all(broker, ["again"])
        eventually(lambda: rule_of(api)["last_error"])
        set_clock(broker, wall, -HOUR_SECS)
        receiver.answers = lambda body: 200
        wait_for(api, {"delivered": sent + 1})
        broker.restart(how)
        publish_all(broker, ["last"])
        eventually(lambda: "last" in receiver.payloads())
        # After a kill, what was answered within the last second may come again.
        again = [it for it in receiver.payloads() if it == "again"]
        assert list(dict.fromkeys(receiver.payloads())) == numbered(0, sent) + ["again", "last"]
        assert len(again) == 1 or how == "kill"
    finally:
        receiver.stop()


@pytest.mark.parametrize("ahead", [-HOUR_SECS, DAY_SECS], ids=["back", "forward"])
def test_the_time_of_a_seek_is_that_of_the_clock_as_it_is_now(routing, wall, ahead):
    receiver = Receiver()
    try:
        broker, api = routing(receiver.port)
        publish_all(broker, ["before"])
        wait_for(api, {"delivered": 1})
        set_clock(broker, wall, ahead)
        # Times of seeks are whole seconds.
        begun = int(time.time()) + 1
        eventually(lambda: time.time() >= begun)
        publish_all(broker, ["after"])
        wait_for(api, {"delivered": 2})
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun + ahead))
        api("POST", "/rules/all/seek", {"to": since})
        wait_for(api, {"stored": 1, "delivered": 1})
        assert receiver.payloads() == ["before", "after", "after"]
    finally:
        receiver.stop()
