#!/usr/bin/env python3
"""Three brokers on three NATS servers under load, fault after fault, and a judgement.

`rounds.py --rounds 50` takes faults in an order that a seed gives, each as often as the others.
Publishers at QoS 1 and 2, kept sessions, retained messages, shared groups and wills live through
all of them. After each round every acknowledged QoS 1 message must have reached every session that
it matches, in order per publisher and topic, every QoS 2 message exactly once, every group each
message, and a reader of retained messages the last acknowledged of each topic.

`--short` is the short form of `make test`: few rounds, the same ones each time.
"""

import argparse
import asyncio
import logging
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / one) for one in ("lab", "lab/torture")]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

import cast as c
import clients
import engines
import faults as f
import history as h
import records
from nodes import QUELEA, Broken, Cluster

# A part of a run has clients, topics and a history of its own.
PART_ROUNDS = 5
# Under load before a fault, and behind it.
BEFORE_SECS, AFTER_SECS = 0.5, 1.0
RETAINED_SECS = 30
# All is over when nothing came for so long; where something is missing, for so much longer.
QUIET_SECS, MISSING_QUIET_SECS = 1, 15
SETTLE_SECS = 90
SHORT = [f.kill_active, f.switchover, f.cut_active, f.kill_stream_leader]


class Round:
    """What one fault did."""

    def __init__(self, number, fault):
        self.number, self.fault = number, fault
        self.secs = self.without_service = None
        self.notes = []
        self.findings = ""


class Run:
    def __init__(self, cluster, options, rng):
        self.cluster, self.options, self.rng = cluster, options, rng
        self.rounds = []
        self.history = []
        self.cast = None
        self.tasks = None

    async def go(self, faults):
        await self.cluster.start()
        numbered = list(enumerate(faults, 1))
        for first in range(0, len(numbered), PART_ROUNDS):
            await self.part(first // PART_ROUNDS, numbered[first : first + PART_ROUNDS])

    async def part(self, number, numbered):
        self.history = []
        self.cast = c.Cast(number, self.cluster.nodes, self.history, self.options)
        async with asyncio.TaskGroup() as self.tasks:
            watch = self.tasks.create_task(self.cast.watch())
            for client in self.cast.lasting:
                self.tasks.create_task(client.live())
            await self.until("SUBACKs", lambda: all(one.promised for one in self.cast.lasting))
            for client in (*self.cast.mortals, *self.cast.publishers):
                self.tasks.create_task(client.live())
            for number, fault in numbered:
                await self.round(Round(number, fault))
            for client in self.cast.all:
                client.running = False
                client.hang_up()
            watch.cancel()
        active = await self.cluster.await_active()
        for client in self.cast.all:
            await client.end_session(active.mqtt)

    async def round(self, one):
        self.rounds.append(one)
        ground = f.Ground(self.cluster, self.cast, self.rng, self.options)
        publishing = self.begin_load()
        await self.until("the load", self.is_loaded)
        self.send_away()
        await asyncio.sleep(BEFORE_SECS)
        struck_at = time.monotonic()
        try:
            await one.fault(ground)
            if self.cluster.engines is not None:
                await self.cluster.engines.be_whole()
            await self.cluster.be_whole()
            one.secs = time.monotonic() - struck_at
            await self.be_served()
            await asyncio.sleep(AFTER_SECS)
            one.without_service = c.without_service(
                self.cast.publishers, struck_at, time.monotonic()
            )
            await self.read_retained(one)
            await self.settle(publishing)
        finally:
            one.notes = ground.notes
        verdict = h.judge(self.history)
        one.findings = "" if verdict.is_clean else str(verdict)
        if not verdict.is_clean:
            raise Broken(one.findings)
        self.tell(one)

    def begin_load(self):
        for publisher in self.cast.publishers:
            publisher.publishing = True
        for mortal in self.cast.mortals:
            if not mortal.running:
                mortal.running = True
                self.tasks.create_task(mortal.live())
        return [self.tasks.create_task(one.publish()) for one in self.cast.publishers]

    def is_loaded(self):
        """However busy the machine is, there is something to lose."""
        topics = sum(len(publisher.topics) for publisher in self.cast.publishers)
        return len(self.cast.acknowledged()) == topics and all(
            client.connected.is_set() for client in self.cast.all
        )

    def send_away(self):
        for client in self.cast.away:
            client.running = False
            client.hang_up()

    def call_back(self):
        for client in self.cast.away:
            if not client.running:
                client.running = True
                self.tasks.create_task(client.live())

    async def be_served(self):
        """Until every publisher has an acknowledgement from now on."""
        now = time.monotonic()
        await self.until(
            "acknowledgements",
            lambda: all(p.acknowledged_at and p.acknowledged_at[-1] > now
                        for p in self.cast.publishers),
        )  # fmt: skip

    async def read_retained(self, one):
        reader = f"reader-{one.number}"
        addresses = c.Addresses([await self.cluster.await_active()], 0)
        await clients.read_retained(
            reader, addresses, self.history, self.cast.retained_topics(), RETAINED_SECS
        )

    async def settle(self, publishing):
        """Lets everything that is owed arrive."""
        for publisher in self.cast.publishers:
            publisher.publishing = False
        for mortal in self.cast.mortals:
            mortal.running = False
            mortal.hang_up()
        self.call_back()
        await self.until("publishers", lambda: not any(p.open for p in self.cast.publishers))
        for task in publishing:
            task.cancel()
        await self.until(
            "subscribers", lambda: all(one.connected.is_set() for one in self.cast.lasting)
        )
        await self.be_quiet(QUIET_SECS)
        if not h.judge(self.history).is_clean:
            await self.be_quiet(MISSING_QUIET_SECS)

    async def be_quiet(self, secs):
        seen, quiet_since = len(self.history), time.monotonic()
        while time.monotonic() - quiet_since < secs:
            await asyncio.sleep(0.05)
            if len(self.history) > seen:
                seen, quiet_since = len(self.history), time.monotonic()

    async def until(self, what, come_true):
        deadline = time.monotonic() + SETTLE_SECS
        while not come_true():
            if time.monotonic() > deadline:
                words = await self.cluster.words()
                raise Broken(f"waited {SETTLE_SECS} s for {what} in vain: {words}")
            await asyncio.sleep(0.02)

    def tell(self, one):
        notes = "; ".join(one.notes)
        print(
            f"  {one.number:3} {f.words(one.fault):32} {one.without_service:6.2f} s without "
            f"service, whole after {one.secs:6.2f} s{'  ' + notes if notes else ''}",
            flush=True,
        )


def chosen(options, rng):
    """The faults in turn: each as often as the others, in an order that chance gives."""
    pool = pool_of(options)
    pool = [fault for fault in pool if fault not in skipped(pool)]
    if options.short:
        return pool
    order = []
    while len(order) < options.rounds:
        more = list(pool)
        rng.shuffle(more)
        order += more
    return order[: options.rounds]


def skipped(pool):
    """Faults of the pool that this machine cannot have, with the reason."""
    reasons = {}
    if f.full_disk in pool and not engines.may_have_small_disk():
        reasons[f.full_disk] = "this machine does not let us mount a small file system"
    if f.slow_disk in pool and not engines.may_have_slow_disk():
        reasons[f.slow_disk] = "it needs strace, and the right to trace a child"
    return reasons


def missed(rounds):
    """Faults with a goal whose median is above it."""
    found = []
    for name, goal in f.GOALS.items():
        gaps = [one.without_service for one in rounds
                if one.fault.__name__ == name and one.without_service is not None]  # fmt: skip
        if gaps and statistics.median(gaps) > goal:
            found.append(f"{name}: {statistics.median(gaps):.2f} s, goal {goal} s")
    return found


def pool_of(options):
    if options.fault:
        known = f.SINGLE if options.single else f.ALL
        pool = [fault for fault in known if fault.__name__ in options.fault]
        unknown = set(options.fault) - {fault.__name__ for fault in pool}
        if unknown:
            raise SystemExit(f"no fault {', '.join(sorted(unknown))}: see --list")
        return pool
    return SHORT if options.short else f.SINGLE if options.single else f.ALL


def rows(rounds):
    """By fault, the time without service, as rows of a record."""
    by_fault = {}
    for one in rounds:
        if one.without_service is not None:
            by_fault.setdefault(one.fault, []).append(one)
    made = []
    for fault in dict.fromkeys((*f.ALL, *f.SINGLE)):
        if ones := by_fault.get(fault):
            cells = {
                "without_service": records.cell([one.without_service for one in ones], "s"),
                "whole_again": records.cell([one.secs for one in ones], "s"),
            }
            goal = f.GOALS.get(fault.__name__)
            row = records.row({"fault": f.words(fault)}, cells) | {"rounds": len(ones)}
            made.append(row | ({"goal_secs": goal} if goal else {}))
    return made


def carry_out(options):
    """All rounds on one cluster; what came of them, and whether all is well."""
    directory = Path(tempfile.mkdtemp(prefix="cluster-rounds-"))
    rng = random.Random(options.seed)
    order = chosen(options, rng)

    async def go():
        nodes, engines_ = (1, 0) if options.single else (3, 3)
        cluster = Cluster(directory, nodes, engines_, options.level)
        run = Run(cluster, options, rng)
        failure = None
        try:
            await run.go(order)
        except* (Broken, TimeoutError, AssertionError) as group:
            failure = str(first_of(group)) or repr(first_of(group))
        finally:
            await cluster.close()
        return run, failure

    run, failure = asyncio.run(go())
    if options.files == "never" or failure is None and options.files != "always":
        shutil.rmtree(directory, ignore_errors=True)
    else:
        h.save(run.history, directory / "history.jsonl")
    if failure is not None:
        at = run.rounds[-1] if run.rounds else None
        where = f"round {at.number}, {f.words(at.fault)}" if at else "the start"
        print(f"FAILED in {where}, seed {options.seed}; everything is in {directory}\n{failure}")
    return run.rounds, failure


def first_of(group):
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def options_from(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--short", action="store_true", help="the short form")
    parser.add_argument("--single", action="store_true",
                        help="one node without engines: tries the rounds")  # fmt: skip
    parser.add_argument("--level", choices=("memory", "disk", "fsync"), default="fsync",
                        help="of the one node")  # fmt: skip
    parser.add_argument("--strict", action="store_true",
                        help="fail if a median time without service misses its goal")  # fmt: skip
    parser.add_argument("--fault", action="append", help="only this one; repeatable")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--window", type=int, default=20, help="unacknowledged per publisher")
    parser.add_argument("--rate", type=float, default=200, help="messages a second in all")
    parser.add_argument("--pause-secs", type=float, help="20; 5 in the short form")
    parser.add_argument("--results", action="store_true",
                        help="write the times without service to lab/results/cluster-faults.json")  # fmt: skip
    parser.add_argument("--files", choices=("never", "if-wrong", "always"),
                        default="if-wrong")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.pause_secs is None:
        options.pause_secs = 5 if options.short else 20
    if options.short:
        options.seed = 1
    return options


def main():
    # It warns of each write to a connection that a fault has just ended.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    options = options_from(sys.argv[1:])
    if options.list:
        print("\n".join(fault.__name__ for fault in f.ALL))
        return 0
    if not options.single and not os.access(engines.ENGINE, os.X_OK):
        print(f"no NATS server at {engines.ENGINE}: `make cluster` builds one, or set "
              "QUELEA_NATS_SERVER to one of version 2.15 or newer")  # fmt: skip
        # A machine without Go passes all other tests.
        return 0 if options.short else 1
    print(f"broker {QUELEA}, seed {options.seed}", flush=True)
    rounds, failure = carry_out(options)
    command = f"tests/cluster/rounds.py {' '.join(sys.argv[1:])}"
    found = records.record("cluster-faults", command, len(rounds), rows(rounds))
    print("\n".join(records.tables(found)))
    if options.results and failure is None:
        records.write(found)
    whole = sum(one.without_service is not None and not one.findings for one in rounds)
    late = missed(rounds) if options.strict else []
    for line in late:
        print(f"MISSED {line}")
    failed = int(failure is not None) + len(late)
    left_out = skipped(pool_of(options))
    for fault, reason in left_out.items():
        print(f"SKIPPED {f.words(fault)}: {reason}")
    print(f"cluster: {whole} passed, {failed} failed, {len(left_out)} skipped")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
