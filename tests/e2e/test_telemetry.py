"""OpenTelemetry: traces by `traceparent`, and metrics, to a real collector and to bad ones."""

import queue
import signal

import paho.mqtt.client as paho
import pytest
from collectors import FakeCollector, RealCollector, attributes, partial_success
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import PATIENCE_SECS, PLAIN, eventually, sum_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector():
    """Makes a collector that gives these answers."""
    made = []

    def make(*answers):
        made.append(FakeCollector(answers))
        return made[-1]

    yield make
    for own in made:
        own.stop()


def telemetry(endpoint, **keys):
    keys = {"metrics_interval_secs": '"off"', **keys}
    lines = [f"{key} = {value}" for key, value in keys.items()]
    return PLAIN + f'\n[telemetry]\nendpoint = "{endpoint}"\n' + "\n".join(lines) + "\n"


class Client:
    """A paho client; messages are (topic, payload, user properties)."""

    def __init__(self, broker, client_id, protocol=paho.MQTTv5):
        self.messages = queue.Queue()
        self.subscribed = queue.Queue()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=protocol)
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: self.subscribed.put(True)
        self.client.connect("127.0.0.1", broker.port())
        self.client.loop_start()

    def _on_message(self, _client, _data, message):
        pairs = getattr(message.properties, "UserProperty", []) if message.properties else []
        self.messages.put((message.topic, message.payload, pairs))

    def subscribe(self, topic, qos=1):
        self.client.subscribe(topic, qos)
        self.subscribed.get(timeout=PATIENCE_SECS)

    def publish(self, topic, payload=b"x", user=(), qos=1, retain=False):
        properties = None
        if user:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = list(user)
        sent = self.client.publish(topic, payload, qos, retain, properties)
        sent.wait_for_publish(PATIENCE_SECS)
        assert sent.is_published()

    def next(self):
        return self.messages.get(timeout=PATIENCE_SECS)

    def stop(self):
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def connect():
    clients = []

    def make(*arguments, **options):
        clients.append(Client(*arguments, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.stop()


def test_a_real_collector_gets_both_spans_of_a_message_and_metrics(start, connect, tmp_path):
    collector = RealCollector(tmp_path)
    try:
        broker = start(telemetry(collector.endpoint, metrics_interval_secs=1,
                                 attributes='["deployment.environment.name=test"]'))
        subscriber, publisher = connect(broker, "to"), connect(broker, "from")
        subscriber.subscribe("plant/1/state")
        publisher.publish("plant/1/state", b"hello", [("a", "1"), ("traceparent", SAMPLED),
                                                      ("tracestate", "vendor=1"), ("b", "2")])
        _, payload, user = subscriber.next()
        assert payload == b"hello"
        assert [name for name, _ in user] == ["a", "traceparent", "tracestate", "b"]
        version, trace, own, flags = dict(user)["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "01")
        assert own != PARENT
        assert dict(user)["tracestate"] == "vendor=1"
        eventually(lambda: len(collector.spans()) == 2, "two spans")
        receive, send = sorted(collector.spans(), key=lambda span: span["Name"])
        assert (receive["Name"], receive["Trace ID"]) == ("receive", TRACE)
        assert (receive["Parent ID"], receive["ID"], receive["Kind"]) == (PARENT, own, "Consumer")
        assert (send["Name"], send["Trace ID"], send["Kind"]) == ("send", TRACE, "Producer")
        assert send["Parent ID"] == own
        assert send["ID"] not in (own, PARENT)
        assert receive["messaging.client.id"] == "Str(from)"
        assert send["messaging.client.id"] == "Str(to)"
        for span in (receive, send):
            assert span["messaging.system"] == "Str(mqtt)"
            assert span["messaging.destination.name"] == "Str(plant/1/state)"
            assert span["messaging.message.body.size"] == "Int(5)"
            assert span["messaging.mqtt.qos"] == "Int(1)"
            assert span["TraceState"] == "vendor=1"
        eventually(lambda: "Name: quelea_telemetry_spans_total" in collector.text(), "metrics")
        text = collector.text()
        assert "service.name: Str(quelea)" in text
        assert "deployment.environment.name: Str(test)" in text
        assert "DataType: Histogram" in text
        sent = 'quelea_telemetry_spans_total{result="sent"}'
        eventually(lambda: broker.metrics()[sent] == 2, "the count")
    finally:
        collector.stop()


def test_what_is_not_sampled_or_invalid_is_passed_on_unchanged(start, connect, collector):
    fake = collector()
    broker = start(telemetry(fake.endpoint))
    subscriber, publisher = connect(broker, "to"), connect(broker, "from")
    subscriber.subscribe("t")
    unchanged = [
        [("traceparent", f"00-{TRACE}-{PARENT}-00")],
        [("traceparent", "00-nonsense")],
        [("traceparent", f"00-{TRACE.upper()}-{PARENT}-01")],
        [("traceparent", SAMPLED), ("traceparent", SAMPLED)],
        [("Traceparent", SAMPLED)],
        [("a", "1")],
        [],
    ]
    for user in unchanged:
        publisher.publish("t", user=user)
        assert subscriber.next()[2] == user
    # The spans of this one come last.
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    subscriber.next()
    eventually(lambda: len(fake.spans()) >= 2, "the spans of the last message")
    spans = fake.spans()
    # The packet with two of them carries no context either.
    assert [span.name for span in spans] == ["receive", "send"]
    assert sum_of(broker, "quelea_traceparents_invalid_total") == 3


def test_a_share_of_messages_without_a_context_begins_a_trace(start, connect, collector):
    fake = collector()
    broker = start(telemetry(fake.endpoint, traces_per_million=1_000_000))
    subscriber = connect(broker, "to")
    publisher = connect(broker, "from", protocol=paho.MQTTv311)
    subscriber.subscribe("t")
    publisher.publish("t", qos=0)
    _, _, user = subscriber.next()
    _, trace, own, flags = dict(user)["traceparent"].split("-")
    eventually(lambda: len(fake.spans()) == 2, "both spans")
    receive, send = fake.spans()
    assert (receive.name, receive.parent_span_id, receive.span_id.hex()) == ("receive", b"", own)
    assert (send.parent_span_id, send.trace_id.hex(), flags) == (receive.span_id, trace, "01")
    assert receive.start_time_unix_nano <= send.end_time_unix_nano


def test_spans_of_many_receivers_are_few_and_say_how_many_there_are(start, connect, collector):
    fake = collector()
    config = telemetry(fake.endpoint) + "\n[server]\nshards = 1\nworkers = 1\n"
    broker = start(config)
    subscribers = [connect(broker, f"to-{number}") for number in range(20)]
    for subscriber in subscribers:
        subscriber.subscribe("t")
    publisher = connect(broker, "from")
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    for subscriber in subscribers:
        assert dict(subscriber.next()[2])["traceparent"].split("-")[1] == TRACE

    def told():
        sent = [span for span in fake.spans() if span.name == "send"]
        left_out = [attributes(span).get("quelea.deliveries_without_span", 0) for span in sent]
        return len(sent) + sum(left_out) == 20 and len(sent) >= 16

    eventually(told, "all receivers")


def test_a_message_that_waits_for_its_session_keeps_its_trace(start, connect, collector):
    fake = collector()
    broker = start(telemetry(fake.endpoint) + '\n[durability]\nlevel = "fsync"\n')
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 1000
    offline = connect(broker, "sleeper")
    offline.client.disconnect()
    offline.client.loop_stop()
    offline.client.connect("127.0.0.1", broker.port(), clean_start=True, properties=properties)
    offline.client.loop_start()
    offline.subscribe("t")
    offline.client.disconnect()
    offline.client.loop_stop()
    publisher = connect(broker, "from")
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    eventually(lambda: [span.name for span in fake.spans()] == ["receive"], "the first span")
    broker.restart()
    offline.client.connect("127.0.0.1", broker.port(), clean_start=False, properties=properties)
    offline.client.loop_start()
    _, _, user = offline.next()
    eventually(lambda: len(fake.spans()) == 2, "the span after the crash")
    receive, send = fake.spans()
    assert (send.name, send.parent_span_id) == ("send", receive.span_id)
    assert dict(user)["traceparent"].split("-")[2] == receive.span_id.hex()


def test_a_collector_that_asks_for_time_gets_the_same_spans_again(start, connect, collector):
    fake = collector((503, {"Retry-After": "1"}, b""), (429, {"Retry-After": "1"}, b"slow down"))
    broker = start(telemetry(fake.endpoint))
    publisher = connect(broker, "from")
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    eventually(lambda: len(fake.requests) == 3, "two more attempts")
    assert len({body for _, _, body in fake.requests}) == 1
    sent = 'quelea_telemetry_spans_total{result="sent"}'
    eventually(lambda: broker.metrics()[sent] == 1, "the count")
    failed = 'quelea_telemetry_requests_total{signal="traces",result="failed"}'
    eventually(lambda: broker.metrics()[failed] == 2, "the count of failures")
    for message in ("cannot send spans to the collector", "the collector takes spans again"):
        broker.wait_for_log(lambda event, message=message: event["message"] == message)


def test_what_a_collector_refuses_or_rejects_is_counted_and_not_sent_again(
        start, connect, collector):
    fake = collector((400, {}, b"bad request"), (200, {}, partial_success(1, "too many")))
    broker = start(telemetry(fake.endpoint))
    publisher = connect(broker, "from")
    failed = 'quelea_telemetry_spans_total{result="failed"}'
    for count in (1, 2):
        publisher.publish("t", user=[("traceparent", SAMPLED)])
        eventually(lambda count=count: broker.metrics()[failed] == count, "a failure")
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    sent = 'quelea_telemetry_spans_total{result="sent"}'
    eventually(lambda: broker.metrics()[sent] == 1, "a span")
    assert len(fake.requests) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_a_collector_that_is_away_or_never_answers_harms_no_client(
        start, connect, collector, is_there):
    fake = collector(None, None, None)
    endpoint = fake.endpoint
    if not is_there:
        fake.stop()
    broker = start(telemetry(endpoint, traces_per_million=1_000_000, metrics_interval_secs=1))
    subscriber, publisher = connect(broker, "to"), connect(broker, "from")
    subscriber.subscribe("t")
    # More than a client may have traced.
    for number in range(3_000):
        publisher.client.publish("t", str(number), 1)
    for number in range(3_000):
        assert subscriber.next()[1] == str(number).encode()
    dropped = 'quelea_telemetry_spans_total{result="dropped"}'
    eventually(lambda: broker.metrics()[dropped] > 0, "spans that are dropped")
    # The end does not wait for the collector for long.
    broker.process.send_signal(signal.SIGTERM)
    assert broker.process.wait(PATIENCE_SECS) == 0


def test_what_is_left_is_sent_at_the_end(start, connect, collector):
    fake = collector()
    broker = start(telemetry(fake.endpoint, metrics_interval_secs=3600))
    publisher = connect(broker, "from")
    publisher.publish("t", user=[("traceparent", SAMPLED)])
    publisher.stop()
    broker.terminate()
    assert broker.process.wait(PATIENCE_SECS) == 0
    assert [span.name for span in fake.spans()] == ["receive"]
    assert "quelea_connections_opened_total" in fake.metrics()


def test_metrics_are_those_that_prometheus_gets_and_headers_come_from_a_file(
        start, connect, collector):
    fake = collector()
    config = telemetry(fake.endpoint, metrics_interval_secs=1, headers_file='"{dir}/headers"')
    broker = start(config, {"headers": "# of the collector\nAuthorization: Bearer one\n"})
    connect(broker, "from").publish("t")

    def has_publish():
        metric = fake.metrics().get("quelea_publishes_received_total")
        return metric and sum(point.as_int for point in metric.sum.data_points) > 0

    eventually(has_publish, "the counter of publishes")
    _, page = broker.get("/metrics")
    shown = {line.split(" ")[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    assert set(fake.metrics()) == shown
    counter = fake.metrics()["quelea_publishes_received_total"].sum
    assert counter.is_monotonic and counter.aggregation_temporality == 2
    point = counter.data_points[0]
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    assert fake.metrics()["quelea_connections"].HasField("gauge")
    histogram = fake.metrics()["quelea_worker_turn_seconds"].histogram.data_points[0]
    assert sum(histogram.bucket_counts) == histogram.count > 0
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    assert fake.requests[-1][1]["authorization"] == "Bearer one"
    (broker.directory / "headers").write_text("Authorization: Bearer two\n")
    eventually(lambda: fake.requests[-1][1]["authorization"] == "Bearer two", "the new secret")
