#!/usr/bin/env python3
"""What an open dashboard costs other clients. Writes lab/results/dashboard.json.

A broker has 100,000 sessions. Pairs of clients send at a fixed rate, in turn without and with a
dashboard: the requests that its overview makes every two seconds, and a list of clients as often
as that, which the page requests once. The requests come from a process of this script: a browser
on the same machine would take the processor from broker and load.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import records
from records import ROOT
from runs import faults, latency

sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from broker import Broker  # noqa: E402

SESSIONS = 100_000
SCENARIO = ("MB-B1", "--scale", "1")
PERIOD_SECS = 2
PAGES = ("/totals", "/broker", "/clients?limit=50")
CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[durability]
level = "memory"
[limits]
connections_per_second_max = "unlimited"
[log]
client_lines_per_second_max = 10
[api]
listen = "http"
"""


class Dashboard:
    """Requests what an open page does, until it is closed."""

    def __init__(self, broker):
        self.base = f"http://127.0.0.1:{broker.port('http')}/api/v1"
        self.token = (broker.data / "api.token").read_text().splitlines()[0]
        self.closed, self.count = threading.Event(), 0
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self.thread.join()

    def _run(self):
        while not self.closed.is_set():
            for page in PAGES:
                request = urllib.request.Request(self.base + page)
                request.add_header("Authorization", f"Bearer {self.token}")
                with urllib.request.urlopen(request, timeout=30) as answer:
                    json.load(answer)
                self.count += 1
            self.closed.wait(PERIOD_SECS)


def run(flock, broker, secs, out):
    out.mkdir()
    command = [flock, "run", *SCENARIO, "--duration", f"{secs}s", "--out", out, "--quiet"]
    command += ["--broker", f"127.0.0.1:{broker.port()}", "--pid", str(broker.process.pid)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=10 * secs + 120)
    (path,) = out.glob("*.json")
    return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    flock = ROOT / "target/quick/flock"
    broker = Broker(CONFIG)
    found = {"closed": [], "open": []}
    try:
        fill = [sys.executable, ROOT / "tests/pages/fill.py", str(broker.port()), str(SESSIONS)]
        subprocess.run(fill, check=True)
        with tempfile.TemporaryDirectory() as work:
            for number in range(options.rounds):
                # Which of them comes first changes with each round.
                for name in sorted(found, reverse=number % 2 == 1):
                    out = Path(work) / f"{number}-{name}"
                    if name == "open":
                        with Dashboard(broker) as dashboard:
                            results = run(flock, broker, options.seconds, out)
                        assert dashboard.count >= len(PAGES)
                    else:
                        results = run(flock, broker, options.seconds, out)
                    found[name].append(results)
                    print(number, name, latency("p999_us")(results), "ms", flush=True)
    finally:
        broker.stop()
    rows = []
    for name, all_results in found.items():
        said = sorted({word for results in all_results for word in faults(results, True)})
        cells = {
            "p50": records.cell([latency("p50_us")(it) for it in all_results], "ms"),
            "p99_9": records.cell([latency("p999_us")(it) for it in all_results], "ms"),
        }
        rows.append(records.row({"dashboard": name}, cells, said))
    pairs = zip(found["open"], found["closed"], strict=True)
    tails = [(latency("p999_us")(one), latency("p999_us")(two)) for one, two in pairs]
    ratios = [one / two for one, two in tails if one and two]
    rows.append(records.row({"dashboard": "ratio"}, {"p99_9": records.cell(ratios, "")}))
    command = f"python3 lab/dashboard.py --rounds {options.rounds} --seconds {options.seconds}"
    record = records.record("dashboard", command, options.rounds, rows)
    print("\n".join(records.tables(record)))
    records.write(record)


if __name__ == "__main__":
    main()
