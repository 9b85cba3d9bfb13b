#!/usr/bin/env python3
"""Long faults of rules, with flock as publisher and as judge of what arrives.

    lab/routing_faults.py kills --rounds 100
    lab/routing_faults.py away --minutes 60

- kills: in each round the broker or Kafka is killed (kill -9) at a random moment under load, and started
  again. Some kills hit a broker that is still starting. Small files and `consumed = true`, so that files
  are written and deleted all the time.
- away: Kafka is killed, and a webhook accepts connections and answers nothing, for so many minutes. Then
  both are back. Two rules read one stream. Memory, disk and the time to catch up are measured.

The record of a run is written to --out. With --results it goes to lab/results as well; `results` does that
with a record of an earlier run.

Both fail if something that was acknowledged is lost or out of order, or if the sum of a rule does not add
up. Second copies are counted.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("lab", "tests", "tests/kafka", "tests/e2e")]

import records  # noqa: E402

CONFIG = """
[server]
shards = 2
[[listeners]]
url = "tcp://127.0.0.1:PORT"
allow_anonymous = true
[self_check]
interval_secs = "off"
[api]
listen = "http"
[routing]
file = "{dir}/rules.toml"
target_networks = ["127.0.0.0/8"]
"""
STREAM = """
[[streams]]
name = "devices"
filters = ["devices/#"]
"""
KAFKA = """
[[targets]]
name = "hub"
type = "kafka"
servers = ["SERVER"]
FURTHER
[[rules]]
name = "hub"
filter = "devices/#"
form = "binary"
target = "hub"
topic = "routed"
FASTER
"""
WEBHOOK = """
[[targets]]
name = "hook"
type = "http"
url = "http://127.0.0.1:PORT/events"
timeout_secs = 10
[[rules]]
name = "hook"
filter = "devices/#"
form = "batch"
target = "hook"
order = "topic"
"""
SMALL_FILES = 'file_bytes = "1 MiB"\nconsumed = true\n'
SOON_AGAIN = "timeout_secs = 2\ndelivery_timeout_secs = 5"

SCENARIO = """
id = "routing-TITLE"
title = "routed messages through faults"
drain = "120s"

[connect]
version = "5"
clean_start = false
session_expiry = "2h"
keep_alive = "60s"
reconnect = true
retries = 1000

[clients.pub]
count = CLIENTS

[topics.own]
names = "devices/{i}"
count = CLIENTS

[sink.hub]
kind = "kafka"
servers = "SERVER"
topic = "routed"
drain = "DRAIN"
FURTHER
[[stage]]
name = "connect"
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]

[[stage]]
name = "publish"
measured = true
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "own", qos = 1, count = COUNT, total_rate = "RATE/s", payload = { random = SIZE } } }]

[expect]
connect_failures_max = 1000000
duplicated_max = "any"
"""
HOOK_SINK = '[sink.hook]\nkind = "webhook"\nlisten = "LISTEN"\npath = "/events"\ndrain = "DRAIN"\n'

PARTS = ["not_matched", "skipped_condition", "skipped_expired", "delivered", "dead_lettered", "given_up",
         "dropped_retention", "dropped_damaged", "in_flight", "pending"]  # fmt: skip
KILLS = {"broker": "kills of the broker", "broker while it starts": "kills of a starting broker",
         "kafka": "kills of Kafka"}  # fmt: skip
# A start of the broker that is killed: in so many of its kills, after so long.
EARLY_KILL_SHARE = 0.2
EARLY_KILL_SECS = (0.001, 0.2)
# A kill comes in this part of its round, so that the next one finds both running.
KILL_WITHIN = (0.02, 0.5)
CAUGHT_UP_SECS_MAX = 1800
SETTLE_SECS_MAX = 120


class Lab:
    """Kafka, a broker with rules, and flock, until the end of the block."""

    def __init__(self, args, name):
        self.args, self.name = args, name
        self.stack = contextlib.ExitStack()
        self.started = time.monotonic()

    def __enter__(self):
        from certificates import Authority
        from ports import free_ports
        from server import Kafka

        jars = subprocess.run([ROOT / "tests/kafka/install"], capture_output=True, text=True, check=True)
        self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        (self.directory / "certificates").mkdir()
        self.port, self.relay_port, self.hook_port = free_ports(3)
        self.kafka = Kafka(self.directory, jars.stdout.strip(), Authority(self.directory / "certificates"))
        self.stack.callback(self.kafka.kill)
        self.kafka.start()
        self.kafka.create("routed")
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start_broker(self, rules):
        from broker import Broker

        config = CONFIG.replace("PORT", str(self.port))
        self.broker = Broker(config, files={"rules.toml": rules})
        self.stack.callback(self.broker.stop)

    def start_flock(self, count, further="", drain="600s"):
        """Publishes `count` messages for each client."""
        args = self.args
        self.published = count * args.clients
        text = SCENARIO.replace("FURTHER", further).replace("TITLE", self.name)
        words = {"CLIENTS": args.clients, "SERVER": self.kafka.address(), "DRAIN": drain, "COUNT": count,
                 "RATE": args.rate, "SIZE": args.size}  # fmt: skip
        for word, value in words.items():
            text = text.replace(word, str(value))
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        scenario = self.directory / "scenario.toml"
        scenario.write_text(text)
        command = [args.flock, "run", scenario, "--broker", f"127.0.0.1:{self.port}", "--threads", "1",
                   "--name", self.name, "--out", out]  # fmt: skip
        self.results = out / f"{self.name}.json"
        self.results.unlink(missing_ok=True)
        log = self.stack.enter_context(open(out / f"{self.name}.log", "w"))
        self.flock = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        self.stack.callback(self.flock.kill)

    def wait_for_load(self):
        while self.rule("hub")["sum"]["stored"] == 0:
            assert self.flock.poll() is None, "flock has ended"
            time.sleep(0.1)

    def say(self, text):
        print(f"{time.monotonic() - self.started:7.1f} s  {text}", flush=True)

    def rule(self, name):
        """The rule as the API shows it; its sum adds up."""
        token = (self.broker.data / "api.token").read_text().splitlines()[0]
        url = f"http://127.0.0.1:{self.broker.port('http')}/api/v1/rules/{name}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            rule = json.load(answer)
        assert rule["sum"]["stored"] == sum(rule["sum"][part] for part in PARTS), rule
        return rule

    def resident(self):
        return int(Path(f"/proc/{self.broker.process.pid}/statm").read_text().split()[1]) * 4096

    def disk(self):
        """Bytes of streams, and of everything else in the data directory."""
        found = {True: 0, False: 0}
        for path in self.broker.data.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                found["streams" in path.parts] += path.stat().st_blocks * 512
        return found[True], found[False]

    def judge(self, rules):
        """What flock and the rules have found; whether nothing is lost, out of order or damaged."""
        code = self.flock.wait()
        results = json.loads(self.results.read_text())
        found = {"flock_exit_code": code, "rules": {}, "sinks": {}}
        sound = True
        for name in rules:
            found["rules"][name] = total = self.settled(name)
            sound &= total["delivered"] == total["stored"]
        for sink in results["routing"]["sinks"]:
            names = ("expected", "received", "lost", "duplicated", "reordered")
            counts = {name: sum(count[name] for count in sink["by_qos"]) for name in names}
            odd = {name: sink[name] for name in ("damaged", "unreadable", "foreign", "wrong_topic", "misrouted")}
            found["sinks"][sink["name"]] = {**counts, **odd, "waited_secs": sink["waited_secs"],
                                            "latency": sink["latency"]}  # fmt: skip
            sound &= counts["lost"] == counts["reordered"] == sum(odd.values()) == 0
            # Publishers went on until each message was acknowledged.
            sound &= counts["expected"] == self.published
        return found, sound

    def settled(self, name):
        """The sum of a rule once nothing is left: second copies may come behind what flock waits for."""
        deadline = time.monotonic() + SETTLE_SECS_MAX
        while (rule := self.rule(name))["lag_messages"] > 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        return rule["sum"]


def kills(args):
    """Rounds, in each of which one of both is killed."""
    rng = random.Random(args.seed)
    with Lab(args, "kills") as lab:
        kafka = KAFKA.replace("SERVER", lab.kafka.address()).replace("FURTHER", SOON_AGAIN)
        lab.start_broker(STREAM + SMALL_FILES + kafka.replace("FASTER", "retry_secs = [1]"))
        secs = args.rounds * args.round_secs + 5
        lab.start_flock(secs * args.rate // args.clients)
        lab.wait_for_load()
        began, counts = time.monotonic(), {"broker": 0, "broker while it starts": 0, "kafka": 0}
        for number in range(args.rounds):
            at = began + args.round_secs * (number + rng.uniform(*KILL_WITHIN))
            time.sleep(max(0.0, at - time.monotonic()))
            assert lab.flock.poll() is None, f"flock ended ahead of round {number}"
            if rng.random() < 0.5:
                lab.kafka.kill()
                lab.kafka.start()
                counts["kafka"] += 1
            else:
                counts["broker while it starts"] += kill_broker(lab.broker, rng)
                counts["broker"] += 1
            total = lab.rule("hub")["sum"]
            lab.say(f"round {number + 1}: {counts}, stored {total['stored']}, delivered {total['delivered']}")
        found, sound = lab.judge(["hub"])
        found = {"kills": counts, **found}
        return found, sound


def kill_broker(broker, rng):
    """Kills and starts it; how many of its starts were killed."""
    broker.kill()
    early = 0
    while rng.random() < EARLY_KILL_SHARE:
        broker.spawn()
        time.sleep(rng.uniform(*EARLY_KILL_SECS))
        broker.kill()
        early += 1
    broker._launch()
    return early


class Relay:
    """Between the rule and flock's webhook. While it hangs, it accepts connections and passes nothing on."""

    def __init__(self, port, behind):
        self.behind, self.hangs = behind, threading.Event()
        self.held = []
        self.listener = socket.create_server(("127.0.0.1", port), backlog=256)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            if self.hangs.is_set():
                self.held.append(client)
            else:
                server = socket.create_connection(("127.0.0.1", self.behind))
                self.held += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while some := source.recv(65536):
                # What comes while it hangs is taken, and gone.
                if not self.hangs.is_set():
                    sink.sendall(some)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hang(self):
        self.hangs.set()

    def answer_again(self):
        """What hung ends, as when a machine is started again."""
        held, self.held = self.held, []
        self.hangs.clear()
        for end in held:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def away(args):
    """Both targets are away for a time."""
    with Lab(args, "away") as lab:
        relay = Relay(lab.relay_port, lab.hook_port)
        kafka = KAFKA.replace("SERVER", lab.kafka.address()).replace("FURTHER", "").replace("FASTER", "")
        lab.start_broker(STREAM + kafka + WEBHOOK.replace("PORT", str(lab.relay_port)))
        before, behind = args.before_minutes * 60, args.behind_minutes * 60
        secs = before + args.minutes * 60 + behind
        hook = HOOK_SINK.replace("LISTEN", f"127.0.0.1:{lab.hook_port}")
        lab.start_flock(int(secs * args.rate // args.clients), hook, f"{CAUGHT_UP_SECS_MAX}s")
        lab.wait_for_load()
        found = {"samples": []}
        watch(lab, "before", before, found)
        lab.kafka.kill()
        relay.hang()
        watch(lab, "away", args.minutes * 60, found)
        found["lag_messages"] = {name: lab.rule(name)["lag_messages"] for name in ("hub", "hook")}
        found["states"] = {name: [lab.rule(name)[key] for key in ("state", "reason")] for name in ("hub", "hook")}
        relay.answer_again()
        back = {"hook": time.monotonic()}
        lab.kafka.start()
        back["hub"] = time.monotonic()
        found["caught_up_secs"] = catch_up(lab, found, back)
        watch(lab, "after", 60, found)
        judged, sound = lab.judge(["hub", "hook"])
        return {**found, **judged}, sound


def watch(lab, phase, secs, found):
    """Samples memory, disk and lag until the phase is over."""
    end = time.monotonic() + secs
    while True:
        sample(lab, phase, found)
        left = end - time.monotonic()
        if left <= 0:
            return
        assert lab.flock.poll() is None, "flock has ended"
        time.sleep(min(lab.args.sample_secs, left))


def sample(lab, phase, found):
    streams, rest = lab.disk()
    lag = {name: lab.rule(name)["lag_messages"] for name in ("hub", "hook")}
    row = {"secs": round(time.monotonic() - lab.started), "phase": phase, "resident": lab.resident(),
           "stream_bytes": streams, "other_bytes": rest, "lag": lag}  # fmt: skip
    found["samples"].append(row)
    lab.say(f"{phase}: resident {row['resident'] / 1e6:.0f} MB, streams {streams / 1e6:.0f} MB, "
            f"other {rest / 1e6:.0f} MB, lag {lag}")  # fmt: skip


def catch_up(lab, found, back):
    """Seconds from the return of each target until its rule had no more to send than what was just
    published."""
    deadline, took = time.monotonic() + CAUGHT_UP_SECS_MAX, {}
    while len(took) < len(back):
        assert time.monotonic() < deadline, f"caught up: {took}"
        sample(lab, "catching up", found)
        for name, lag in found["samples"][-1]["lag"].items():
            if name not in took and lag <= lab.args.rate:
                took[name] = round(time.monotonic() - back[name], 1)
        time.sleep(0.5)
    return took


def write_results(run):
    """The record of a run as a file of lab/results."""
    what, arguments = run["arguments"]["what"], run["arguments"]
    command = f"lab/routing_faults.py {what} --rate {arguments['rate']} --size {arguments['size']}"
    command += f" --rounds {arguments['rounds']}" if what == "kills" else f" --minutes {arguments['minutes']:g}"
    rows = kills_rows(run) if what == "kills" else away_rows(run)
    record = records.record(f"routing-{what}", command, 1, rows, version=run["version"])
    # With a + the tree had changes.
    commit = run["version"].split("commit ")[1].split(",")[0].rstrip("+")
    record |= {"commit": commit[:8], "commit_date": records.git("log", "-1", "--format=%cs", commit)}
    records.write(record | {"date": run["date"]})


def outcome(sink):
    counts = {"messages": sink["expected"], "lost": sink["lost"], "out of order": sink["reordered"],
              "second copies": sink["duplicated"]}  # fmt: skip
    return {name: records.cell([value], "") for name, value in counts.items()}


def kills_rows(run):
    cells = {KILLS[name]: records.cell([count], "") for name, count in run["kills"].items()}
    return [records.row({"target": "Kafka"}, cells | outcome(run["sinks"]["hub"]))]


def away_rows(run):
    rows = []
    for name, target in (("hub", "Kafka, killed"), ("hook", "webhook, hangs")):
        cells = outcome(run["sinks"][name])
        cells["queued"] = records.cell([run["lag_messages"][name]], "")
        cells["caught up"] = records.cell([run["caught_up_secs"][name]], "s")
        rows.append(records.row({"target": target}, cells))
    for phase in ("before", "away", "catching up", "after"):
        some = [sample for sample in run["samples"] if sample["phase"] == phase]
        cells = {
            name: records.cell([sample[key] / 1e6 for sample in some], "MB")
            for name, key in (("memory", "resident"), ("streams", "stream_bytes"), ("logs", "other_bytes"))
        }
        rows.append(records.row({"phase": phase}, cells))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["kills", "away", "results"])
    parser.add_argument("--results", action="store_true", help="write lab/results")
    parser.add_argument("--record", help="for `results`: the record of a run")
    parser.add_argument("--flock", default=str(ROOT / "target/release/flock"))
    parser.add_argument("--quelea", default=str(ROOT / "target/release/quelea"))
    parser.add_argument("--out", default="target/routing-faults", help="folder of results and reports")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rate", type=int, default=200, help="messages a second in all")
    parser.add_argument("--size", type=int, default=512, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--round-secs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments of kills")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--before-minutes", type=float, default=2)
    parser.add_argument("--behind-minutes", type=float, default=5, help="load after both are back")
    parser.add_argument("--sample-secs", type=float, default=30)
    args = parser.parse_args()
    if args.what == "results":
        write_results(json.loads(Path(args.record).read_text()))
        return 0
    os.environ["QUELEA_BIN"] = args.quelea
    version = subprocess.run([args.quelea, "--version"], capture_output=True, text=True, check=True)
    print(f"{version.stdout.strip()}, seed {args.seed}", flush=True)
    found, sound = {"kills": kills, "away": away}[args.what](args)
    record = {"arguments": vars(args), "version": version.stdout.strip(), "date": time.strftime("%Y-%m-%d"), **found}
    path = Path(args.out) / f"{args.what}-record.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "samples"}, indent=1))
    if args.results:
        write_results(record)
    print(f"{'sound' if sound else 'NOT SOUND'}; {path}")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
