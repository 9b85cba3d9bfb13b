#!/usr/bin/env python3
"""Is memory flat? Clients, sessions, messages and subscriptions come and go for an hour.

`lab/soak.py --seconds 3600` starts a broker with durable sessions, small log segments and a TLS
listener, and runs `lab/bench/soak.toml` against it with `flock run --pid`. It prints the slope of
the broker's resident memory over the measured stage and over its halves, with what the broker
stored then (`/metrics`). It fails if the second half rises faster than `--limit` allows, or if a
message was lost.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

import records  # noqa: E402
from ports import free_ports  # noqa: E402

SCENARIO = ROOT / "lab/bench/soak.toml"

# Small segments, so that logs are rolled and reclaimed all the time.
CONFIG = """
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:{plain}"
[[listeners]]
url = "tls://127.0.0.1:{secure}"
allow_anonymous = true
[listeners.tls]
certificate = "{directory}/server.crt"
key = "{directory}/server.key"
[http]
listen = "127.0.0.1:{http}"
[log]
level = "warn"
[durability]
level = "{level}"
segment_bytes = "256KiB"
[limits]
packet_bytes_max = "64KiB"
topic_bytes_max = 1024
"""

READY_SECS = 30
GAUGES_EVERY_SECS = 5
GAUGES = ["connections", "sessions", "subscriptions", "retained_messages", "log_segments"]
COUNTERS = ["connections_opened_total", "sessions_expired_total", "wills_published_total"]
COUNTERS += ["log_segments_reclaimed_total", "publishes_received_total", "publishes_sent_total"]
COUNTERS += ["publishes_queued_total", "session_takeovers_total", "log_syncs_total"]
# Clients that come once keep coming until shortly before the end.
LAST_ARRIVAL_SECS = 20


class Metrics(threading.Thread):
    """What the broker says it holds, every few seconds: (seconds, {name: sum over shards})."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.samples = []
        self._over = threading.Event()

    def run(self):
        while not self._over.wait(GAUGES_EVERY_SECS):
            with contextlib.suppress(OSError):
                self.samples.append((time.monotonic(), self.read()))

    def read(self):
        with urllib.request.urlopen(self.url, timeout=5) as page:
            lines = page.read().decode().splitlines()
        sums = {}
        for line in lines:
            if line.startswith("quelea_") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0].removeprefix("quelea_")
                sums[name] = sums.get(name, 0) + float(value)
        return sums

    def stop(self):
        self._over.set()
        self.join()


def make_certificate(directory):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "server.key", "-out", "server.crt", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip


@contextlib.contextmanager
def broker(program, directory, level):
    plain, secure, http = free_ports(3)
    make_certificate(directory)
    config = directory / "quelea.toml"
    words = {"plain": plain, "secure": secure, "http": http, "directory": directory, "level": level}
    config.write_text(CONFIG.format(**words))
    with open(directory / "quelea.log", "wb") as log:
        process = subprocess.Popen(
            [program, "serve", f"--config={config}", f"--data={directory / 'data'}"], stderr=log
        )
    try:
        await_ready(process, http, directory)
        yield process.pid, plain, secure, http
    finally:
        process.terminate()
        process.wait()


def await_ready(process, http, directory):
    until = time.monotonic() + READY_SECS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=1).close()
            return
        time.sleep(0.1)
    raise SystemExit(f"the broker did not start: {(directory / 'quelea.log').read_text()}")


def run_flock(program, pid, plain, secure, arguments, out):
    arrivals = max(arguments.seconds - LAST_ARRIVAL_SECS, 1)
    command = [
        program, "run", SCENARIO, "--pid", pid, "--threads", 1, "--out", out, "--name", "soak",
        "--progress", 60, "--scale", arguments.scale,
        "--set", f"plain=127.0.0.1:{plain}", "--set", f"secure=127.0.0.1:{secure}",
        "--set", f"hold={arguments.seconds}s", "--set", f"arrivals={arrivals}s",
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command])
    return done.returncode, json.loads((out / "soak.json").read_text())


def slope(samples):
    """Bytes per second, by least squares over (seconds, bytes)."""
    if len(samples) < 2:
        return 0.0
    seconds, memory = zip(*samples)
    return statistics.linear_regression(seconds, memory).slope


def hold(results):
    """(seconds, bytes) of the broker during the measured stage."""
    stage = next(phase for phase in results["phases"] if phase["name"] == "hold")
    return [
        (sample["at_secs"], sample["memory_bytes"])
        for sample in results["broker_load"]["samples"]
        if stage["from_secs"] <= sample["at_secs"] <= stage["to_secs"]
    ]


def kb_per_hour(samples):
    return slope(samples) * 3600 / 1000


def row_of(samples, seconds):
    middle = (samples[0][0] + samples[-1][0]) / 2
    first = [sample for sample in samples if sample[0] <= middle]
    second = [sample for sample in samples if sample[0] > middle]
    megabytes = [bytes / 1e6 for _, bytes in samples]
    figures = {
        "start": (megabytes[0], "MB"), "end": (megabytes[-1], "MB"),
        "max": (max(megabytes), "MB"), "slope": (kb_per_hour(samples), "KB/h"),
        "slope_first_half": (kb_per_hour(first), "KB/h"),
        "slope_second_half": (kb_per_hour(second), "KB/h"),
    }  # fmt: skip
    cells = {name: records.cell([value], unit) for name, (value, unit) in figures.items()}
    eighth = max(len(samples) // 8, 1)
    steps = [megabytes[at : at + eighth] for at in range(0, eighth * 8, eighth)]
    means = [records.rounded(statistics.mean(step)) for step in steps if step]
    return records.row({"seconds": seconds}, cells) | {"eighths_mb": means}


def tell(metrics, results):
    load, totals = results["broker_load"], results["totals"]
    tell_metrics(metrics)
    print(
        f"flock: {totals['connects_ok']:,} connects, {sum(totals['published']):,} published,"
        f" {sum(totals['received']):,} received, {totals['subscribes_ok']:,} subscribed;"
        f" broker {load['cpu_percent_average']:.1f} % of a core"
    )


def tell_metrics(metrics):
    if not metrics:
        return
    middle, last = metrics[len(metrics) // 2][1], metrics[-1][1]
    for name in GAUGES:
        values = [sums.get(name, 0) for _, sums in metrics]
        print(
            f"{name}: {middle.get(name, 0):,.0f} in the middle, {last.get(name, 0):,.0f} at the end,"
            f" {max(values):,.0f} at most"
        )
    print("; ".join(f"{name} {last.get(name, 0):,.0f}" for name in COUNTERS))


def judge(code, results, second, limit):
    lost = sum(one["lost"] for one in results["integrity"]["by_qos"])
    wrong = []
    if lost:
        wrong.append(f"{lost:,} messages were lost")
    # 3: complete, but not valid as a measurement of time, which this is none of.
    if code not in (0, 3):
        wrong.append(f"flock ended with {code}")
    if second > limit:
        wrong.append(f"memory rose by {second:.0f} KB per hour in the second half, over {limit}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--scale", default="1", help="more or fewer clients, with all their rates")
    parser.add_argument("--level", default="fsync", choices=["memory", "disk", "fsync"])
    parser.add_argument("--limit", type=float, default=10_000, help="KB per hour, second half")
    parser.add_argument("--results", action="store_true", help="write lab/results/soak.json")
    parser.add_argument("--quelea", default=ROOT / "target/quick/quelea")
    parser.add_argument("--flock", default=ROOT / "target/quick/flock")
    arguments = parser.parse_args()
    out = ROOT / "results/soak"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quelea-soak-") as directory:
        directory = Path(directory)
        with broker(arguments.quelea, directory, arguments.level) as (pid, plain, secure, http):
            metrics = Metrics(http)
            metrics.start()
            code, results = run_flock(arguments.flock, pid, plain, secure, arguments, out)
            metrics.stop()
        sys.stdout.write((directory / "quelea.log").read_text()[-4000:])
    row = row_of(hold(results), arguments.seconds)
    command = f"lab/soak.py {' '.join(sys.argv[1:])}"
    found = records.record("soak", command, 1, [row], level=arguments.level)
    print("\n".join(records.tables(found)))
    tell(metrics.samples, results)
    if arguments.results:
        records.write(found)
    second = row["cells"]["slope_second_half"]["median"]
    wrong = judge(code, results, second, arguments.limit)
    print("\n".join(wrong) if wrong else "flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
