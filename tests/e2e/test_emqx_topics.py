"""Topics that have a meaning in EMQX: supported, or refused with a reason."""

import pytest

from wire import PUBACK, PUBREC, SUBACK, UNSUBACK, Peer, fresh, packet, prefixed, publish, subscribe

TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID = 0x8F, 0x90


def test_a_queue_is_one_shared_subscription_for_all_its_clients(plain):
    topic = fresh("queue")
    with Peer(plain.port()).accepted() as one, Peer(plain.port(), 4).accepted() as other:
        one.subscribed(f"$queue/{topic}", 1)
        other.subscribed(f"$share/$queue/{topic}", 1)
        with Peer(plain.port()).accepted() as sender:
            for number in range(10):
                sender.send(publish(topic, str(number), qos=1, packet_id=number + 1))
                sender.expect(PUBACK)
        got = []
        for member in (one, other):
            member.send(packet(0xC0))
            while (answer := member.recv())[0] & 0xF0 == 0x30:
                at = 2 + int.from_bytes(answer[1][:2]) + 2
                got.append(answer[1][at:].lstrip(b"\0"))
                assert len(got) <= 10
        assert sorted(got) == [str(number).encode() for number in range(10)]


def test_a_queue_ends_by_either_spelling_and_stays_ended_after_a_crash(start):
    config = '[[listeners]]\nurl = "tcp://127.0.0.1:0"\n[durability]\nlevel = "disk"\n'
    broker = start(config)
    lasting = {"clean": False, "properties": b"\x11" + (600).to_bytes(4, "big")}
    with Peer(broker.port()).accepted(client_id="w1", **lasting) as peer:
        peer.subscribed("$queue/a", 1).subscribed("$queue/b", 1)
        peer.send(packet(0xA2, b"\0\7\0" + prefixed("$share/$queue/a")))
        assert peer.expect(UNSUBACK)[-1] == 0
    broker.restart()
    with Peer(broker.port()) as peer:
        flags, reason, _ = peer.connect(client_id="w1", **lasting)
        assert (flags & 1, reason) == (1, 0)
        for topic in ("a", "b"):
            peer.send(publish(topic, topic, qos=1, packet_id=1))
        topics = set()
        acks = 0
        while acks < 2 or "b" not in topics:
            first, body = peer.recv()
            if first & 0xF0 == 0x30:
                topics.add(body[2:3].decode())
            else:
                acks += 1
        assert topics == {"b"}


@pytest.mark.parametrize(
    "form",
    ["$exclusive/a", "$delayed/60/a", "$share/g/$delayed/60/a", "$file/f1", "$file-async/#"],
)
def test_filters_that_have_no_meaning_here_are_refused(start, form):
    broker = start('[[listeners]]\nurl = "tcp://127.0.0.1:0"\n')
    for version, refusal in ((5, TOPIC_FILTER_INVALID), (4, 0x80)):
        with Peer(broker.port(), version).accepted() as peer:
            peer.send(subscribe(form, 1, version=version))
            assert peer.expect(SUBACK)[-1] == refusal
            peer.subscribed("a")
    prefix = form.removeprefix("$share/g/").split("/")[0] + "/"
    broker.wait_for_log(
        lambda event: event.get("topic") == form and f"({prefix})" in event.get("rule", "")
    )


@pytest.mark.parametrize("prefix", ["$share/", "$queue/", "$exclusive/", "$delayed/", "$file/"])
def test_topics_that_nobody_can_receive_are_refused(start, prefix):
    broker = start('[[listeners]]\nurl = "tcp://127.0.0.1:0"\n')
    topic = prefix + "9/a"
    with Peer(broker.port()).accepted() as peer:
        peer.send(publish(topic, "x", qos=1, packet_id=9))
        assert peer.expect(PUBACK)[2] == TOPIC_NAME_INVALID
        peer.send(publish(topic, "x", qos=2, packet_id=9))
        assert peer.expect(PUBREC)[2] == TOPIC_NAME_INVALID
        peer.send(publish(topic, "x")).ping()
    broker.wait_for_log(
        lambda event: event.get("topic") == topic and prefix in event.get("rule", "")
    )
    Peer(broker.port()).accepted(will=(topic, "gone", 1, False)).close()
    broker.wait_for_log(lambda event: event.get("action") == "will")
