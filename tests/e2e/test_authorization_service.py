"""Rights that an HTTP service decides for each action."""

import json
import subprocess
import threading

import paho.mqtt.client as paho
import pytest

from broker import QUELEA, eventually, sum_of
from test_api import Api
from tokens import Service, as_json
from wire import PUBACK, SUBACK, Peer, packet, publish, subscribe

NOT_AUTHORIZED = 0x87
# Nobody knows whether it is allowed: the client may send it again.
UNKNOWN = 0x83

CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
[auth]
password_file = "{dir}/passwords"
[http]
listen = "127.0.0.1:0"
[api]
listen = "http"
[authorization]
"""

QUESTIONS = "quelea_authorization_questions_total"
HITS = "quelea_authorization_cache_hits_total"


class Rules:
    """A service that allows what is in `allowed`, and waits while `gate` is closed."""

    def __init__(self):
        self.allowed = set()
        self.questions = []
        self.gate = threading.Event()
        self.gate.set()
        self.service = Service(self.answer)

    def answer(self, _path, body):
        question = json.loads(body)
        self.questions.append(question)
        assert self.gate.wait(30)
        allows = (question["action"], question["topic"]) in self.allowed
        return as_json({"result": "allow" if allows else "deny"})

    def asked(self):
        return [(one["action"], one["topic"]) for one in self.questions]


@pytest.fixture
def rules():
    made = Rules()
    yield made
    made.gate.set()
    made.service.stop()


@pytest.fixture
def broker(start, passwords, rules):
    return start(CONFIG + f'url = "{rules.service.url}/acl"\n', {"passwords": passwords})


def anna(broker, **options):
    return Peer(broker.port()).accepted(user="anna", password="secret", **options)


def published(peer, topic, packet_id=1, qos=1, **options):
    peer.send(publish(topic, b"x", qos, packet_id, **options))
    body = peer.expect(PUBACK)
    return body[2] if len(body) > 2 else 0


def subscribed(peer, *filters):
    return [subscribed_one(peer, one) for one in filters]


def subscribed_one(peer, topic_filter):
    peer.send(subscribe(topic_filter, 1, version=peer.version))
    return peer.expect(SUBACK)[-1]


def test_a_paho_client_publishes_and_receives_what_the_service_allows(broker, rules):
    rules.allowed |= {("subscribe", "home/#"), ("publish", "home/a")}
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "c1", protocol=paho.MQTTv311)
    client.username_pw_set("anna", "secret")
    got, ready = [], threading.Event()
    client.on_connect = lambda c, *_: c.subscribe([("home/#", 1), ("other/#", 1)])
    client.on_subscribe = lambda c, *_: (c.publish("home/b", b"1", 1), c.publish("home/a", b"2", 0))
    client.on_message = lambda _, __, message: (got.append(message.topic), ready.set())
    client.connect("127.0.0.1", broker.port())
    client.loop_start()
    assert ready.wait(30)
    client.disconnect()
    client.loop_stop()
    assert got == ["home/a"], "the denied one came before"
    assert rules.questions[0] == {
        "clientid": "c1", "username": "anna", "peerhost": "127.0.0.1", "action": "subscribe",
        "topic": "home/#", "qos": "1", "retain": "", "namespace": "default",
    }  # fmt: skip
    assert rules.questions[2] == {**rules.questions[0], "action": "publish", "topic": "home/b",
                                  "retain": "false"}  # fmt: skip


def test_packets_keep_their_order_while_the_service_is_asked(broker, rules):
    rules.allowed |= {("publish", f"t/{n}") for n in (1, 3)} | {("subscribe", "t/+")}
    peer = anna(broker)
    rules.gate.clear()
    peer.send(subscribe("t/+", 0))
    peer.send(*(publish(f"t/{n}", b"", 1, n) for n in (1, 2, 3)))
    eventually(lambda: len(rules.questions) == 1)
    rules.gate.set()
    answers = []
    while len(answers) < 6:
        first, body = peer.recv()
        answers.append((first & 0xF0, body[-1] if first & 0xF0 == PUBACK and len(body) > 2 else 0))
    kinds = [kind for kind, _ in answers if kind in (SUBACK, PUBACK)]
    assert kinds == [SUBACK, PUBACK, PUBACK, PUBACK]
    assert [reason for kind, reason in answers if kind == PUBACK] == [0, NOT_AUTHORIZED, 0]
    assert rules.asked() == [("subscribe", "t/+"), *(("publish", f"t/{n}") for n in (1, 2, 3))]


def test_others_do_not_wait_for_one_who_waits_for_the_service(broker, rules):
    rules.allowed |= {("publish", "a"), ("publish", "b")}
    other = anna(broker, client_id="other")
    assert published(other, "b") == 0x10, "nobody subscribes"
    rules.gate.clear()
    waiting = anna(broker, client_id="waiting").send(publish("a", b"", 1, 7))
    eventually(lambda: ("publish", "a") in rules.asked())
    assert published(other, "b", 2) == 0x10, "its answer is remembered"
    rules.gate.set()
    assert waiting.expect(PUBACK)[:2] == b"\0\x07"


def test_answers_are_remembered_until_a_reload_or_the_api_clears_them(broker, rules):
    rules.allowed.add(("publish", "a"))
    peer = anna(broker, client_id="c1")
    for packet_id in (1, 2, 3):
        assert published(peer, "a", packet_id) == 0x10
    assert rules.asked() == [("publish", "a")] and sum_of(broker, HITS) == 2
    rules.allowed.clear()
    assert published(peer, "a", 4) == 0x10, "as it was"
    broker.reload("access rules reloaded")
    assert published(peer, "a", 5) == NOT_AUTHORIZED
    rules.allowed.add(("publish", "a"))
    assert published(peer, "a", 6) == NOT_AUTHORIZED, "a denial is remembered, too"
    cleared = Api(broker)("DELETE", "/authorization/cache", client_id="c1")
    assert cleared == {"connections": 1}
    assert published(peer, "a", 7) == 0x10
    assert sum_of(broker, QUESTIONS) == 3


def test_the_last_message_of_a_client_that_has_gone_is_decided_all_the_same(broker, rules):
    rules.allowed |= {("publish", "last"), ("subscribe", "last")}
    reader = anna(broker, client_id="reader").subscribed("last")
    rules.gate.clear()
    with anna(broker, client_id="gone") as gone:
        gone.send(publish("last", b"word"), packet(0xE0))
    eventually(lambda: ("publish", "last") in rules.asked())
    rules.gate.set()
    assert reader.message()[:2] == ("last", b"word")


def test_an_answer_for_a_connection_that_was_taken_over_is_nobodys(broker, rules):
    rules.allowed.add(("publish", "first"))
    rules.gate.clear()
    old = anna(broker, client_id="c1").send(publish("first", b"", 1, 1))
    eventually(lambda: len(rules.questions) == 1)
    new = anna(broker, client_id="c1").send(publish("second", b"", 1, 1))
    old.expect_disconnect(0x8E)
    eventually(lambda: len(rules.questions) == 2)
    rules.gate.set()
    assert new.expect(PUBACK)[2] == NOT_AUTHORIZED
    assert published(new, "first", 2) == 0x10


def test_a_service_that_fails_refuses_and_is_asked_again(start, passwords):
    answers = [(500, {}, b""), as_json({"result": "Allow"}), as_json({}), as_json({"result": "allow"}, 404),
               (200, {}, b""), as_json({"result": "allow"})]  # fmt: skip
    service = Service(lambda *_: answers.pop(0))
    broker = start(CONFIG + f'url = "{service.url}"\n', {"passwords": passwords})
    peer = anna(broker)
    got = [published(peer, "a", number + 1) for number in range(6)]
    assert got == [UNKNOWN] * 5 + [0x10]
    answers = {name: n for name, n in broker.metrics().items() if "authorization_answers" in name}
    assert sum(n for name, n in answers.items() if "failed" in name) == 5
    service.stop()
    assert published(peer, "a", 9) == 0x10, "remembered"
    assert published(peer, "b", 10) == UNKNOWN, "it is gone"


def test_a_service_that_does_not_answer_in_time_refuses(start, passwords):
    gate = threading.Event()
    service = Service(lambda *_: (gate.wait(30), as_json({"result": "allow"}))[1])
    config = CONFIG + f'url = "{service.url}"\ntimeout_secs = "1s"\n'
    broker = start(config, {"passwords": passwords})
    peer = anna(broker)
    assert published(peer, "a") == UNKNOWN
    gate.set()
    assert published(peer, "a", 2) == 0x10
    service.stop()


@pytest.mark.parametrize(("no_match", "expected"), [("allow", 0x10), ("deny", NOT_AUTHORIZED)])
def test_no_match_decides_what_the_service_ignores(start, passwords, no_match, expected):
    service = Service(lambda *_: as_json({"result": "ignore"}))
    config = CONFIG + f'url = "{service.url}"\nno_match = "{no_match}"\n'
    broker = start(config, {"passwords": passwords})
    assert published(anna(broker), "a") == expected
    service.stop()


def test_rules_come_first_and_a_denied_packet_may_end_the_connection(start, passwords, rules):
    rules.allowed |= {("publish", "asked"), ("subscribe", "home/#"), ("publish", "home/secret")}
    acl = "user anna\ntopic write given\ntopic deny home/secret\n"
    config = CONFIG + f'url = "{rules.service.url}"\n[access]\nacl_file = "{{dir}}/acl"\n'
    config += 'deny_action = "disconnect"\n'
    broker = start(config, {"passwords": passwords, "acl": acl})
    peer = anna(broker)
    assert published(peer, "given") == 0x10 and rules.asked() == []
    assert published(peer, "asked", 2) == 0x10 and rules.asked() == [("publish", "asked")]
    assert subscribed(peer, "home/#") == [1]
    peer.send(publish("home/secret", b"", 1, 3))
    peer.expect_disconnect(NOT_AUTHORIZED)
    assert len(rules.asked()) == 2
    peer = anna(broker)
    peer.send(subscribe("elsewhere", 0))
    peer.expect_disconnect(NOT_AUTHORIZED)
    broker.wait_for_log(lambda event: event.get("rule") == "the authorization service")
    broker.wait_for_log(lambda event: event.get("reason") == "access_denied")


def test_a_will_is_published_if_the_service_allows_it(broker, rules):
    rules.allowed |= {("publish", "will/a"), ("subscribe", "will/#")}
    reader = anna(broker, client_id="reader").subscribed("will/#")
    for name in ("b", "a"):
        dying = anna(broker, client_id=name, will=(f"will/{name}", b"dead", 0, False))
        eventually(lambda name=name: ("publish", f"will/{name}") in rules.asked())
        dying.ping()
        eventually(lambda name=name: sum_of(broker, QUESTIONS) == len(rules.questions))
        assert published(dying, "later") == NOT_AUTHORIZED, "its question came after"
        dying.close()
    assert reader.message()[:2] == ("will/a", b"dead")


def failures(broker):
    answers = "quelea_authorization_answers_total"
    found = (value for name, value in broker.metrics().items()
             if name.startswith(answers) and 'answer="failed"' in name)  # fmt: skip
    return sum(found)


def hangs_on(gate, topics):
    """A service that answers about other topics, and about these when the gate opens."""

    def answer(_path, body):
        if json.loads(body)["topic"].startswith(topics):
            gate.wait(60)
        return as_json({"result": "allow"})

    return Service(answer)


@pytest.mark.parametrize(("addresses", "is_known"), [(5, False), (5, True), (60, False)])
def test_questions_that_hang_count_against_those_who_ask(start, passwords, addresses, is_known):
    gate = threading.Event()
    service = hangs_on(gate, "hang")
    broker = start(CONFIG + f'url = "{service.url}"\ntimeout_secs = 1\n', {"passwords": passwords})

    def dial(address, client_id):
        peer = Peer(broker.port(), source=f"127.0.1.{address}")
        return peer.accepted(client_id=client_id, user="anna", password="secret")

    each = 120 // addresses
    attackers = [
        dial(number + 2, f"h{number}-{nth}") for number in range(addresses) for nth in range(each)
    ]
    for number, peer in enumerate(attackers):
        if is_known:
            assert published(peer, f"known/{number}") == 0x10
        peer.send(*(publish(f"hang/{number}/{nth}", b"", 1, nth + 2) for nth in range(40)))
    # There are more addresses than places: until each has had its time-out, others may wait for one.
    eventually(lambda: failures(broker) > max(20, 3 * addresses))
    # From another address; and from one of theirs, where those have not taken all places for
    # addresses in doubt.
    others = [(1, "honest"), (2, "neighbour")][: 2 if addresses == 5 else 1]
    for address, client_id in others:
        with dial(address, client_id) as honest:
            for number in range(20):
                assert published(honest, f"t/{number}", number + 1) == 0x10
    gate.set()
    for peer in attackers:
        peer.close()
    service.stop()


def test_fields_may_be_placed_anywhere(start, passwords):
    service = Service(lambda *_: (204, {}, b""))
    config = CONFIG + f'url = "{service.url}/${{clientid}}?u=${{username}}&t=${{topic}}"\n'
    config += 'method = "get"\nheaders = ["X-Action: ${action}", "X-Space: ${namespace}"]\n'
    config += 'body = ["qos=${qos}", "retain=${retain}", "proto=${proto_name}"]\n'
    broker = start(config, {"passwords": passwords})
    peer = anna(broker, client_id="c 1")
    assert published(peer, "a/b&c", retain=True) == 0
    method, path, body, headers = service.asked[0]
    assert (method, body) == ("GET", b"")
    assert path == "/c%201?u=anna&t=a%2Fb%26c&qos=1&retain=true&proto=MQTT"
    assert (headers["x-action"], headers["x-space"]) == ("publish", "default")
    service.stop()


def test_a_million_topics_are_asked_one_at_a_time_and_not_all_remembered(start, passwords):
    service = Service(lambda *_: (204, {}, b""))
    config = CONFIG + f'url = "{service.url}"\ncache_entries_max = 4\n'
    broker = start(config, {"passwords": passwords})
    peer = anna(broker)
    for number in range(40):
        assert published(peer, f"t/{number}", number + 1) == 0x10
    for number in (39, 36, 0):
        assert published(peer, f"t/{number}", number + 1) == 0x10
    assert sum_of(broker, HITS) == 2 and sum_of(broker, QUESTIONS) == 41
    service.stop()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ('no_match = "allow"', "has no effect without the `url`"),
        ('url = "http://127.0.0.1/${topic}"', "a topic is several segments"),
        ('url = "http://127.0.0.1/"\nbody = ["clientid=${clientid}", "topic=${topic}"]', "action"),
        ('url = "http://127.0.0.1/"\nbody = ["p=${password}"]', "unknown placeholder"),
        ('url = "http://127.0.0.1/"\n[access]\naccept_all_subscriptions = true', "without asking"),
    ],
)
def test_what_would_not_ask_about_an_action_is_refused(tmp_path, passwords, keys, what):
    (tmp_path / "passwords").write_text(passwords)
    (tmp_path / "c.toml").write_text(CONFIG.replace("{dir}", str(tmp_path)) + keys + "\n")
    command = [QUELEA, "serve", "--config", tmp_path / "c.toml", "--check-config"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode != 0 and what in checked.stderr + checked.stdout


def test_secrets_of_requests_are_not_shown(start, passwords, rules):
    config = CONFIG + f'url = "{rules.service.url}/acl?token=hush"\n'
    config += 'headers = ["Authorization: Bearer hush"]\n'
    config += 'body = ["topic=${topic}", "action=${action}", "key=hush", "u=${username}"]\n'
    broker = start(config, {"passwords": passwords})
    settings = Api(broker)("GET", "/settings")
    shown = json.dumps(settings)
    assert "hush" not in shown and "/acl?(hidden)" in shown
