"""Collectors for OpenTelemetry: a real one, and one that fails as a test wants."""

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

from broker import PATIENCE_SECS, ROOT, eventually

sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402


class RealCollector:
    """An OpenTelemetry Collector, which prints what it gets."""

    def __init__(self, directory):
        path = Path(os.environ.get("QUELEA_OTELCOL") or ROOT / "target/otelcol/otelcol")
        if not path.exists():
            pytest.skip("no OpenTelemetry Collector: run tests/otelcol, or set QUELEA_OTELCOL")
        (port,) = free_ports(1)
        self.endpoint = f"http://127.0.0.1:{port}"
        config = directory / "otelcol.yaml"
        config.write_text(f"""
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
    metrics: {{receivers: [otlp], exporters: [debug]}}
""")
        self.log = directory / "otelcol.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([path, f"--config={config}"], stdout=log, stderr=log)
        eventually(lambda: "Everything is ready" in self.text(), "the start of the collector")

    def text(self):
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text()

    def spans(self):
        """Each with its fields as the collector prints them: `Name`, `Parent ID`."""
        blocks = re.split(r"^Span #\d+$", self.text(), flags=re.MULTILINE)[1:]
        fields = re.compile(r"^\s+(?:-> )?([\w. ]+?)\s*: (.*)$", re.MULTILINE)
        return [dict(fields.findall(block)) for block in blocks]

    def stop(self):
        self.process.kill()
        self.process.wait()


class FakeCollector:
    """Answers by `answers`, one after the other, then 200: (status, headers, body). `None`: it
    answers only when the test is over."""

    def __init__(self, answers=()):
        self.answers = list(answers)
        self.requests = []
        self.over = threading.Event()
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                own.requests.append((self.path, headers, body))
                answer = own.answers.pop(0) if own.answers else (200, {}, b"")
                if answer is None:
                    own.over.wait(PATIENCE_SECS)
                    answer = (500, {}, b"")
                status, headers, content = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        found = []
        for path, _, body in self.requests:
            if path == "/v1/traces":
                request = trace_service.ExportTraceServiceRequest.FromString(body)
                for own in request.resource_spans:
                    found += [span for scope in own.scope_spans for span in scope.spans]
        return found

    def metrics(self):
        """Of the last request, by name."""
        bodies = [body for path, _, body in self.requests if path == "/v1/metrics"]
        if not bodies:
            return {}
        request = metrics_service.ExportMetricsServiceRequest.FromString(bodies[-1])
        scopes = [scope for own in request.resource_metrics for scope in own.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def stop(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def attributes(of):
    return {own.key: getattr(own.value, own.value.WhichOneof("value")) for own in of.attributes}


def partial_success(rejected, message):
    answer = trace_service.ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()
