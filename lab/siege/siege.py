#!/usr/bin/env python3
"""Attacks a broker with default limits, and measures what other clients notice.

`siege.py` runs each case against a broker of its own in a cgroup with 1 GB, and prints a table.
During the attack a pair of clients sends a QoS 1 message every 10 ms. Newcomers log in, publish,
and ask `/healthz`, four times a second.

A case holds if the broker lives and keeps below its memory limit, the pair loses nothing and is
refused nothing, and memory is given back in time. Times in the table are for a quiet machine.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests/e2e")]

import after_login  # noqa: F401  (enters its cases)
import before_login  # noqa: F401  (the same)
import churn  # noqa: F401
import exchanges  # noqa: F401
import held  # noqa: F401
import identities  # noqa: F401
import records
import rights  # noqa: F401
import tenants  # noqa: F401
import transports  # noqa: F401
import users  # noqa: F401
from cases import CASES, Field
from ground import MEMORY_BYTES, QUELEA, Bystander, Server

MIB = 1 << 20
# The limit of a broker on a machine with 1 GB.
RSS_BYTES_MAX = MEMORY_BYTES // 10 * 8
# What stays of an attack when it is over.
RSS_BYTES_LEFT_MAX = 200 * MIB
RECOVERY_SECS = 5
# Only failing runs wait that long.
PATIENCE_SECS = 30
BEFORE_SECS, SHORT_BEFORE_SECS = 3, 0.1
ATTACK_SECS, SHORT_ATTACK_SECS = 8, 0.4
# Of the pair, on a quiet machine.
P99_MS_MAX = 50
# The attackers step back behind the broker, as if they were on machines of their own.
NICENESS = 5


@dataclasses.dataclass
class Outcome:
    """What one case did."""

    name: str
    peak_bytes: int = 0
    left_bytes: int = 0
    recovery_secs: float = 0.0
    log_bytes: int = 0
    pair: dict = dataclasses.field(default_factory=dict)
    newcomer: dict = dataclasses.field(default_factory=dict)
    facts: dict = dataclasses.field(default_factory=dict)
    findings: list = dataclasses.field(default_factory=list)

    def row(self):
        attack = self.pair.get("phases", {}).get("attack", {})
        newcomer = self.newcomer.get("phases", {}).get("attack", {})
        failed = sum(newcomer.get("failed", {}).values())
        return [
            self.name, f"{self.peak_bytes / MIB:.0f}", f"{self.left_bytes / MIB:.0f}",
            number(attack.get("p99_ms")), number(attack.get("max_ms")),
            str(attack.get("lost", "-")), str(attack.get("refused", "-")),
            f"{failed}/{newcomer.get('tries', 0)}", number(newcomer.get("slowest_ms")),
            number(newcomer.get("health_ms")), f"{self.recovery_secs:.1f}",
            f"{self.log_bytes / 1024:.0f}", "holds" if not self.findings else "FALLS",
        ]  # fmt: skip


    def record(self):
        attack = self.pair.get("phases", {}).get("attack", {})
        newcomer = self.newcomer.get("phases", {}).get("attack", {})
        figures = {
            "peak": (self.peak_bytes / MIB, "MB"), "left": (self.left_bytes / MIB, "MB"),
            "p99": (attack.get("p99_ms"), "ms"), "max": (attack.get("max_ms"), "ms"),
            "lost": (attack.get("lost"), None), "refused": (attack.get("refused"), None),
            "newcomers_failed": (sum(newcomer.get("failed", {}).values()), None),
            "newcomers_tried": (newcomer.get("tries", 0), None),
            "slowest": (newcomer.get("slowest_ms"), "ms"),
            "health": (newcomer.get("health_ms"), "ms"),
            "recovery": (self.recovery_secs, "s"), "log": (self.log_bytes / 1024, "KB"),
        }  # fmt: skip
        cells = {name: records.cell([value], unit) for name, (value, unit) in figures.items()}
        row = records.row({"case": self.name}, cells) | {"findings": self.findings}
        missed = misses(self)
        return row | ({"missed": missed} if missed else {})


HEAD = [
    "case", "peak MB", "left MB", "p99 ms", "max ms", "lost", "refused", "newcomers failed",
    "slowest ms", "health ms", "recovery s", "log KB", "",
]  # fmt: skip


def number(value):
    return "-" if value is None else f"{value:.1f}"


class Siege:
    """A broker with its bystanders, on which cases are tried one after the other."""

    def __init__(self, config, is_short=False, attack_secs=ATTACK_SECS, before_secs=BEFORE_SECS):
        self.is_short = is_short
        self.attack_secs = SHORT_ATTACK_SECS if is_short else attack_secs
        self.before_secs = SHORT_BEFORE_SECS if is_short else before_secs
        self.outcomes, self.bystanders = [], []
        self.server = Server(config)
        try:
            for role in ("pair", "newcomer"):
                self.bystanders.append(Bystander(role, self.server))
        except BaseException:
            self.stop()
            raise

    def phase(self, name):
        for bystander in self.bystanders:
            bystander.phase(name)

    def attack(self, name):
        """One case. What becomes of the bystanders is told at the end."""
        server, outcome = self.server, Outcome(name)
        self.outcomes.append(outcome)
        # Long enough for a newcomer to try.
        time.sleep(self.before_secs)
        server.peak_bytes = 0
        logged = server.log_bytes()
        self.phase(f"{name}: attack")
        outcome.facts = run_apart(CASES[name], server, self.is_short, self.attack_secs)
        self.phase(f"{name}: after")
        outcome.peak_bytes = server.peak_bytes
        outcome.log_bytes = server.log_bytes() - logged
        recover(server, outcome)
        self.phase(f"{name}: recovered")
        time.sleep(self.before_secs)

    def end(self):
        """The outcomes, judged."""
        told = []
        try:
            told = [bystander.end() for bystander in self.bystanders]
        finally:
            code = self.stop()
        for outcome in self.outcomes:
            outcome.pair, outcome.newcomer = (of_case(seen, outcome.name) for seen in told)
            if code != 0:
                outcome.findings.append(f"the broker ended with {code}")
            judge(CASES[outcome.name], outcome)
        return self.outcomes

    def stop(self):
        for bystander in self.bystanders:
            bystander.stop()
        return self.server.stop()


def of_case(told, name):
    """What a bystander has seen of one case, by phase."""
    mine = {phase.removeprefix(f"{name}: "): seen for phase, seen in told["phases"].items()
            if phase.startswith(f"{name}: ")}  # fmt: skip
    return {**told, "phases": mine}


def besiege(name, **options):
    """One case against a broker of its own."""
    siege = Siege(CASES[name].config, **options)
    try:
        siege.attack(name)
    except BaseException:
        siege.stop()
        raise
    return siege.end()[0]


def besiege_shortly(names):
    """Short forms, on one broker for all that may share one; outcomes by name."""
    together, outcomes = {}, {}
    for name in names:
        case = CASES[name]
        together.setdefault((case.config, name if case.alone else ""), []).append(name)
    for (config, _), group in together.items():
        siege = Siege(config, is_short=True)
        try:
            for name in group:
                siege.attack(name)
        except BaseException:
            siege.stop()
            raise
        outcomes |= {outcome.name: outcome for outcome in siege.end()}
    return outcomes


def run_apart(case, server, is_short, secs):
    """The attack, in a process of its own: what it costs is not the measurement's."""
    field = {
        "open_port": server.port("tcp", 0), "closed_port": server.port("tcp", 1),
        "proxy_port": server.port("tcp", 2), "http_port": server.port("http"),
        "ws_port": server.port("ws"), "tls_port": server.port("tls"),
        "tenants_port": server.port("tcp", 3, missing=0), "is_short": is_short, "secs": secs,
    }  # fmt: skip
    command = [sys.executable, __file__, "--attack", case.name, json.dumps(field)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False,
        preexec_fn=lambda: os.nice(NICENESS),
    )  # fmt: skip
    # Where its own program has failed nothing was proved.
    return json.loads(done.stdout) if done.returncode == 0 else None


def recover(server, outcome):
    """Waits until memory is as before."""
    begun = time.monotonic()
    while server.is_alive() and time.monotonic() < begun + PATIENCE_SECS:
        outcome.left_bytes = server.rss_bytes()
        if outcome.left_bytes <= RSS_BYTES_LEFT_MAX:
            break
        time.sleep(0.05)
    outcome.recovery_secs = time.monotonic() - begun


def judge(case, outcome):
    found = outcome.findings
    if outcome.peak_bytes > (case.peak_mib * MIB if case.peak_mib else RSS_BYTES_MAX):
        found.append(f"{outcome.peak_bytes // MIB} MB of memory")
    if outcome.left_bytes > RSS_BYTES_LEFT_MAX:
        found.append(f"{outcome.left_bytes // MIB} MB are left of it")
    for end, why in outcome.pair.get("cut", {}).items():
        found.append(f"the {end} of the pair was cut off, {why}")
    for phase, seen in outcome.pair.get("phases", {}).items():
        for what in ("lost", "refused"):
            if seen[what]:
                found.append(f"{what} of the pair, {phase}: {seen[what]}")
    for phase, seen in outcome.newcomer.get("phases", {}).items():
        # What they meet while memory is given back is a part of the recovery.
        if phase != "after":
            for why, times in seen["failed"].items():
                found.append(f"newcomers fail, {phase}: {why}, {times} times")
    if outcome.facts is None:
        found.append("the attack itself failed")
    else:
        found += case.expect(outcome)


def table(outcomes):
    rows = [HEAD] + [outcome.row() for outcome in outcomes]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    lines = ["  ".join(cell.rjust(width) if at else cell.ljust(width)
                       for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    return "\n".join(lines)


def misses(outcome):
    """What of the goals for a quiet machine was missed."""
    p99_ms = outcome.pair.get("phases", {}).get("attack", {}).get("p99_ms")
    missed = []
    if p99_ms is None or p99_ms > P99_MS_MAX:
        missed.append("p99")
    if outcome.recovery_secs > RECOVERY_SECS:
        missed.append("recovery")
    return missed


def record(outcomes, asked):
    """`asked`: how many cases were to be tried; a run that is interrupted has fewer rows."""
    rows = [outcome.record() for outcome in outcomes]
    command = f"lab/siege/siege.py {' '.join(sys.argv[1:])}"
    machine = f"{records.this_machine()}; attackers on the same cores"
    return records.record("siege", command, 1, rows, machine, asked=asked)


def run_attack(name, field):
    field = Field(**json.loads(field))
    print(json.dumps(CASES[name].attack(field) or {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--list", action="store_true", help="names the cases")
    parser.add_argument("--short", action="store_true", help="as in the end-to-end tests")
    parser.add_argument("--secs", type=float, default=ATTACK_SECS, help="of each attack")
    parser.add_argument("--before", type=float, default=BEFORE_SECS, help="and before and after it")
    parser.add_argument("--results", action="store_true", help="write lab/results/siege.json")
    parser.add_argument("--attack", nargs=2, metavar=("CASE", "FIELD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        run_attack(*options.attack)
        return 0
    if options.list:
        for case in CASES.values():
            print(f"{case.name:28} {case.about}")
        return 0
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; --list names them")
    print(f"broker {QUELEA}", flush=True)
    outcomes = run_all(options)
    print("\n" + table(outcomes))
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def run_all(options):
    names = options.cases or list(CASES)
    if options.short:
        outcomes = list(besiege_shortly(names).values())
        for outcome in outcomes:
            tell(outcome)
        write(outcomes, options.results, len(names))
        return outcomes
    outcomes = []
    for name in names:
        outcomes.append(besiege(name, attack_secs=options.secs, before_secs=options.before))
        tell(outcomes[-1])
        write(outcomes, options.results, len(names))
    return outcomes


def write(outcomes, is_wanted, asked):
    """After each case, so that a run that is interrupted leaves what it has found."""
    if is_wanted:
        records.write(record(outcomes, asked))


def tell(outcome):
    verdict = "; ".join(outcome.findings) or "holds"
    print(f"{outcome.name}: {verdict} {json.dumps(outcome.facts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
