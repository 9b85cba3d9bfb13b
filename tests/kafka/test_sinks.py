"""flock reads routed messages back from Kafka. A forwarder of the test stands in for the rules."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BINARIES, ROOT
from confluent_kafka import Producer
from server import PASSWORD

# Behind this folder, which has modules of the same names.
sys.path.append(str(ROOT / "tests/e2e"))
from broker import PLAIN, Broker, eventually  # noqa: E402
from forward import (  # noqa: E402
    Forwarder,
    attributes,
    by_topic,
    counts,
    run_flock,
    structured,
    write_scenario,
)

FLOCK = os.environ.get("FLOCK_BIN", BINARIES / "flock")
COUNT = 60
ALL = 3 * COUNT
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker():
    broker = Broker()
    yield broker
    broker.stop()


class Records:
    """Sends messages to a topic of Kafka in one form. A topic of MQTT is in one partition."""

    def __init__(self, kafka, topic, form):
        self.producer = Producer({
            "bootstrap.servers": kafka.address(),
            "linger.ms": 0,
            "enable.idempotence": True,
        })  # fmt: skip
        self.topic, self.form = topic, form

    def __call__(self, topic, payload):
        headers, value = {}, payload
        if self.form == "binary":
            headers = {f"ce_{name}": text.encode() for name, text in attributes(topic).items()}
            headers["content-type"] = b"application/octet-stream"
        elif self.form == "structured":
            headers = {"content-type": b"application/cloudevents+json; charset=UTF-8"}
            value = json.dumps(structured(topic, payload)).encode()
        self.producer.produce(self.topic, value, topic.encode(), headers=headers)
        self.producer.poll(0)


def kafka_sink(kafka, topic, listener="PLAIN", more=""):
    return f'kind = "kafka"\nservers = "{kafka.address(listener)}"\ntopic = "{topic}"\n{more}'


@pytest.mark.parametrize("form", ["raw", "binary", "structured"])
def test_what_is_lost_doubled_and_out_of_order_is_named(kafka, broker, tmp_path, form):
    topic, prefix = kafka.create(f"routed-{form}"), f"routed/{form}"
    records = Records(kafka, topic, form)
    # What was there before the run is not read.
    records(f"{prefix}/0", b"from an earlier run")
    records.producer.flush()
    forwarder = Forwarder(
        broker.port(),
        f"{prefix}/#",
        records,
        lose=[(f"{prefix}/0", 5), (f"{prefix}/0", 6), (f"{prefix}/1", COUNT - 1)],
        double=[(f"{prefix}/1", 9), (f"{prefix}/1", 10)],
        delay=[(f"{prefix}/2", 20)],
    )
    scenario = write_scenario(tmp_path, kafka_sink(kafka, topic), prefix, COUNT, drain="5s")
    code, output, results = run_flock(FLOCK, scenario, broker.port())
    forwarder.stop()
    # On a busy machine it may be late, which is no matter here.
    assert code in (1, 3), output
    [sink] = results["routing"]["sinks"]
    found = counts(sink)
    lost = {"expected": ALL, "received": ALL - 3, "lost": 3, "duplicated": 2, "reordered": 1}
    assert found == lost, output
    assert by_topic(sink) == {
        f"{prefix}/0": ([5, 6], 0, 0),
        f"{prefix}/1": ([COUNT - 1], 2, 0),
        f"{prefix}/2": ([], 0, 1),
    }
    assert sink["events"] == ALL - 3 + 2
    assert [sink[name] for name in ("damaged", "unreadable", "foreign", "failures")] == [0] * 4
    # What never came has waited for the whole drain.
    assert 5 <= sink["waited_secs"] + 0.1 <= 6
    minutes = results["routing"]["minutes"]
    assert sum(minute["published"][1] for minute in minutes) == ALL
    assert sum(minute["received"] for minute in sink["minutes"]) == sink["events"]
    assert "3 lost, 2 duplicated, 1 out of order in 180 messages" in output


def test_tls_and_a_login(kafka, broker, tmp_path, authority):
    topic = kafka.create("routed-secure")
    forwarder = Forwarder(broker.port(), "secure/#", Records(kafka, topic, "binary"))
    more = f"""
        tls = {{ ca_file = "{authority.certificate}" }}
        mechanism = "scram-sha-256"
        username = "ann"
        password = "${{password}}"
    """
    sink = kafka_sink(kafka, topic, "SASLTLS", more)
    params = f'[params]\npassword = "{PASSWORD}"\n'
    scenario = write_scenario(tmp_path, sink, "secure", more=params)
    code, output, results = run_flock(FLOCK, scenario, broker.port())
    forwarder.stop()
    assert code in (0, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink)["received"] == ALL
    assert sink["latency"]["count"] == ALL
    for path in tmp_path.glob("routed.*"):
        if path != scenario:
            assert PASSWORD not in path.read_text(), path


@pytest.mark.parametrize("wrong", ["topic", "server"])
def test_a_sink_that_cannot_be_read_is_an_error_ahead_of_the_run(kafka, broker, tmp_path, wrong):
    sink = kafka_sink(kafka, "absent")
    if wrong == "server":
        sink = sink.replace(kafka.address(), "127.0.0.1:9")
    scenario = write_scenario(tmp_path, sink, "never")
    code, output, results = run_flock(FLOCK, scenario, broker.port())
    words = {"topic": "has no topic `absent`", "server": "cannot read Kafka at 127.0.0.1:9: "}
    assert code == 2 and results is None, output
    assert f"sink `hub`: {'Kafka at ' + kafka.address() + ' ' if wrong == 'topic' else ''}" in output
    assert words[wrong] in output


def test_kafka_that_is_killed_in_mid_run_is_read_on(kafka, broker, tmp_path):
    topic, count = kafka.create("routed-killed"), 500
    forwarder = Forwarder(broker.port(), "killed/#", Records(kafka, topic, "raw"))
    sink = kafka_sink(kafka, topic)
    scenario = write_scenario(tmp_path, sink, "killed", count, drain="120s")
    with ThreadPoolExecutor() as aside:
        run = aside.submit(run_flock, FLOCK, scenario, broker.port())
        eventually(lambda: forwarder.counts.total() > count or run.done())
        kafka.kill()
        kafka.start()
        code, output, results = run.result()
    forwarder.stop()
    assert code in (0, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink) == {
        "expected": 3 * count, "received": 3 * count, "lost": 0, "duplicated": 0, "reordered": 0,
    }, output  # fmt: skip
    # The latency says for how long Kafka was away.
    assert sink["latency"]["max_us"] > 1_000_000
    # A start takes longer than the sink waits for records ahead of a look.
    assert code == 3 and sink["failures"] > 0
    assert "sink hub could not be read" in output


RULES = """
[[streams]]
name = "own"
filters = ["own/#"]

[[targets]]
name = "lake"
type = "kafka"
servers = ["{servers}"]

[[rules]]
name = "all"
filter = "own/#"
form = "{form}"
target = "lake"
topic = "{topic}"
"""


@pytest.mark.parametrize("form", ["raw", "binary", "structured"])
def test_the_rules_of_the_broker_lose_and_reorder_nothing(kafka, tmp_path, form):
    topic = kafka.create(f"ruled-{form}")
    rules = RULES.format(servers=kafka.address(), form=form, topic=topic)
    config = PLAIN + '[routing]\nfile = "{dir}/rules.toml"\ntarget_networks = ["127.0.0.0/8"]\n'
    broker = Broker(config, {"rules.toml": rules})
    scenario = write_scenario(tmp_path, kafka_sink(kafka, topic), "own", COUNT)
    code, output, results = run_flock(FLOCK, scenario, broker.port())
    broker.stop()
    assert code in (0, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink) == {
        "expected": ALL, "received": ALL, "lost": 0, "duplicated": 0, "reordered": 0,
    }, output  # fmt: skip
    assert [sink[name] for name in ("wrong_topic", "unreadable", "damaged")] == [0, 0, 0]
