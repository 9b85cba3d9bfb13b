#!/usr/bin/env python3
"""Tails of latency during a disturbance. Writes lab/results/tails.json.

Pairs of clients send 5,000 messages per second in all, first alone and then during a disturbance:
a storm of connections, over TCP and over TLS; a subscriber of `#` that stops reading; 10,000
retained messages for new subscribers; messages to all of 10,000 subscribers; a log that is
reclaimed. The result is the p99.9 of the pairs, as a multiple of the p99.9 without the
disturbance in the same round.

The broker has two cores, the load of the pairs the third, the disturbance the fourth, each a
process of its own: what the disturbance costs its clients delays no measurement. Every run has a
broker that was just started. The bare relay of crates/proof/floor, where it can stand in for a broker,
shows what is the kernel's and the machine's.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import records
from records import ROOT
from runs import alike, faults, latency

sys.path.append(str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

BROKER_CPUS, PAIRS_CPU, DISTURBANCE_CPU = "0-1", "2", "3"
CPUS_NEEDED = 4
RELAY_THREADS = 2
START_SECS_MAX = 10

# The pairs begin so much later than the disturbance.
LEAD_SECS = 1
# It takes so long until there is something to reclaim, and until 10,000 have subscribed.
RECLAIM_LEAD_SECS = 5
BROADCAST_LEAD_SECS = 8

IN_MEMORY = {"durability__level": "memory"}

# So small that a few seconds fill many segments, and no smaller: a slow disk must keep up with them.
ON_DISK = {
    "durability__level": "disk",
    "durability__segment_bytes": "4MiB",
    "limits__packet_bytes_max": "64KiB",
    "limits__topic_bytes_max": "256",
}


BROKERS = ("quelea", "mosquitto")
# It has neither TLS nor retained messages, and drops what a stopped subscriber does not take.
WITH_RELAY = (*BROKERS, "relay")


@dataclass(frozen=True)
class Case:
    """One run: the pairs, and beside them a disturbance or nothing."""

    title: str
    # What it is held against; none: it is there to be held against.
    quiet: str | None = None
    scenario: str | None = None
    # Parameters of that scenario, and of the pairs'.
    params: dict = field(default_factory=dict)
    pairs: dict = field(default_factory=dict)
    is_tls: bool = False
    lead_secs: int = LEAD_SECS
    # Keys of quelea's configuration.
    keys: dict = field(default_factory=lambda: IN_MEMORY)
    brokers: tuple = BROKERS


FEW = {"pairs": "10", "rate": "500/s"}
KEPT = {"expiry": "1h"}
OWN = ("quelea",)
STORM, STOPPED, RETAINED, RECLAIM, BROADCAST = (
    f"tails-{name}" for name in ("connect-storm", "stopped", "retained", "reclaim", "broadcast")
)
CASES = {
    "quiet": Case("none, 200 pairs", brokers=WITH_RELAY),
    "storm": Case("connect storm", "quiet", STORM, brokers=WITH_RELAY),
    "storm-tls": Case("connect storm, TLS", "quiet", STORM, is_tls=True),
    "stopped": Case("stopped `#` subscriber", "quiet", STOPPED),
    "retained": Case("10,000 retained of 64 B", "quiet", RETAINED),
    "retained-1k": Case("10,000 retained of 1 KB", "quiet", RETAINED, {"payload": "1K"}),
    "broadcast": Case(
        "broadcast to 10,000", "quiet", BROADCAST, lead_secs=BROADCAST_LEAD_SECS
    ),
    "few": Case("none, 10 pairs", pairs=FEW, brokers=OWN),
    "few-stopped": Case(
        "stopped `#` subscriber, 10 pairs", "few", STOPPED, pairs=FEW, brokers=OWN
    ),
    "log": Case(
        "retained replaced, nothing reclaimed", None, RECLAIM, pairs=KEPT,
        lead_secs=RECLAIM_LEAD_SECS, keys={**ON_DISK, "durability__space_percent": "1000"},
        brokers=OWN,
    ),
    "reclaim": Case(
        "retained replaced, log reclaimed", "log", RECLAIM, pairs=KEPT,
        lead_secs=RECLAIM_LEAD_SECS, keys={**ON_DISK, "durability__space_percent": "200"},
        brokers=OWN,
    ),
}  # fmt: skip


# --- Brokers


@dataclass
class Broker:
    pid: int
    port: int
    tls_port: int
    http_port: int

    def metrics(self):
        """What /metrics says, added up over the shards; nothing where there is no such page."""
        try:
            url = f"http://127.0.0.1:{self.http_port}/metrics"
            with urllib.request.urlopen(url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        sums = {}
        for name, value in re.findall(r"^(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            sums[name] = sums.get(name, 0) + float(value)
        return sums


def make_certificate(directory):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "2"]
    command += ["-subj", "/CN=localhost"]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)


def quelea(case, directory, ports, programs):
    """The command, and what it finds in its environment."""
    config = directory / "quelea.toml"
    config.write_text(f"""
[server]
workers = 2
[[listeners]]
url = "tcp://127.0.0.1:{ports[0]}"
[[listeners]]
url = "tls://127.0.0.1:{ports[1]}"
tls.certificate = "{directory}/certificate.pem"
tls.key = "{directory}/key.pem"
""")
    command = [programs / "quelea", "serve", "--config", config, "--data", directory / "data"]
    command += ["--http", f"127.0.0.1:{ports[2]}", "--log-level", "error"]
    return command, {f"QUELEA_{key}": value for key, value in case.keys.items()}


def mosquitto(_case, directory, ports, _programs):
    config = directory / "mosquitto.conf"
    # As root it would become somebody who cannot read the key.
    config.write_text(f"""
user root
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
log_dest none
listener {ports[0]} 127.0.0.1
listener {ports[1]} 127.0.0.1
certfile {directory}/certificate.pem
keyfile {directory}/key.pem
""")
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    return [program, "-c", config] if program else None, {}


def relay(_case, _directory, ports, programs):
    return [programs / "floor", f"127.0.0.1:{ports[0]}", RELAY_THREADS], {}


COMMANDS = {"quelea": quelea, "mosquitto": mosquitto, "relay": relay}


@contextlib.contextmanager
def running(name, case, programs, prefix):
    """Runs a broker in a directory of its own; gives none if it is not installed."""
    ports = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="tails-") as directory:
        make_certificate(directory)
        command, environment = COMMANDS[name](case, Path(directory), ports, programs)
        if command is None:
            yield None
            return
        environment = dict(os.environ, **environment)
        command = [*prefix, "taskset", "-c", BROKER_CPUS, *map(str, command)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_for(ports[0], process)
            yield Broker(process.pid, *ports)
        finally:
            process.terminate()
            process.wait()


def wait_for(port, process):
    ends = time.monotonic() + START_SECS_MAX
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    sys.exit(f"the broker does not listen on port {port}; it ended with {process.poll()}")


# --- Runs


def flock(scenario, params, url, out, options, prefix, programs):
    command = [*prefix, programs / "flock", "run", ROOT / f"lab/bench/{scenario}.toml"]
    command += ["--broker", url, "--insecure", "--threads", "1", "--quiet", "--out", out, *options]
    for name, value in params.items():
        command += ["--set", f"{name}={value}"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([str(word) for word in command], **silent)


def run(name, case, urgent, programs, out):
    """What the pairs saw, what the disturbance did, and what the broker says of itself."""
    with running(name, case, programs, urgent) as broker:
        if broker is None:
            return None
        plain = f"mqtt://127.0.0.1:{broker.port}"
        disturbance = None
        if case.scenario:
            url = f"mqtts://127.0.0.1:{broker.tls_port}" if case.is_tls else plain
            prefix = [*urgent, "taskset", "-c", DISTURBANCE_CPU]
            options = ["--name", "disturbance"]
            disturbance = flock(case.scenario, case.params, url, out, options, prefix, programs)
            time.sleep(case.lead_secs)
        prefix = [*urgent, "taskset", "-c", PAIRS_CPU]
        options = ["--name", "pairs", "--pid", broker.pid]
        flock("tails-quiet", case.pairs, plain, out, options, prefix, programs).wait()
        metrics = broker.metrics()
        if disturbance:
            # It would go on; what it has counted is written all the same.
            disturbance.send_signal(signal.SIGINT)
            disturbance.wait()
    results = json.loads((out / "pairs.json").read_text())
    results["metrics"] = metrics
    if disturbance:
        results["disturbance"] = json.loads((out / "disturbance.json").read_text())
    return results


def run_all(cases, rounds, urgent, brokers, programs):
    """Runs by case and broker, one for each round."""
    runs = {}
    with tempfile.TemporaryDirectory(prefix="tails-") as out:
        for number in range(1, rounds + 1):
            for key in cases:
                for name in (one for one in CASES[key].brokers if one in brokers):
                    results = run(name, CASES[key], urgent, programs, Path(out))
                    if results is None:
                        print(f"{name} is not installed", flush=True)
                        continue
                    runs.setdefault((key, name), []).append(results)
                    told = " / ".join(f"{of(results):.2f}" for _, of in LATENCIES)
                    print(f"{number} {key} {name}: {told} ms; {nature(key, [results])}", flush=True)
    return runs


# --- The rows

LATENCIES = [
    ("p50", latency("p50_us")),
    ("p99", latency("p99_us")),
    ("p99.9", latency("p999_us")),
    ("max", latency("max_us")),
]
TAIL = latency("p999_us")


def rows(runs):
    made = []
    for key, case in CASES.items():
        for name in case.brokers:
            if rounds := runs.get((key, name)):
                cells = {title: records.cell(map(of, rounds), "ms") for title, of in LATENCIES}
                cells["p99.9_ratio"] = ratio(rounds, runs.get((case.quiet, name), []))
                remarks = alike(one for each in rounds for one in faults(each, False))
                row = records.row({"disturbance": case.title, "broker": name}, cells, remarks)
                made.append(row | {"was": nature(key, rounds)})
    return made


def ratio(disturbed, quiet):
    """Each within its round."""
    return records.cell([TAIL(one) / TAIL(other) for one, other in zip(disturbed, quiet)], "x")


def nature(key, rounds):
    """What the disturbance was, in the median of the rounds."""
    scenario, said = CASES[key].scenario, []
    if scenario == STORM:
        said.append(f"{middle(connects_per_second, rounds):,.0f} connects/s")
    elif scenario == STOPPED:
        queued = middle(metric("quelea_publishes_queued_total"), rounds)
        said += [f"{queued:,.0f} messages waited for it"] if queued else []
    elif scenario == RETAINED:
        count = middle(lambda one: sum(one["disturbance"]["totals"]["received"]), rounds)
        said.append(f"{count:,.0f} delivered, 10,000 in {middle(delivery_ms, rounds):.0f} ms")
    elif scenario == RECLAIM:
        read = middle(metric("quelea_log_reclaim_read_bytes_total"), rounds)
        segments = middle(metric("quelea_log_segments_reclaimed_total"), rounds)
        said.append(f"{read / 1e6:,.0f} MB read, {segments:,.0f} files given back")
    if turn := middle(metric("quelea_worker_turn_seconds_max"), rounds):
        said.append(f"longest turn {1000 * turn:.1f} ms")
    return "; ".join(said)


def middle(of, rounds):
    return statistics.median(of(one) for one in rounds)


def metric(name):
    return lambda results: results["metrics"].get(name, 0)


def connects_per_second(results):
    counts = [second["connects"] for second in results["disturbance"]["series"]]
    return statistics.median([count for count in counts if count] or [0])


def delivery_ms(results):
    timers = results["disturbance"]["timers"]
    return next(one["summary"]["p50_us"] / 1000 for one in timers if one["name"] == "delivery")


def machine(runs):
    of = next(iter(runs.values()))[0]["machine"]
    where = records.machine(
        os.cpu_count(), of["cpu"], of["memory_bytes"], of["kernel"], [BROKER_CPUS]
    )
    loads = f"the load of the pairs on core {PAIRS_CPU}, the disturbance on {DISTURBANCE_CPU}"
    return f"{where}, {loads}"


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", help=f"some of {','.join(CASES)}: nothing is written")
    parser.add_argument("--brokers", default=",".join(COMMANDS))
    parser.add_argument("--profile", default="release")
    built = "folder of quelea, flock and floor: nothing is built"
    parser.add_argument("--programs", type=Path, help=built)
    urgent = "everything at real-time priority, for a machine that is not quiet"
    parser.add_argument("--urgent", action="store_true", help=urgent)
    parser.add_argument("--print-only", action="store_true", help="write no file")
    arguments = parser.parse_args()
    if (os.cpu_count() or 1) < CPUS_NEEDED:
        sys.exit(f"needs {CPUS_NEEDED} cores: two for the broker, one for each load")
    wanted = arguments.cases.split(",") if arguments.cases else list(CASES)
    wanted += [CASES[key].quiet for key in wanted]
    cases = [key for key in CASES if key in wanted]
    programs = arguments.programs or build(arguments.profile)
    urgent = ["chrt", "-r", "50"] if arguments.urgent else []
    brokers = arguments.brokers.split(",")
    runs = run_all(cases, arguments.rounds, urgent, brokers, programs.resolve())
    if not runs:
        sys.exit("no broker could be measured")
    command = f"lab/tails.py {' '.join(sys.argv[1:])}"
    found = records.record("tails", command, arguments.rounds, rows(runs), machine(runs))
    print("\n".join(records.tables(found)))
    if not (arguments.print_only or arguments.cases):
        records.write(found)


def build(profile):
    command = ["cargo", "build", "--profile", profile]
    command += [word for one in ("quelea", "flock", "floor") for word in ("-p", one)]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target" / profile


if __name__ == "__main__":
    main()
