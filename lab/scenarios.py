#!/usr/bin/env python3
"""Runs every built-in scenario without sinks once against quelea, at a scale for a small machine. Writes
lab/results/scenarios.json.

    cargo build --profile quick -p quelea -p flock
    python3 lab/scenarios.py            # all, about a quarter of an hour
    python3 lab/scenarios.py X-1 EG-3   # only these; other rows stay as they are

Needs Linux, openssl (X-3), and mosquitto for the bridge of XR-4. The reports of KEPT are copied to
docs/flock/examples; all others stay in results/all, which git ignores.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import records
from records import ROOT

sys.path.append(str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

EXAMPLES = ROOT / "docs/flock/examples"
# Relative to the root, where everything runs: commands stand in the reports.
BIN = Path("target/quick")
OUT = Path("results/all")
WORK = OUT / "work"
SECONDS_MAX = 300

SHORT = "--duration 8s --ramp 2s"
RUNS = {
    "MB-B1": SHORT,
    "MB-E1": "--scale 0.08 --duration 8s --ramp 4s",
    "MB-B2": SHORT,
    "MB-E2": f"--scale 0.2 {SHORT}",
    "MB-B3": SHORT,
    "MB-E3": f"--scale 0.1 {SHORT}",
    "MB-B4": "--scale 0.2 --duration 4s --ramp 10s",
    "MB-E4": "--scale 0.015 --duration 4s --ramp 10s",
    **{f"EG-{n}": f"--scale 0.02 {SHORT}" for n in (1, 2, 3)},
    "EG-4": f"--scale 0.1 {SHORT}",
    "EG-5": f"--scale 0.02 {SHORT}",
    "EG-6": f"--scale 0.2 {SHORT}",
    "EG-7": f"--scale 0.2 {SHORT}",
    **{
        f"AIO-{kind}-{size}": "--duration 6s --ramp 1s"
        for kind in ("FI", "B1", "B100", "FO")
        for size in ("16B", "8K", "255K")
    },
    **{
        f"AIO-{kind}-{size}-closed": "--duration 6s --ramp 1s"
        for kind in ("FI", "FO")
        for size in ("16B", "8K", "255K")
    },
    "HM-200M": "--scale 0.00001 --speed 240",
    "HM-200M-even": "--scale 0.00001 --speed 240",
    "HM-R2000": "--speed 240",
    "HM-R2000-even": "--speed 240",
    "SOL-1K": "--duration 6s --ramp 1s",
    "SOL-1M": "--scale 0.1 --duration 6s --ramp 1s",
    **{f"XR-1-Q{qos}": SHORT for qos in (0, 1, 2)},
    **{f"XR-2-{size}": SHORT for size in ("128B", "1K", "8K")},
    "XR-3-in": SHORT,
    "XR-3-out": SHORT,
    # The bridge needs a while until it is up.
    "XR-4": "--scale 0.2 --duration 8s --ramp 6s",
    "EMQX-100M": "--scale 0.00004 --set rate=1/2s --duration 8s --ramp 2s",
    "EMQX-5M": "--scale 0.002 --duration 4s --ramp 10s",
    "EMQX-2M": f"--scale 0.02 {SHORT}",
    **{f"EMQX-LAT-Q{qos}": SHORT for qos in (0, 1, 2)},
    **{f"RABBIT-Q{qos}": "--scale 0.2" for qos in (1, 0)},
    "RABBIT-1M": "--scale 0.01 --duration 4s --ramp 10s",
    "RABBIT-200K": "--scale 0.04 --set rate=1/4s --duration 8s --ramp 4s",
    **{
        f"TBMQ-P2P-{step}": f"--scale {scale} {SHORT}"
        for step, scale in (
            ("200K", 0.04),
            ("400K", 0.02),
            ("600K", 0.013),
            ("800K", 0.01),
            ("1M", 0.008),
        )
    },
    "TBMQ-100M": f"--scale 0.00005 {SHORT}",
    "TBMQ-3M": f"--scale 0.01 {SHORT}",
    **{
        f"BIFRO-{step}": f"--scale {scale} {SHORT}"
        for step, scale in (
            ("1K-Q0-1K-50", 0.2),
            ("2K-Q0-32B-100", 0.05),
            ("5K-Q0-32B-50", 0.04),
            ("1K-Q1-1K-50", 0.2),
            ("2K-Q1-32B-100", 0.05),
            ("5K-Q1-32B-50", 0.04),
            ("2K-Q2-32B-100", 0.05),
            ("50K-Q0-1K", 0.05),
            ("100K-Q0-1K", 0.03),
            ("50K-Q1-1K", 0.05),
            ("100K-Q1-1K", 0.03),
            ("50K-Q2-1K", 0.05),
            ("KEPT-10K-Q0-32B", 0.2),
            ("KEPT-10K-Q0-1K", 0.2),
            ("KEPT-10K-Q1-32B", 0.2),
            ("KEPT-10K-Q1-1K", 0.2),
            ("KEPT-7K-Q2-32B", 0.2),
            ("KEPT-7K-Q2-1K", 0.2),
            ("SHARED-Q0", 0.1),
            ("SHARED-Q1", 0.1),
            ("SHARED-Q2", 0.1),
            ("SHARED-KEPT-Q0", 0.4),
            ("SHARED-KEPT-Q1", 0.4),
            ("SHARED-KEPT-Q2", 0.4),
        )
    },
    **{
        f"BIFRO-KEPT-{step}-50": f"--scale 0.2 {SHORT}"
        for step in (
            "300-Q0-32B",
            "300-Q0-1K",
            "300-Q1-32B",
            "300-Q1-1K",
            "100-Q2-32B",
            "100-Q2-1K",
        )
    },
    "BIFRO-FANOUT": SHORT,
    "SW-1": "--speed 10",
    "X-1": "--scale 0.2 --duration 15s --ramp 1s",
    "X-2": "--scale 0.2 --duration 15s --ramp 1s",
    "X-3": "--scale 0.04 --ramp 2s --insecure",
    "X-4": "--scale 0.1 --ramp 2s",
    "X-5": "--scale 0.05 --duration 60s --ramp 1s",
    "X-6": "--scale 0.2 --duration 15s --ramp 1s",
    "X-7": "--scale 0.05 --duration 10s --ramp 1s",
    "X-8": "--scale 0.1 --duration 8s --ramp 1s",
    "X-9": "--scale 0.1 --duration 8s --ramp 2s",
    "X-10": "--scale 0.2 --duration 15s --ramp 1s",
    **{f"D-1-{size}": "--duration 6s" for size in ("16B", "1K", "8K")},
    "D-2": "--duration 6s",
    "D-3": "--scale 0.5",
    "D-4": "",
}
NOTES = ["Each row names its commit and date.", "Remarks: why flock calls a run not valid."]
KEPT = {"MB-B1": (".html", ".md", ".csv", ".json"), "X-1": (".html", ".md")}


def halves():
    """Cores of the broker, and cores of the load."""
    cores = sorted(os.sched_getaffinity(0))
    middle = max(len(cores) // 2, 1)
    as_list = lambda some: ",".join(map(str, some))
    return as_list(cores[:middle]), as_list(cores[middle:] or cores)


def certificate(folder):
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-subj", "/CN=localhost"]
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*command.split(), *files, *names], check=True, capture_output=True)


def secured(folder, port):
    """The configuration of a listener with TLS."""
    certificate(folder)
    file = folder / "quelea.toml"
    file.write_text(
        f'[[listeners]]\nurl = "tls://127.0.0.1:{port}"\n[listeners.tls]\n'
        'certificate = "cert.pem"\nkey = "key.pem"\n'
    )
    return f"--config {file}"


def bridge(folder, port):
    """A mosquitto that is bridged to the broker at `port`; returns the process and its own port."""
    [own] = free_ports(1)
    file = folder / "bridge.conf"
    user = "user root\n" if os.geteuid() == 0 else ""
    file.write_text(
        f"listener {own} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        f"max_inflight_messages 0\n{user}connection bridge\naddress 127.0.0.1:{port}\n"
        "topic a2b/# in 1\ntopic b2a/# out 1\nrestart_timeout 1\n"
    )
    program = shutil.which("mosquitto", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([program, "-c", str(file)], **quiet), own


def run(id, bend, commit):
    """One scenario against a broker of its own; returns the exit code of flock."""
    folder = WORK / id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (OUT / f"{id}.json").unlink(missing_ok=True)
    [port], other = free_ports(1), None
    broker, listen = f"127.0.0.1:{port}", f"--listen tcp://127.0.0.1:{port}"
    if id == "X-3":
        broker, listen = f"mqtts://{broker}", secured(folder, port)
    if id == "XR-4":
        other, own = bridge(folder, port)
        broker += f",127.0.0.1:{own}"
    broker_cores, load_cores = halves()
    serve = f"taskset -c {broker_cores} {BIN}/quelea serve {listen} --data {folder} --http off"
    named = ["--broker-name", "quelea", "--broker-version", commit]
    command = ["taskset", "-c", load_cores, f"{BIN}/flock", "run", id, *shlex.split(bend), *named]
    command += ["--broker", broker, "--broker-command", serve, "--out", str(OUT), "--name", id]
    try:
        return subprocess.run(
            [*command, "--quiet"], capture_output=True, timeout=SECONDS_MAX
        ).returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        if other:
            other.terminate()
            other.wait()
        shutil.rmtree(folder, ignore_errors=True)


def busy(series, key):
    """As the reports have it: seconds with something, without the first and last where there are more."""
    at = [n for n, second in enumerate(series) if second[key]]
    if not at:
        return []
    first, last = at[0], at[-1]
    return series[first + 1 : last] if last - first >= 3 else series[first : last + 1]


def rate(series, key):
    seconds = busy(series, "published") or busy(series, "received")
    if not any(second[key] for second in seconds):
        seconds = busy(series, key)
    # In runs of hours an entry is a step of several seconds.
    secs = sum(second.get("spread", {}).get("secs", 1) for second in seconds)
    return sum(second[key] for second in seconds) / secs if seconds else None


def reasons(results):
    """In a word or two each, why flock does not call the run a measurement."""
    known = {
        "sent more than": "sent late",
        "may have waited": "read late",
        "other machines": "cores stolen",
        "busiest load thread": "a full core",
        "other programs": "others ran",
    }
    reasons = results["validity"]["reasons"]
    words = [known[word] for word in known if any(word in reason for reason in reasons)]
    return words + [one for one in reasons if not any(word in one for word in known)]


def row(id, bend, code, commit):
    """`passed`: the run ended as its scenario expects, and no message was lost."""
    facts = {"options": bend, "passed": code in (0, 3), "latency": None}
    facts |= {"commit": commit, "date": time.strftime("%Y-%m-%d")}
    if code is None or not (OUT / f"{id}.json").exists():
        return records.row({"scenario": id}, {}, ["did not end"]) | facts
    results = json.loads((OUT / f"{id}.json").read_text())
    merged = {latency["kind"]: latency["summary"] for latency in results["latencies"]}
    kind = next((k for k in ("end_to_end", "routed", "connect") if k in merged), None)
    summary = merged.get(kind, {})
    counts = results["integrity"]["by_qos"]
    load = results.get("broker_load") or {}
    figures = {
        "published": (rate(results["series"], "published"), "1/s"),
        "received": (rate(results["series"], "received"), "1/s"),
        "p50": (summary.get("p50_us"), "us"),
        "p99": (summary.get("p99_us"), "us"),
        "cpu": (load.get("cpu_us_per_message"), "us"),
    }
    if any(count["expected"] for count in counts):
        for key in ("lost", "duplicated", "expected"):
            figures[key] = (sum(count[key] for count in counts), None)
    cells = {name: records.cell([value], unit) for name, (value, unit) in figures.items()}
    remarks = reasons(results) if code == 3 else []
    return records.row({"scenario": id}, cells, remarks) | facts | {"latency": kind}


def keep(id):
    for ending in KEPT.get(id, ()):
        shutil.copy(OUT / f"{id}{ending}", EXAMPLES / f"{id}{ending}")


def write(new):
    """Puts a row into the record, in the order of RUNS; the other rows stay."""
    old = records.read("scenarios")["rows"] if "scenarios" in records.suites() else []
    rows = {one["of"]["scenario"]: one for one in [*old, new]}
    rows = [rows[id] for id in RUNS if id in rows]
    records.write(records.record("scenarios", "lab/scenarios.py", 1, rows, notes=NOTES))


def main():
    os.chdir(ROOT)
    wanted = sys.argv[1:] or list(RUNS)
    unknown = [id for id in wanted if id not in RUNS]
    if unknown:
        sys.exit(f"no such scenario: {', '.join(unknown)}")
    commit = records.git("describe", "--always", "--dirty")
    failed = 0
    for id in wanted:
        started = time.monotonic()
        code = run(id, RUNS[id], commit)
        failed += code not in (0, 3)
        write(row(id, RUNS[id], code, commit))
        if (OUT / f"{id}.json").exists():
            keep(id)
        print(f"{id:<14} {code} after {time.monotonic() - started:.0f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
