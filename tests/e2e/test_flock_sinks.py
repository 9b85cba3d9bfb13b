"""flock receives routed messages by webhook. A forwarder of the test stands in for the rules."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from broker import PATIENCE_SECS, PLAIN, QUELEA, ROOT
from forward import Forwarder, Poster, by_topic, counts, run_flock, structured, write_scenario

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

FLOCK = os.environ.get("FLOCK_BIN", str(Path(QUELEA).with_name("flock")))
COUNT = 60
ALL = 3 * COUNT


@pytest.fixture
def address():
    return f"127.0.0.1:{free_ports(1)[0]}"


def webhook(address, more=""):
    return f'kind = "webhook"\nlisten = "{address}"\npath = "/events"\n{more}'


# 180 events, the second copies included, are whole batches.
@pytest.mark.parametrize("form, batch", [("raw", 1), ("binary", 1), ("structured", 1), ("batch", 4)])
def test_what_is_lost_doubled_and_out_of_order_is_named(plain, tmp_path, address, form, batch):
    prefix = f"hook/{form}"
    poster = Poster(address, form, batch)
    forwarder = Forwarder(
        plain.port(),
        f"{prefix}/#",
        poster,
        lose=[(f"{prefix}/0", 5), (f"{prefix}/0", 6), (f"{prefix}/1", COUNT - 1)],
        double=[(f"{prefix}/1", 9), (f"{prefix}/1", 10), (f"{prefix}/1", 11)],
        delay=[(f"{prefix}/2", 20)],
    )
    scenario = write_scenario(tmp_path, webhook(address), prefix, COUNT, drain="3s")
    code, output, results = run_flock(FLOCK, scenario, plain.port())
    forwarder.stop()
    # On a busy machine it may be late, which is no matter here.
    assert code in (1, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink) == {
        "expected": ALL, "received": ALL - 3, "lost": 3, "duplicated": 3, "reordered": 1,
    }  # fmt: skip
    assert by_topic(sink) == {
        f"{prefix}/0": ([5, 6], 0, 0),
        f"{prefix}/1": ([COUNT - 1], 3, 0),
        f"{prefix}/2": ([], 0, 1),
    }
    assert sink["events"] == ALL
    [routed] = [one for one in results["latencies"] if one["kind"] == "routed"]
    # The second copies are measured as well, and what was lost has no latency.
    assert (routed["summary"]["count"], routed["missing"]) == (ALL, 3)
    page = (tmp_path / "routed.html").read_text()
    assert "sink hub: 3 lost, 3 duplicated, 1 out of order in 180 messages" in page
    assert "Messages per minute" in page


def test_a_refused_request_counts_when_it_is_accepted(plain, tmp_path, address):
    poster = Poster(address, "binary")
    forwarder = Forwarder(plain.port(), "refused/#", poster)
    more = 'refuse = { status = 503, share = 0.25 }\ndelay = "1ms"\n'
    scenario = write_scenario(tmp_path, webhook(address, more), "refused", COUNT)
    code, output, results = run_flock(FLOCK, scenario, plain.port())
    forwarder.stop()
    assert code in (0, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink)["received"] == sink["events"] == ALL
    assert sink["refused"] == poster.statuses[503] > 0
    # One request in four: of four, one is refused and comes again.
    assert sink["refused"] == (ALL + sink["refused"]) // 4


def test_what_was_not_published_is_not_counted_as_received(plain, tmp_path, address):
    """Events of others, broken ones and wrong subjects fail the run and stand for no message."""
    poster = Poster(address, "structured")

    def send(topic, payload):
        poster(topic, payload)
        if not hasattr(poster, "seen"):
            poster.seen = True
            event = json.dumps(structured("elsewhere", payload)).encode()
            kind = {"content-type": "application/cloudevents+json"}
            poster.post(kind, event)
            poster.post(kind, b"{}")
            poster.post({}, b"no stamp in this")

    forwarder = Forwarder(plain.port(), "strange/#", send)
    scenario = write_scenario(tmp_path, webhook(address), "strange", COUNT)
    code, output, results = run_flock(FLOCK, scenario, plain.port())
    forwarder.stop()
    assert code in (1, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink) == {
        "expected": ALL, "received": ALL, "lost": 0, "duplicated": 0, "reordered": 0,
    }  # fmt: skip
    assert [sink[name] for name in ("wrong_topic", "unreadable", "damaged")] == [1, 1, 1]
    assert sink["events"] == ALL + 3
    assert "1 with a wrong subject, 1 damaged or without a stamp, 1 not readable" in output


def test_the_webhook_consents_to_senders(plain, tmp_path, address):
    """CloudEvents' OPTIONS, and the validation event of Event Grid, while a run is under way."""
    scenario = write_scenario(tmp_path, webhook(address), "consent", count=200, drain="1s")
    command = [FLOCK, "run", scenario, "--broker", f"127.0.0.1:{plain.port()}", "--out", tmp_path]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(method, path, headers=(), body=None):
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            connection = http.client.HTTPConnection(address)
            try:
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
                return response.status, dict(response.getheaders()), response.read()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline and run.poll() is None
                threading.Event().wait(0.01)
            finally:
                connection.close()

    try:
        status, headers, _ = ask("OPTIONS", "/events", {"WebHook-Request-Origin": "b.example"})
        assert (status, headers["webhook-allowed-origin"]) == (200, "b.example")
        assert headers["webhook-allowed-rate"] == "*"
        event = [{"id": "1", "data": {"validationCode": "7-code"}}]
        kind = {"aeg-event-type": "SubscriptionValidation", "content-type": "application/json"}
        status, _, body = ask("POST", "/events", kind, json.dumps(event))
        assert (status, json.loads(body)) == (200, {"validationResponse": "7-code"})
        assert ask("POST", "/elsewhere", body=b"x")[0] == 404
        assert ask("GET", "/events")[0] == 405
    finally:
        run.kill()
        run.wait()


def test_an_address_that_is_taken_is_an_error_ahead_of_the_run(plain, tmp_path):
    taken = f"127.0.0.1:{plain.port()}"
    scenario = write_scenario(tmp_path, webhook(taken), "taken")
    code, output, results = run_flock(FLOCK, scenario, plain.port())
    assert code == 2 and results is None
    assert f"sink `hub`: cannot listen on {taken}: Address already in use" in output


RULES = """
[[streams]]
name = "own"
filters = ["own/#"]

[[targets]]
name = "hook"
type = "http"
url = "http://{address}/events"
validation = "{validation}"

[[rules]]
name = "all"
filter = "own/#"
form = "{form}"
target = "hook"
order = "topic"
retry_secs = [1]
"""


@pytest.mark.parametrize(
    "form, validation",
    [("raw", "none"), ("binary", "event_grid"), ("structured", "none"), ("batch", "event_grid")],
)
def test_the_rules_of_the_broker_lose_and_reorder_nothing(start, tmp_path, address, form, validation):
    rules = RULES.format(address=address, form=form, validation=validation)
    config = PLAIN + '[routing]\nfile = "{dir}/rules.toml"\ntarget_networks = ["127.0.0.0/8"]\n'
    broker = start(config, {"rules.toml": rules})
    more = "refuse = { status = 503, share = 0.02 }\n"
    scenario = write_scenario(tmp_path, webhook(address, more), "own", COUNT)
    code, output, results = run_flock(FLOCK, scenario, broker.port())
    assert code in (0, 3), output
    [sink] = results["routing"]["sinks"]
    assert counts(sink) == {
        "expected": ALL, "received": ALL, "lost": 0, "duplicated": 0, "reordered": 0,
    }, output  # fmt: skip
    assert [sink[name] for name in ("wrong_topic", "unreadable", "damaged")] == [0, 0, 0]
