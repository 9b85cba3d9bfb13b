#!/usr/bin/env python3
"""Counts what a delivered message costs a broker: user instructions and system calls by name.

Each cell runs a broker on one core and the load on another. A run sends a fixed number of messages
(lab/bench/count.toml) and is idle before and after. Counting begins and ends while it is idle, so
that connects, disconnects and the start are left out. Every sum is divided by the messages that
subscribers received; a run that loses one has no figures.

- System calls, context switches and CPU time are counted at the rate of the row (`perf stat`), also
  those of threads that end meanwhile. Only root can do that.
- Instructions are counted by the processor in the same run where `perf stat -e instructions:u`
  works. Elsewhere callgrind counts them in further runs. It makes a broker two to five times slower
  and its rate is lower there, so the broker handles more or fewer messages at a time. Paced rows
  therefore have two such runs, at two rates. Waits for sockets per message (`waits`) are counted in
  all runs. A line through both runs gives the instructions at the waits of the run at full rate,
  but never less than the lower one of both. The remarks have both runs.

Writes lab/results/counts.json.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path

import bench
import records
import runs
from records import ROOT

sys.path.append(str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

SCENARIO = ROOT / "lab/bench/count.toml"
DESCRIPTIONS = ROOT / "crates/flock/flock/brokers"
TRACEPOINTS = (Path("/sys/kernel/tracing/events"), Path("/sys/kernel/debug/tracing/events"))
EXAMPLES = """\
examples:
  lab/counts.py                                       all rows and installed brokers, 15 minutes
  lab/counts.py --rows P2P-20K --brokers quelea,mosquitto
  lab/counts.py --rows KEPT-FSYNC --brokers quelea --keep /tmp/profiles
  lab/counts.py --real-time                           on a machine that other programs use
  lab/counts.py --list                                the rows
"""

# Named in results; all others are one figure.
CALLS = """
    epoll_wait epoll_pwait epoll_pwait2 epoll_ctl poll ppoll select pselect6 read write readv writev
    recvfrom sendto recvmsg sendmsg accept4 close futex sched_yield rt_sigprocmask clock_gettime
    clock_nanosleep nanosleep pread64 pwrite64 preadv pwritev pwritev2 fsync fdatasync
    sync_file_range fallocate io_uring_enter madvise mmap munmap mprotect brk
""".split()
WAITS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6")
EVENTFD = "eventfd_write"
# In milliseconds.
CPU = "task-clock"
SWITCHES = "context-switches"
OTHERS = "other_calls"
# Fewer per message are left out of the table.
SHOWN_MIN = 0.005

READY_SECS_MAX = 60
STAGE_SECS_MAX = 180
CONTROL_SECS_MAX = 20
ATTEMPTS_MAX = 3
POLL_SECS = 0.1
# Waits per message of two runs that are less apart tell nothing of their effect.
WAITS_APART_MIN = 0.2
# A run at less than this part of its rate is a broker that cannot keep up.
RATE_PART_MIN = 0.97
# perf opens a file for each event and thread.
OPEN_FILES = 65_536
UNIT = "/msg"
PERF_COSTS = (
    "CPU includes what perf adds to each system call, so a broker that makes more of them looks"
    " dearer than it is. To compare CPU use bench.py."
)


class Failure(Exception):
    """A run without figures, with the reason."""


class Missed(Failure):
    """Counting began or ended during the load. Another run may be luckier."""


# --- What is counted


@dataclass(frozen=True)
class Load:
    """Messages of all publishers, and their rate in all; no rate: at full speed."""

    messages: int
    rate: int | None = None

    def scaled(self, factor):
        return replace(self, messages=round(self.messages * factor))


@dataclass(frozen=True, eq=False)
class Row:
    name: str
    title: str
    # Parameters of the scenario.
    params: dict
    load: Load
    # Under callgrind: one, or two with different rates.
    slow: tuple
    level: str = "memory"

    @property
    def brokers(self):
        return [name for name, broker in BROKERS.items() if self.level in broker.levels]


@dataclass(frozen=True)
class Broker:
    description: str
    more: tuple = ()
    levels: tuple = ("memory",)
    # Further parameters of its description.
    params: dict = field(default_factory=dict)


ALL_LEVELS = ("memory", "disk", "fsync")
BROKERS = {
    "quelea": Broker("quelea", levels=ALL_LEVELS),
    # By default there is one shard in memory, and four with logs.
    "quelea-1": Broker("quelea", ("--shards", "1"), levels=("disk", "fsync")),
    "quelea-4": Broker("quelea", ("--shards", "4")),
    "quelea-delayed": Broker("quelea", levels=("fsync",), params={"delay": "1"}),
    # As another user it could not be controlled under callgrind. Without TLS this place is free.
    "mosquitto": Broker("mosquitto", params={"tls": "user root"}),
    "flashmq": Broker("flashmq"),
}


def pairs(count, **more):
    return {"publishers": count, "subscribers": count, **more}


GROUP = {"publishers": 1000, "subscribers": 50, "subscription": "group"}
KEPT = pairs(20, version="5", expiry="1h", in_flight=500)
LOAD_2K = Load(8_000, 2_000)
SLOW_2K = (Load(4_000, 1_000), Load(8_000, 2_000))
SLOW_KEPT = (Load(2_000, 500), Load(8_000, 2_000))
ROWS = [
    Row(
        "MAX-1", "100 pairs at full speed, QoS 1", pairs(100),
        Load(400_000), (Load(100_000),),
    ),
    Row(
        "MAX-0", "100 pairs at full speed, QoS 0", pairs(100, qos=0),
        Load(400_000), (Load(100_000),),
    ),
    Row(
        "P2P-20K", "1,000 pairs, 20,000/s, QoS 1", pairs(1000),
        Load(60_000, 20_000), (Load(20_000, 5_000), Load(30_000, 10_000)),
    ),
    Row(
        "P2P-2K", "1,000 pairs, 2,000/s, QoS 1", pairs(1000),
        LOAD_2K, SLOW_2K,
    ),
    Row(
        "SHARE-20K", "1,000 to a shared group of 50, 20,000/s, QoS 1", GROUP,
        Load(60_000, 20_000), (Load(20_000, 5_000), Load(30_000, 10_000)),
    ),
    Row(
        "ONE-1", "one pair, one message in flight, QoS 1", pairs(1, in_flight=1),
        Load(20_000), (Load(5_000),),
    ),
    Row("KEPT-MEMORY", "20 pairs, 2,000/s, kept sessions, memory", KEPT, LOAD_2K, SLOW_KEPT),
    Row("KEPT-DISK", "the same at level disk", KEPT, LOAD_2K, SLOW_KEPT, "disk"),
    Row("KEPT-FSYNC", "the same at level fsync", KEPT, LOAD_2K, SLOW_KEPT, "fsync"),
]  # fmt: skip


# --- Brokers


@dataclass(frozen=True)
class Description:
    """How flock starts a broker, for one core."""

    program: str
    command: list
    environment: dict
    files: dict
    # What the version of the broker is asked with.
    version: list


def describe(name, level, programs):
    """None if the broker is not installed."""
    broker = BROKERS[name]
    text = tomllib.loads((DESCRIPTIONS / f"{broker.description}.toml").read_text())
    own = [str(programs / "quelea")] if broker.description == "quelea" else text["programs"]
    program = next(filter(None, map(shutil.which, own)), None)
    if program is None:
        return None
    params = {**text.get("params", {}), "program": program, "cores": "1"}
    params |= {**({"level": level} if "level" in params else {}), **broker.params}
    return Description(
        program,
        [fill(word, params) for word in text["command"]] + list(broker.more),
        {key: fill(value, params) for key, value in text.get("env", {}).items()},
        {one["path"]: fill(one["text"], params) for one in text.get("file", [])},
        [fill(word, params) for word in text["version"]],
    )


def fill(text, params):
    """Names that are not known yet stay."""
    return re.sub(r"\{(\w+)\}", lambda found: str(params.get(found[1], found[0])), text)


def version_of(description):
    told = subprocess.run(description.version, capture_output=True, text=True)
    lines = (told.stdout or told.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


@contextlib.contextmanager
def running(description, directory, cpu, is_first, under=()):
    """The process of a broker that accepts connections on one core, and its port."""
    [port] = free_ports(1)
    places = {"dir": directory, "port": port}
    # Some brokers give up root.
    directory.chmod(0o777)
    for path, text in description.files.items():
        (directory / path).write_text(fill(text, places))
    command = [*on_core(cpu, is_first), *under]
    command += [fill(word, places) for word in description.command]
    log = directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | description.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        await_port(process, port, log)
        yield process, port
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(READY_SECS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def on_core(cpu, is_first):
    """`is_first`: ahead of all other programs."""
    return ["taskset", "--cpu-list", str(cpu), *(["chrt", "--rr", "1"] if is_first else [])]


def await_port(process, port, log):
    until = time.monotonic() + READY_SECS_MAX
    while not listens(process.pid, port):
        if process.poll() is not None or time.monotonic() > until:
            words = log.read_text().strip().splitlines()
            raise Failure(f"the broker did not start: {words[-1] if words else 'no output'}")
        time.sleep(POLL_SECS)


def listens(pid, port):
    """Whether this process does, and not another one."""
    listening = rf"^ *\d+: [0-9A-F]+:{port:04X} 00000000:0000 0A (?:\S+ +){{5}}(\d+)"
    inodes = re.findall(listening, Path("/proc/net/tcp").read_text(), re.MULTILINE)
    return not {f"socket:[{inode}]" for inode in inodes}.isdisjoint(files_of(pid).values())


def files_of(pid):
    """Descriptor to what it is open on."""
    links = {}
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links[path.name] = os.readlink(path)
    return links


# --- Counters


class Perf:
    """System calls of a process by name, and its instructions where the processor counts them."""

    def __init__(self, pid, directory, counts_instructions):
        self.out = directory / "perf.csv"
        self.names = [*available_calls(), EVENTFD, "all", CPU, SWITCHES, "instructions"]
        control, answers = directory / "control", directory / "answers"
        for fifo in (control, answers):
            os.mkfifo(fifo)
        command = ["perf", "stat", "-x,", "-o", self.out, "-D", "-1", "-p", str(pid)]
        command += ["--control", f"fifo:{control},{answers}"]
        for name in available_calls():
            command += ["-e", f"syscalls:sys_enter_{name}"]
        # Never true if there are none.
        which = " || ".join(f"fd == {fd}" for fd in eventfds(pid)) or "fd == 4294967295"
        command += ["-e", "syscalls:sys_enter_write", "--filter", which]
        command += ["-e", "raw_syscalls:sys_enter", "-e", CPU, "-e", SWITCHES]
        if counts_instructions:
            command += ["-e", "instructions:u"]
        else:
            self.names.pop()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Opened for both, so that a perf that has failed is not waited for.
        self.control = os.open(control, os.O_RDWR)
        self.answers = os.open(answers, os.O_RDWR | os.O_NONBLOCK)

    def begin(self):
        self._tell(b"enable\n")

    def end(self):
        """Name to count; None where perf could not count."""
        self._tell(b"disable\n")
        self.stop()
        return counts_of(self.out.read_text(), self.names)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(READY_SECS_MAX)

    def _tell(self, word):
        os.write(self.control, word)
        until = time.monotonic() + READY_SECS_MAX
        while True:
            with contextlib.suppress(BlockingIOError):
                if b"ack" in os.read(self.answers, 64):
                    return
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failure(f"perf stat failed: {self.process.stderr.read().strip()}")
            time.sleep(0.01)


def counts_of(text, names):
    """What `perf stat -x,` has written, in the order of its events."""
    lines = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    if len(lines) != len(names):
        raise Failure(f"perf stat wrote {len(lines)} figures in place of {len(names)}")
    return dict(zip(names, (count_of(line[0]) for line in lines), strict=True))


def count_of(word):
    with contextlib.suppress(ValueError):
        return float(word) if "." in word else int(word)
    return None


def available_calls():
    place = tracepoints()
    return [name for name in CALLS if (place / "syscalls" / f"sys_enter_{name}").is_dir()]


def tracepoints():
    with contextlib.suppress(OSError):
        return next((place for place in TRACEPOINTS if (place / "syscalls").is_dir()), None)
    return None


def eventfds(pid):
    return [fd for fd, link in files_of(pid).items() if link == "anon_inode:[eventfd]"]


def control_callgrind(pid, state):
    command = ["vgdb", f"--pid={pid}", "instrumentation", state]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONTROL_SECS_MAX)
    except subprocess.TimeoutExpired as error:
        raise Failure("callgrind does not answer vgdb") from error
    if done.returncode:
        raise Failure(f"vgdb: {(done.stderr or done.stdout).strip()}")


def callgrind(profile):
    options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={profile}"]
    # Threads in turn, as on one core: otherwise one that waits may starve.
    return ["valgrind", *options, "--fair-sched=try"]


def instructions_in(profile):
    """The sum over all threads."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^totals: (\d+)", profile.read_text(), re.MULTILINE):
            return int(found[1])
    raise Failure(f"callgrind left no total in {profile}")


# --- Runs


class Window:
    """Between two idle times of a run, checked against the clock of flock."""

    def __init__(self):
        self.begun = self.ended = None

    def begin(self):
        self.begun = time.time()

    def end(self):
        self.ended = time.time()

    def check(self, results):
        started = results["run"]["started_unix_ms"] / 1000
        begins, ends = (started + secs for secs in under_way(results))
        if not self.begun < begins or not ends < self.ended:
            raise Missed("counting began or ended during the load: the machine is too busy")


def under_way(results):
    """From when to when messages may have been under way, in seconds of the run."""
    phases = {phase["name"]: phase for phase in results["phases"]}
    return phases["publish"]["from_secs"], phases.get("drain", phases["publish"])["to_secs"]


def loaded_secs(results):
    """From the first message until the last one can have arrived."""
    [published] = [phase for phase in results["phases"] if phase["name"] == "publish"]
    begins, ends = under_way(results)
    slowest = runs.latency("max_us")(results)
    if slowest is not None:
        ends = min(ends, published["to_secs"] + slowest / 1000)
    return ends - begins


@contextlib.contextmanager
def loading(row, load, port, options, out):
    """flock at work; gives its process and the address of its metrics."""
    [metrics] = free_ports(1)
    publishers = row.params["publishers"]
    rate = f"{load.rate / publishers:g}/s" if load.rate else "max"
    params = {**row.params, "rate": rate, "count": load.messages // publishers}
    command = on_core(options.load_cpu, options.goes_first(row))
    command += [options.programs / "flock", "run", SCENARIO]
    command += ["--broker", f"127.0.0.1:{port}", "--threads", "1", "--quiet"]
    command += ["--prometheus", f"127.0.0.1:{metrics}", "--out", out, "--name", "run"]
    command += [word for name, value in params.items() for word in ("--set", f"{name}={value}")]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process, f"http://127.0.0.1:{metrics}/metrics"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def await_stage(load, url, wanted):
    until = time.monotonic() + STAGE_SECS_MAX
    stage = re.compile(r'^flock_stage\{stage="(\w+)"\} 1', re.MULTILINE)
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if (found := stage.search(answer.read().decode())) and found[1] == wanted:
                return
        if load.poll() is not None:
            words = load.stdout.read().strip().splitlines()
            raise Failure(f"flock ended early: {words[-1] if words else 'no output'}")
        time.sleep(POLL_SECS)
    raise Failure(f"the stage {wanted!r} did not begin within {STAGE_SECS_MAX} s")


def received(results, row, load):
    """How many messages the subscribers received: all, each once."""
    sent = load.messages // row.params["publishers"] * row.params["publishers"]
    totals, integrity = results["totals"], results["integrity"]["by_qos"]
    arrived = sum(totals["received"])
    flaws = [sum(one[name] for one in integrity) for name in ("lost", "duplicated")]
    lost_connections = totals["connects_failed"] + totals["connections_lost"]
    if arrived != sent or any(flaws) or lost_connections:
        raise Failure(
            f"{arrived:,} of {sent:,} messages arrived, {flaws[0]:,} lost,"
            f" {flaws[1]:,} duplicated, {lost_connections:,} connections lost"
        )
    return arrived


def run(row, broker, load, options, directory, profile=None):
    """One run of one broker: sums in the window, messages, seconds under load, and doubts."""
    load = load.scaled(options.scale)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        place = directory.with_name(f"{directory.name}.{attempt}")
        place.mkdir()
        with contextlib.suppress(Missed):
            return try_run(row, broker, load, options, place, profile)
    raise Failure(f"counting met the load {ATTEMPTS_MAX} times: the machine is too busy")


def try_run(row, broker, load, options, directory, profile):
    description = describe(broker, row.level, options.programs)
    under = callgrind(profile) if profile else ()
    with (
        running(
            description, directory, options.broker_cpu, options.goes_first(row), under
        ) as (process, port),
        loading(row, load, port, options, directory / "results") as (flock, url),
    ):
        await_stage(flock, url, "before")
        perf = Perf(process.pid, directory, options.has_counters and not profile)
        window = Window()
        try:
            if profile:
                control_callgrind(process.pid, "on")
            perf.begin()
            window.begin()
            await_stage(flock, url, "after")
            window.end()
            counts = perf.end()
            if profile:
                control_callgrind(process.pid, "off")
        finally:
            perf.stop()
        flock.communicate()
    results = json.loads((directory / "results/run.json").read_text())
    window.check(results)
    messages = received(results, row, load)
    if profile:
        counts["instructions"] = instructions_in(profile)
    # Of full speed flock has no due times, and sees less of the machine.
    doubts = results["validity"]["reasons"][:1]
    return counts, messages, loaded_secs(results), doubts


# --- Figures


def waits(counts):
    """None: some are unknown."""
    known = [counts[name] for name in WAITS if name in counts]
    return None if None in known else sum(known)


def figures(counts, messages, secs):
    """Name to (figure, unit), of a run at the rate of the row."""
    calls = {name: counts[name] for name in available_calls()}
    if counts[EVENTFD] is not None and calls.get("write") is not None:
        calls["write"] -= counts[EVENTFD]
    calls[EVENTFD] = counts[EVENTFD]
    # What has no name, if all that have one are known.
    if counts["all"] is not None and None not in calls.values():
        calls[OTHERS] = counts["all"] - sum(calls.values())
    made = {
        "rate": (messages / secs, "msg/s"),
        "calls": (each(counts["all"], messages), UNIT),
        "waits": (each(waits(counts), messages), UNIT),
        "switches": (each(counts[SWITCHES], messages), UNIT),
        "cpu_with_perf": (each(counts[CPU], messages / 1e3), "us/msg"),
        "cores": (each(counts[CPU], secs * 1e3), "cores"),
    }
    if "instructions" in counts:
        made["instructions"] = (each(counts["instructions"], messages), UNIT)
    return made | {name: (each(count, messages), UNIT) for name, count in calls.items()}


def at_waits(wanted, slow):
    """Instructions per message at these waits per message, by runs of (waits, instructions): on
    the line through both, if they differ. Less than in both runs is not claimed."""
    (few, at_few), (many, at_many) = min(slow), max(slow)
    if wanted is None or many - few < WAITS_APART_MIN:
        return max(at_few, at_many)
    return max(at_few + (at_many - at_few) * (wanted - few) / (many - few), min(at_few, at_many))


def slow_remark(load, counts, messages, secs):
    """Of a run under callgrind, whose own system calls are among those counted."""
    instructions = round(counts["instructions"] / messages)
    rate, apart = round(messages / secs), waits(counts) / messages
    is_late = load.rate and rate < load.rate * RATE_PART_MIN
    wanted = f", behind {load.rate:,}/s" if is_late else ""
    return f"callgrind: {instructions:,} at {rate:,}/s{wanted}, {apart:.2f} waits"


def each(count, messages):
    return None if count is None else count / messages


def measure(row, broker, options):
    """Figures of one round; a part that failed is a remark."""
    with tempfile.TemporaryDirectory(prefix="counts-") as directory:
        found, remarks = at_full_rate(row, broker, options, Path(directory) / "fast")
        if not options.has_counters:
            wanted = found["waits"][0] if found else None
            counted, more = under_callgrind(row, broker, options, Path(directory), wanted)
            found |= counted
            remarks += more
    return found, remarks


def at_full_rate(row, broker, options, directory):
    try:
        counts, messages, secs, doubts = run(row, broker, row.load, options, directory)
    except Failure as failure:
        return {}, [f"system calls unknown: {failure}"]
    return figures(counts, messages, secs), doubts


def under_callgrind(row, broker, options, directory, wanted):
    """Instructions at so many waits per message."""
    slow, remarks = [], []
    for number, load in enumerate(row.slow):
        profile = directory / f"callgrind.{row.name}-{broker}-{number}"
        try:
            told = run(row, broker, load, options, directory / f"slow-{number}", profile)
        except Failure as failure:
            remarks.append(f"a run under callgrind failed: {failure}")
            continue
        counts, messages, secs, _ = told
        if waits(counts) is None:
            remarks.append("a run under callgrind does not count: perf did not count its waits")
            continue
        slow.append((waits(counts) / messages, counts["instructions"] / messages))
        remarks.append(slow_remark(load, counts, messages, secs))
        if options.keep:
            shutil.copy(profile, options.keep)
    if slow and wanted is not None and wanted > max(slow)[0] + WAITS_APART_MIN:
        remarks.append("instructions are extrapolated: no run under callgrind had so many waits")
    found = {"instructions": (at_waits(wanted, slow), UNIT)} if slow else {}
    return found, remarks


ORDER = (
    "rate", "instructions", "calls", "waits", "switches", "cpu_with_perf", "cores",
)  # fmt: skip


def rows_of(measured):
    """`measured`: row to broker to a list of rounds. Calls that no broker of a row makes are left
    out; a call that another broker makes is 0."""
    made = []
    for row, by_broker in measured.items():
        rounds = [found for told in by_broker.values() for found, _ in told]
        names = dict.fromkeys(ORDER) | dict.fromkeys(name for one in rounds for name in one)
        shown = [
            name for name in names
            if name in ORDER or any((one.get(name, (0,))[0] or 0) >= SHOWN_MIN for one in rounds)
        ]  # fmt: skip
        for broker, told in by_broker.items():
            cells = {name: cell(name, [found for found, _ in told]) for name in shown}
            remarks = list(dict.fromkeys(one for _, said in told for one in said))
            of = {"scenario": row.name, "broker": broker}
            made.append(records.row(of, cells, remarks))
    return made


def cell(name, rounds):
    known = [one[name] for one in rounds if name in one]
    return records.cell([value for value, _ in known], known[0][1]) if known else None


def told(found, remarks):
    parts = [
        f"{records.figure(round(found[name][0], 2))} {name}"
        for name in ("instructions", "calls", "switches")
        if name in found and found[name][0] is not None
    ]
    return "; ".join([*parts, *remarks])


# --- Commands


def has_counters():
    """Does the processor count instructions for us?"""
    command = ["perf", "stat", "-x,", "-e", "instructions:u", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode == 0 and done.stderr.split(",")[0].isdigit()


def check_tools():
    """Ends with what is missing, and how to get it."""
    packages = {"perf": "linux-perf", "taskset": "util-linux"}
    for tool, package in packages.items():
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed: apt-get install {package}")
    if os.geteuid() != 0 or tracepoints() is None:
        sys.exit("system calls cannot be counted: run as root, with tracefs at /sys/kernel/tracing")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed: one for the broker, one for the load")
    counts = has_counters()
    if not counts and not shutil.which("valgrind"):
        sys.exit(
            "the processor does not count instructions here, and valgrind is not installed:"
            " apt-get install valgrind"
        )
    return counts


def check_directory():
    """Syncs of a file system in memory cost nothing."""
    place = tempfile.gettempdir()
    kind = subprocess.run(["stat", "-f", "-c", "%T", place], capture_output=True, text=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        sys.exit(f"{place} is in memory: set TMPDIR to a directory on a disk")


def options():
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cpus = sorted(os.sched_getaffinity(0))
    parser.add_argument("--rows", help="only these, separated by commas: nothing is written")
    parser.add_argument("--brokers", help="only these, separated by commas: nothing is written")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of the messages of a run, for a quick look"
    )
    parser.add_argument("--broker-cpu", type=int, default=cpus[0], help="core of the broker")
    parser.add_argument("--load-cpu", type=int, default=cpus[-1], help="core of the load")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="in rows at level memory, broker and load go ahead of other programs",
    )
    parser.add_argument("--profile", default="release", help="of cargo")
    parser.add_argument("--programs", help="folder of quelea and flock: nothing is built")
    parser.add_argument("--keep", type=Path, help="folder for the profiles of callgrind")
    parser.add_argument("--print-only", action="store_true", help="write no file")
    parser.add_argument("--list", action="store_true", help="list the rows and their brokers")
    made = parser.parse_args()
    made.names = chosen(parser, "rows", made.rows, [row.name for row in ROWS])
    made.only = chosen(parser, "brokers", made.brokers, list(BROKERS))
    return made


def chosen(parser, what, asked, known):
    names = asked.split(",") if asked else known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--{what}: unknown {', '.join(unknown)}; valid are {', '.join(known)}")
    return names


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = options()
    if asked.list:
        for row in ROWS:
            print(f"{row.name:12} {row.title} ({', '.join(row.brokers)})")
        return
    asked.has_counters = check_tools()
    # Threads of one broker would not interrupt each other, as those of a journal should.
    asked.goes_first = lambda row: asked.real_time and row.level == "memory"
    check_directory()
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    asked.programs = bench.build(asked, [])
    resource_limit()
    rows = [row for row in ROWS if row.name in asked.names]
    absent = [one for one in asked.only if describe(one, "memory", asked.programs) is None]
    for name in absent:
        print(f"{name} is not installed: left out", flush=True)
    cells = [
        (row, one) for row in rows for one in row.brokers if one in asked.only and one not in absent
    ]
    measured = {}
    everything = [cell for _ in range(asked.rounds) for cell in cells]
    for done, (row, broker) in enumerate(everything, 1):
        began = time.monotonic()
        found, remarks = measure(row, broker, asked)
        measured.setdefault(row, {}).setdefault(broker, []).append((found, remarks))
        took = f"{time.monotonic() - began:.0f} s"
        progress = f"[{done}/{len(everything)}] {row.name} {broker}"
        print(f"{progress}: {told(found, remarks)} ({took})", flush=True)
    made = record(asked, measured, absent)
    print("\n".join(records.tables(made)))
    if not (asked.print_only or asked.rows or asked.brokers or asked.scale != 1.0):
        records.write(made)


def record(asked, measured, absent):
    brokers = dict.fromkeys(broker for by_broker in measured.values() for broker in by_broker)
    versions = {name: version_of(describe(name, "memory", asked.programs)) for name in brokers}
    how = "the processor, at the rate of the row" if asked.has_counters else "callgrind"
    notes = [f"Instructions were counted by {how}.", PERF_COSTS]
    notes += [f"{name}: not installed" for name in absent]
    command = " ".join(["lab/counts.py", *sys.argv[1:]])
    titles = {row.name: row.title for row in measured}
    more = {"titles": titles, "versions": versions, "notes": notes}
    return records.record("counts", command, asked.rounds, rows_of(measured), **more)


def resource_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
