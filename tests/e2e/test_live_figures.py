"""Live figures of flock, pushed to receivers that others wrote: InfluxDB itself, and the classes that the
OpenTelemetry project generates from its protocol, which refuse what the protocol does not have."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from broker import PATIENCE_SECS, QUELEA

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

FLOCK = os.environ.get("FLOCK_BIN", str(Path(QUELEA).with_name("flock")))

# A name with everything that the line protocol has to escape.
SCENARIO = r"""
id = 'live, a=b "c" \d'
title = "pairs for a few seconds"
drain = "20s"

[clients.sub]
count = 5

[clients.pub]
count = 5

[topics.pairs]
names = "live/{i}"
count = 5

[subscriptions.pairs]
topics = "pairs"

[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "pairs", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]

[[stage]]
name = "publish, at last"
measured = true
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "20/s", count = 50, payload = 64 } }]

[[stage]]
name = "disconnect"
[[stage.do]]
clients = "pub"
steps = [{ disconnect = {} }]
"""
PUBLISHED = 5 * 50


@pytest.fixture
def influx(tmp_path):
    """The address of an InfluxDB of the test's own, with the database `load`."""
    rpc, port = free_ports(2)
    folder = tmp_path / "influx"
    config = tmp_path / "influxdb.conf"
    config.write_text(f"""
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
[http]
bind-address = "127.0.0.1:{port}"
""")
    with open(tmp_path / "influxd.log", "wb") as log:
        process = subprocess.Popen(["influxd", "-config", config], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                urllib.request.urlopen(f"{address}/ping", timeout=PATIENCE_SECS)
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "influxd.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "influxd.log").read_text()
                time.sleep(0.05)
        query(address, "CREATE DATABASE load")
        yield address
    finally:
        process.kill()
        process.wait()


def query(address, text):
    """What the database answers: a list of rows, each a dictionary."""
    form = urllib.parse.urlencode({"q": text, "db": "load", "epoch": "ns"}).encode()
    with urllib.request.urlopen(f"{address}/query", form, timeout=PATIENCE_SECS) as answer:
        series = json.load(answer)["results"][0].get("series", [])
    return [dict(zip(one["columns"], row)) for one in series for row in one["values"]]


@pytest.fixture
def collector():
    """Address and requests of a receiver of OTLP over HTTP."""
    requests = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()


def run_flock(broker, folder, *options):
    scenario = folder / "live.toml"
    scenario.write_text(SCENARIO)
    command = [FLOCK, "run", scenario, "--broker", f"127.0.0.1:{broker.port()}"]
    command += ["--threads", "1", "--out", folder, "--name", "live", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # On a busy machine it may have been late, which is no matter here.
    assert ended.returncode in (0, 3), ended.stdout + ended.stderr
    assert "were not delivered" not in ended.stderr, ended.stderr
    return json.loads((folder / "live.json").read_text())


@pytest.mark.parametrize("is_pushed", [True, False], ids=["pushed", "by a file"])
def test_influxdb_takes_every_second(plain, influx, tmp_path, is_pushed):
    write = f"{influx}/write?db=load"
    lines = tmp_path / "lines.txt"
    results = run_flock(plain, tmp_path, "--influx", write if is_pushed else lines)
    if not is_pushed:
        urllib.request.urlopen(write, lines.read_bytes(), timeout=PATIENCE_SECS)
    rows = query(influx, "SELECT * FROM flock")
    assert len(rows) == len(results["series"]) > 0
    assert {row["scenario"] for row in rows} == {'live, a=b "c" \\d'}
    assert "publish, at last" in {row["stage"] for row in rows}
    for name in ("published", "received"):
        assert sum(row[f"{name}_per_sec"] for row in rows) == PUBLISHED
        assert max(row[f"{name}_total"] for row in rows) == PUBLISHED
    started, ended = results["run"]["started_unix_ms"], time.time() * 1e3
    assert all(started <= row["time"] / 1e6 <= ended for row in rows)
    assert any(row["latency_p99_us"] for row in rows)


def test_open_telemetry_understands_every_request(plain, collector, tmp_path):
    address, requests = collector
    results = run_flock(plain, tmp_path, "--otlp", address)
    assert len(requests) == len(results["series"]) > 0
    totals, starts, published = [], set(), 0
    for path, kind, body in requests:
        assert (path, kind) == ("/v1/metrics", "application/json")
        # Fields that the protocol does not know are an error.
        request = json_format.Parse(body, ExportMetricsServiceRequest())
        (resource,) = request.resource_metrics
        attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        assert attributes == {"service.name": "flock", "flock.scenario": 'live, a=b "c" \\d'}
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "flock" and scope.scope.version
        metrics = {metric.name: metric for metric in scope.metrics}
        assert len(metrics) == len(scope.metrics)
        for metric in metrics.values():
            (point,) = getattr(metric, metric.WhichOneof("data")).data_points
            assert point.WhichOneof("value") == "as_double" and metric.unit
            assert 0 < point.start_time_unix_nano <= point.time_unix_nano
            starts.add(point.start_time_unix_nano)
            if metric.name.endswith("_total"):
                cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                assert metric.sum.is_monotonic
                assert metric.sum.aggregation_temporality == cumulative
            else:
                assert metric.WhichOneof("data") == "gauge"
        totals.append(metrics["flock.received_total"].sum.data_points[0].as_double)
        published += metrics["flock.published_per_sec"].gauge.data_points[0].as_double
    assert len(starts) == 1, "one run has one beginning"
    assert totals == sorted(totals) and totals[-1] == PUBLISHED == published
