"""A rule whose target hangs takes nothing from other rules, and a thousand rules share a stream."""

import threading

import pytest

from broker import Broker, eventually
from receiver import Receiver
from test_api import Api
from test_routing import ROUTING, numbered, publish_all
from test_routing_api import metric, rule_of, wait_for
from wire import PUBACK, Peer, connect, packet, publish

CONFIG = ROUTING + '[api]\nlisten = "http"\n'
TENANTS = """
[[namespaces]]
name = "red"
[[namespaces]]
name = "blue"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "red"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
namespace = "blue"
"""
# Above any time-out of the tests: what hangs, hangs until it is released.
NEVER_SECS = 600
RULES_MAX = 1000
# Rules that have their own series in the metrics. The others are added up.
NAMED_MAX = 100


class Hanging(Receiver):
    """Takes requests, and answers none until it is released."""

    def __init__(self):
        self.released = threading.Event()
        super().__init__(self.answer)

    def answer(self, _):
        self.waiting = True
        self.released.wait()
        return 200

    waiting = False


@pytest.fixture
def receivers():
    """Starts receivers, which end with the test."""
    made = []

    def start(kind=Receiver):
        made.append(kind())
        return made[-1]

    yield start
    for receiver in made:
        if isinstance(receiver, Hanging):
            receiver.released.set()
        receiver.stop()


@pytest.fixture
def routing():
    brokers = []

    def start(rules, config=CONFIG):
        brokers.append(Broker(config, files={"rules.toml": rules}))
        return brokers[-1], Api(brokers[-1])

    yield start
    for broker in brokers:
        broker.stop()


def stream(name, topic_filter, more=""):
    return f'[[streams]]\nname = "{name}"\nfilters = ["{topic_filter}"]\n{more}\n'


def target(name, url):
    return f'[[targets]]\nname = "{name}"\ntype = "http"\nurl = "{url}"\ntimeout_secs = {NEVER_SECS}\n'


def rule(name, of_stream, topic_filter, to, more=""):
    return (f'[[rules]]\nname = "{name}"\nstream = "{of_stream}"\nfilter = "{topic_filter}"\n'
            f'form = "raw"\ntarget = "{to}"\norder = "topic"\n{more}\n')  # fmt: skip


def check_neighbours(broker, api, stuck, well, publish_both):
    """Rounds of messages for both: each reaches the healthy target while the other one hangs."""
    count = 0
    for _ in range(5):
        publish_both(numbered(count, count + 100))
        count += 100
        wait_for(api, {"delivered": count, "pending": 0, "in_flight": 0}, "well")
    assert well.payloads() == numbered(0, count)
    assert stuck.waiting and stuck.payloads() == []
    hung = rule_of(api, "stuck")
    assert hung["sum"]["delivered"] == 0 and hung["lag_messages"] == count
    stuck.released.set()
    wait_for(api, {"delivered": count, "pending": 0, "in_flight": 0}, "stuck")
    assert stuck.payloads() == numbered(0, count)


def test_a_hanging_target_stops_no_other_rule_of_its_stream(routing, receivers):
    stuck, well = receivers(Hanging), receivers()
    broker, api = routing(
        stream("cars", "cars/#") + target("hangs", stuck.url) + target("well", well.url)
        + rule("stuck", "cars", "cars/#", "hangs") + rule("well", "cars", "cars/#", "well")
    )  # fmt: skip
    check_neighbours(broker, api, stuck, well, lambda some: publish_all(broker, some))


def test_a_hanging_target_of_a_tenant_stops_no_other_tenant(routing, receivers):
    stuck, well = receivers(Hanging), receivers()
    broker, api = routing(
        stream("red", "cars/#", 'namespace = "red"') + stream("blue", "cars/#", 'namespace = "blue"')
        + target("hangs", stuck.url) + target("well", well.url)
        + rule("stuck", "red", "cars/#", "hangs") + rule("well", "blue", "cars/#", "well"),
        CONFIG + TENANTS,
    )  # fmt: skip

    def publish_both(some):
        for nth in (1, 2):
            publish_to(broker.port(nth=nth), [("cars/7", payload) for payload in some])

    check_neighbours(broker, api, stuck, well, publish_both)


def test_more_hanging_targets_than_threads_stop_no_other_rule(routing, receivers):
    stuck, well = receivers(Hanging), receivers()
    many = 64
    text = stream("cars", "cars/#") + target("well", well.url) + rule("well", "cars", "cars/#", "well")
    for number in range(many):
        # Several requests at a time hang for each.
        text += target(f"hangs-{number}", stuck.url)
        text += rule(f"stuck-{number}", "cars", "cars/#", f"hangs-{number}", "batch_messages_max = 1")
    broker, api = routing(text)
    for client in range(4):
        publish_to(broker.port(), [(f"cars/{client}", payload) for payload in numbered(0, 50)], f"c{client}")
    wait_for(api, {"delivered": 200, "pending": 0, "in_flight": 0}, "well")
    assert stuck.waiting and stuck.payloads() == []
    assert all(rule_of(api, f"stuck-{number}")["lag_messages"] == 200 for number in range(many))


def publish_to(port, messages, client_id="car-7"):
    """Publishes pairs of topic and payload with QoS 1; all are acknowledged in the end."""
    with Peer(port) as peer:
        peer.accepted(client_id=client_id)
        messages = list(messages)
        for first in range(0, len(messages), 100):
            some = messages[first : first + 100]
            for number, (topic, payload) in enumerate(some, 1):
                peer.send(publish(topic, payload, qos=1, packet_id=number))
            for _ in some:
                peer.expect(PUBACK)
        peer.send(packet(0xE0))


def test_a_thousand_rules_read_one_stream(routing, receivers):
    stuck, well = receivers(Hanging), receivers()
    text = stream("cars", "cars/#") + target("hangs", stuck.url) + target("well", well.url)
    # One rule in a hundred is stuck.
    for number in range(RULES_MAX):
        text += rule(f"r{number:03}", "cars", f"cars/{number}", "hangs" if number % 100 == 7 else "well")
    broker, api = routing(text)
    healthy = [number for number in range(RULES_MAX) if number % 100 != 7]

    def publish_round(round):
        messages = [(f"cars/{number}", f"{round}-{number}") for number in range(RULES_MAX)]
        publish_to(broker.port(), messages)

    def has_all(rounds):
        return set(well.payloads()) >= {f"{round}-{number}" for round in range(rounds) for number in healthy}

    publish_round(0)
    eventually(lambda: has_all(1), "messages of the healthy rules")
    rows = {row["name"]: row for row in api.all("/rules", limit=1000)}
    assert len(rows) == RULES_MAX
    for number in healthy:
        wait_for(api, {"stored": RULES_MAX, "delivered": 1, "not_matched": RULES_MAX - 1}, f"r{number:03}")
    assert len(well.payloads()) == len(healthy)
    # Metrics do not grow with the number of rules.
    text = broker.get("/metrics")[1]
    assert text.count("quelea_rule_pending_messages{") == NAMED_MAX + 1
    assert metric(broker, "quelea_rule_messages_total", rule="", outcome="delivered") > 0
    # All of them survive a kill. What was answered within the last second may come again.
    broker.restart("kill")
    publish_round(1)
    eventually(lambda: has_all(2), "messages after the kill")
    stuck.released.set()
    wanted = {f"{round}-{number}" for round in (0, 1) for number in range(7, RULES_MAX, 100)}
    eventually(lambda: set(stuck.payloads()) == wanted, "messages of the stuck rules")


def test_a_thousand_streams_with_a_rule_each(routing, receivers):
    well = receivers()
    text = target("well", well.url)
    for number in range(RULES_MAX):
        text += stream(f"s{number}", f"cars/{number}/#") + rule(f"r{number}", f"s{number}", "#", "well")
    broker, api = routing(text)
    publish_to(broker.port(), [(f"cars/{number}", str(number)) for number in range(RULES_MAX)])
    eventually(lambda: sorted(well.payloads(), key=int) == numbered(0, RULES_MAX))
    broker.restart("terminate")
    publish_to(broker.port(), [(f"cars/{number}", "again") for number in range(RULES_MAX)])
    eventually(lambda: len(well.payloads()) == 2 * RULES_MAX)
    assert well.payloads().count("again") == RULES_MAX
