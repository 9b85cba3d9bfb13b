"""A `quelea serve` of its own for a test, on free ports, with its log."""

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUELEA = os.environ.get("QUELEA_BIN", str(ROOT / "target/debug/quelea"))

# How long something may take that has to happen. Only failing tests wait that long.
PATIENCE_SECS = 20

PLAIN = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
"""


class Broker:
    """Runs until `stop` or the end of the test. `{dir}` in the configuration is its directory."""

    def __init__(
        self, config=PLAIN, files=None, arguments=(), data=None, environment=None, within=()
    ):
        self.directory = Path(tempfile.mkdtemp(prefix="quelea-e2e-"))
        self.data = data or self.directory / "data"
        for name, content in (files or {}).items():
            (self.directory / name).write_text(content)
        if "[http]" not in config:
            config += '\n[http]\nlisten = "127.0.0.1:0"\n'
        self.config = self.directory / "quelea.toml"
        self.config.write_text(config.replace("{dir}", str(self.directory)))
        self.log = []
        self.arguments = arguments
        self.environment = {**os.environ, **(environment or {})}
        # A command that becomes the one behind it, in other surroundings.
        self.within = within
        self._launch()

    def _launch(self):
        self.spawn()
        self._wait_until_ready()

    def spawn(self):
        """Starts the process; it is not ready yet."""
        self._events = queue.Queue()
        self.urls = []
        self.process = subprocess.Popen(
            [
                *self.within,
                QUELEA,
                "serve",
                "--log-format=json",
                f"--config={self.config}",
                f"--data={self.data}",
                *self.arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Tests look for lines about clients that come quicker than operators read.
            env={"QUELEA_log__client_lines_per_second_max": "unlimited", **self.environment},
            # Python ignores SIGXFSZ; so does the child, which a test makes fail to write.
            restore_signals=False,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self):
        for line in self.process.stderr:
            try:
                event = flat(json.loads(line))
            except ValueError:
                event = {"message": line.rstrip("\n"), "level": "?"}
            self.log.append(event)
            self._events.put(event)
        self._events.put(None)

    def _wait_until_ready(self):
        deadline = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                event = None
            if event is None:
                self.kill()
                raise AssertionError("the broker did not become ready:\n" + self.log_text())
            if event["message"] == "listening":
                self.urls.append(event["url"])
            elif event["message"] == "ready":
                return

    def port(self, scheme="tcp", nth=0):
        """The port of the nth listener with this scheme."""
        urls = [url for url in self.urls if url.startswith(scheme + "://")]
        return int(urls[nth].split("://")[1].split("/")[0].rsplit(":", 1)[1])

    def get(self, path):
        """Status and body of an HTTP request."""
        url = f"http://127.0.0.1:{self.port('http')}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_SECS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """The metrics as a dictionary from name with labels to value."""
        status, body = self.get("/metrics")
        assert status == 200, body
        lines = [line for line in body.splitlines() if line and not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def wait_for_log(self, wanted, seen=0):
        """Waits for an event after the first `seen` for which `wanted(event)` holds."""
        deadline = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < deadline:
            for event in self.log[seen:]:
                seen += 1
                if wanted(event):
                    return event
            time.sleep(0.01)
        raise AssertionError("no such event in the log:\n" + self.log_text())

    def reload(self, what="reloaded"):
        """SIGHUP; returns when the broker has logged that it reloaded its files, or these."""
        seen = len(self.log)
        self.process.send_signal(signal.SIGHUP)
        self.wait_for_log(lambda event: what in event["message"], seen)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """The exit code."""
        code = self.process.wait(PATIENCE_SECS)
        self._reader.join(PATIENCE_SECS)
        return code

    def kill(self):
        self.process.kill()
        self.wait()

    def restart(self, how="kill"):
        """Ends the process, by `kill` -9 or `terminate`, and starts it again on the same data."""
        getattr(self, how)()
        self.wait()
        self._launch()

    def stop(self):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_text(self):
        return "\n".join(json.dumps(event) for event in self.log)


def flat(event):
    """A log event with all its fields at the top."""
    fields = event.pop("fields", {})
    return {**event, **fields}


def sum_of(broker, metric):
    """A metric of all shards."""
    return sum(v for name, v in broker.metrics().items() if name.split("{")[0] == metric)


def eventually(check, what="the condition"):
    """Waits until `check()` gives something true, and returns that."""
    deadline = time.monotonic() + PATIENCE_SECS
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.01)
