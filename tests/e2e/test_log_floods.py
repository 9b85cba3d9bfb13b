"""One client, or one kind of line, does not fill the log or push out what others have to say."""

import json
import time

from broker import PATIENCE_SECS, PLAIN
from test_full_disk import call
from wire import PINGRESP, PUBACK, PUBLISH, Peer, fresh, packet, publish

# As operators have it: tests of other things want every line.
LIMITED = {"QUELEA_log__client_lines_per_second_max": "100"}
NEVER = b"\x11\xff\xff\xff\xff"
CONFIG = PLAIN + """
[http]
listen = "127.0.0.1:0"
[api]
listen = "http"
[limits]
queued_messages_max = 10
[sys]
interval_secs = "off"
[durability]
level = "memory"
"""
SECONDS = 4


def about(broker, client_id, text):
    return [
        event
        for event in broker.log
        if event.get("client_id") == client_id and event["message"].startswith(text)
    ]


def test_full_queues_get_a_line_at_once_and_leave_the_other_warnings(start):
    broker = start(CONFIG, environment=LIMITED)
    away = [fresh("away").replace("/", "-") for _ in range(2)]
    for client_id in away:
        with Peer(broker.port()) as peer:
            peer.accepted(client_id=client_id, clean=False, properties=NEVER).subscribed("a", 1)
    reported = {client_id: 0 for client_id in away}
    with Peer(broker.port()) as watcher, Peer(broker.port()) as peer:
        watcher.accepted().subscribed("$SYS/broker/events/messages/dropped")
        peer.accepted()
        deadline = time.monotonic() + PATIENCE_SECS
        # Each queue is reported to operators once a second, however often that is.
        while min(reported.values()) < SECONDS:
            assert time.monotonic() < deadline, reported
            for number in range(1, 21):
                peer.send(publish("a", "x", qos=1, packet_id=number))
                peer.expect(PUBACK)
            for event in heard(watcher):
                reported[event["client_id"]] += 1
    for client_id in away:
        lines = about(broker, client_id, "messages dropped")
        assert len(lines) == 1 and lines[0]["level"] == "WARN", lines
    token = (broker.data / "api.token").read_text().split()[0]
    status, answer = call(broker, "GET", "/log-lines?level=warn", token)
    assert status == 200
    assert answer.count("messages dropped") == len(away)


def heard(watcher):
    """Events by now."""
    watcher.send(packet(0xC0))
    while (got := watcher.recv())[0] != PINGRESP:
        first, body = got
        assert first & 0xF0 == PUBLISH
        text = body[2 + int.from_bytes(body[:2]) :]
        yield json.loads(text[text.index(b"{") :])


def test_a_client_that_comes_and_goes_is_summed_up(start):
    broker = start(CONFIG, environment=LIMITED)
    for _ in range(40):
        with Peer(broker.port()) as peer:
            peer.accepted(client_id="restless")
    with Peer(broker.port()) as peer:
        peer.accepted(client_id="other")
    broker.wait_for_log(lambda event: event.get("client_id") == "other")
    assert len(about(broker, "restless", "client connected")) == 10
    # What a minute has not ended for is summed up when the broker stops.
    broker.terminate()
    assert broker.wait() == 0
    sums = about(broker, "restless", "repeated within a minute: client connected")
    assert [event["count"] for event in sums] == [30]
