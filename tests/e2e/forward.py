"""A stand-in for the rules of a broker: it subscribes, and passes messages on, some of them wrongly."""

import base64
import collections
import http.client
import json
import subprocess
import threading
import urllib.parse

from wire import PUBLISH, SUBACK, Peer, ack, fresh, subscribe

PUBACK = 0x40


class Forwarder:
    """Passes each message on `topic_filter` to `send(topic, payload)`.

    The first message of a topic has the number 0. Messages in `lose` are (topic, number) pairs that
    are not passed on, those in `double` are passed on twice, and those in `delay` behind the next
    message of their topic.
    """

    def __init__(self, address, topic_filter, send, lose=(), double=(), delay=()):
        self.send, self.lose, self.double, self.delay = send, set(lose), set(double), set(delay)
        self.counts = collections.Counter()
        self.held = {}
        self.peer = Peer(address, version=4).accepted(client_id=fresh("forward"))
        self.peer.send(subscribe(topic_filter, 1, version=4))
        self.peer.expect(SUBACK)
        self.peer.stream.settimeout(None)
        self.failure = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while (got := self.peer.recv()) is not None:
                self.on_packet(*got)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.failure = error

    def on_packet(self, first, body):
        if first & 0xF0 != PUBLISH:
            return
        end = 2 + int.from_bytes(body[:2])
        topic, rest = body[2:end].decode(), body[end:]
        if first & 0x06:
            packet_id, rest = int.from_bytes(rest[:2]), rest[2:]
            self.peer.send(ack(PUBACK, packet_id))
        self.on_message(topic, rest)

    def on_message(self, topic, payload):
        at = (topic, self.counts[topic])
        self.counts[topic] += 1
        if at in self.delay:
            self.held[topic] = payload
            return
        if at not in self.lose:
            self.send(topic, payload)
        if at in self.double:
            self.send(topic, payload)
        if topic in self.held:
            self.send(topic, self.held.pop(topic))

    def stop(self):
        """Ends, and fails if messages could not be passed on."""
        self.peer.stream.shutdown(2)
        self.thread.join()
        self.peer.close()
        if self.failure is not None:
            raise self.failure


def attributes(topic):
    return {"specversion": "1.0", "id": fresh("id"), "source": "test", "type": "MQTT.EventPublished",
            "subject": topic}  # fmt: skip


def structured(topic, payload):
    return {**attributes(topic), "data_base64": base64.b64encode(payload).decode()}


class Poster:
    """Posts messages to a webhook in one form, and again until they are accepted."""

    def __init__(self, address, form, batch=1):
        self.connection = http.client.HTTPConnection(address)
        self.form, self.batch, self.waiting = form, batch, []
        self.statuses = collections.Counter()

    def __call__(self, topic, payload):
        if self.form == "raw":
            self.post({"content-type": "application/octet-stream"}, payload)
        elif self.form == "binary":
            names = {f"ce-{name}": urllib.parse.quote(value, safe="/:")
                     for name, value in attributes(topic).items()}  # fmt: skip
            self.post({"content-type": "application/octet-stream", **names}, payload)
        elif self.form == "structured":
            body = json.dumps(structured(topic, payload)).encode()
            self.post({"content-type": "application/cloudevents+json; charset=utf-8"}, body)
        else:
            self.waiting.append(structured(topic, payload))
            if len(self.waiting) == self.batch:
                body = json.dumps(self.waiting).encode()
                self.waiting = []
                self.post({"content-type": "application/cloudevents-batch+json"}, body)

    def post(self, headers, body):
        status = 0
        while status != 200:
            self.connection.request("POST", "/events", body, headers)
            response = self.connection.getresponse()
            response.read()
            status = response.status
            self.statuses[status] += 1


# Three publishers on a topic each. `{sink}` is the table of the sink.
SCENARIO = """
id = "routed"
title = "read back behind the broker"

[clients.pub]
count = 3

[topics.own]
names = "{prefix}/{{i}}"
count = 3

[sink.hub]
drain = "{drain}"
{sink}

[[stage]]
name = "connect"

[[stage.do]]
clients = "pub"
steps = [{{ connect = {{}} }}]

[[stage]]
name = "publish"
measured = true

[[stage.do]]
clients = "pub"
steps = [{{ publish = {{ to = "own", qos = 1, count = {count}, rate = "100/s", payload = 48 }} }}]
"""


def write_scenario(folder, sink, prefix, count=60, drain="20s", more=""):
    path = folder / "routed.toml"
    path.write_text(SCENARIO.format(sink=sink, prefix=prefix, count=count, drain=drain) + more)
    return path


def run_flock(flock, scenario, port, *options):
    """Exit code, output and results."""
    folder = scenario.parent
    command = [flock, "run", scenario, "--broker", f"127.0.0.1:{port}", "--threads", "1"]
    command += ["--out", folder, "--name", "routed", *options]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    results = folder / "routed.json"
    found = json.loads(results.read_text()) if results.exists() else None
    return ended.returncode, ended.stdout + ended.stderr, found


def counts(sink):
    """Of all levels of QoS together."""
    names = ("expected", "received", "lost", "duplicated", "reordered")
    return {name: sum(count[name] for count in sink["by_qos"]) for name in names}


def by_topic(sink):
    """What went wrong on each topic: lost numbers, and how many were doubled and out of order."""
    return {
        sample["topic"]: (
            [number for low, high in sample["missing"] for number in range(low, high + 1)],
            sample["duplicated"],
            sample["reordered"],
        )
        for sample in sink["worst"]
    }
