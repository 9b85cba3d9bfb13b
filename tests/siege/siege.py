#!/usr/bin/env python3
"""Attacks a broker with default limits, and measures what becomes of those who behave.

`siege.py` runs every case of the table, each against a broker of its own in a cgroup with 1 GB,
and prints a table. Beside the attack go a pair of clients (QoS 1, a message every 10 ms) and
newcomers who log in, publish, and ask `/healthz`, four times a second.

It judges what has to hold on any machine: the broker lives, keeps below its limit of memory, the
pair loses nothing, is refused nothing, and things are as before within the time for recovery. The
times in the table are for a quiet machine.
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
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

import after_login  # noqa: F401  (enters its cases)
import before_login  # noqa: F401  (the same)
import held  # noqa: F401
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
BEFORE_SECS, SHORT_BEFORE_SECS = 3, 0.5
ATTACK_SECS, SHORT_ATTACK_SECS = 8, 1.5
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
    metrics: dict = dataclasses.field(default_factory=dict)
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


HEAD = [
    "case", "peak MB", "left MB", "p99 ms", "max ms", "lost", "refused", "newcomers failed",
    "slowest ms", "health ms", "recovery s", "log KB", "",
]  # fmt: skip


def number(value):
    return "-" if value is None else f"{value:.1f}"


def besiege(name, is_short=False):
    """One case against a broker of its own."""
    case, outcome = CASES[name], Outcome(name)
    server = Server(case.config)
    bystanders = []
    try:
        pair, newcomer = Bystander("pair", server), Bystander("newcomer", server)
        bystanders += [pair, newcomer]
        time.sleep(SHORT_BEFORE_SECS if is_short else BEFORE_SECS)
        server.peak_bytes = 0
        logged = server.log_bytes()
        for bystander in bystanders:
            bystander.phase("attack")
        outcome.facts = attack(case, server, is_short)
        for bystander in bystanders:
            bystander.phase("after")
        outcome.peak_bytes = server.peak_bytes
        outcome.log_bytes = server.log_bytes() - logged
        recover(server, outcome)
        for bystander in bystanders:
            bystander.phase("recovered")
        # Long enough for a newcomer to try.
        time.sleep(SHORT_BEFORE_SECS if is_short else BEFORE_SECS)
        outcome.pair, outcome.newcomer = pair.end(), newcomer.end()
        if server.is_alive():
            outcome.metrics = server.metrics()
    finally:
        for bystander in bystanders:
            bystander.stop()
        code = server.stop()
    if code != 0:
        outcome.findings.append(f"the broker ended with {code}")
    judge(case, outcome)
    return outcome


def attack(case, server, is_short):
    field = {
        "open_port": server.port("tcp", 0), "closed_port": server.port("tcp", 1),
        "http_port": server.port("http"), "ws_port": server.port("ws", missing=0),
        "is_short": is_short,
        "secs": SHORT_ATTACK_SECS if is_short else ATTACK_SECS,
    }  # fmt: skip
    command = [sys.executable, __file__, "--attack", case.name, json.dumps(field)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False,
        preexec_fn=lambda: os.nice(NICENESS),
    )  # fmt: skip
    assert done.returncode == 0, f"the attack {case.name} failed"
    return json.loads(done.stdout)


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
    found += case.expect(outcome)


def table(outcomes):
    rows = [HEAD] + [outcome.row() for outcome in outcomes]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    lines = ["  ".join(cell.rjust(width) if at else cell.ljust(width)
                       for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    return "\n".join(lines)


def run_attack(name, field):
    """In a process of its own: the cost of the attack is not the measurement's."""
    field = Field(**json.loads(field))
    print(json.dumps(CASES[name].attack(field) or {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--list", action="store_true", help="names the cases")
    parser.add_argument("--short", action="store_true", help="as in the end-to-end tests")
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
    outcomes = []
    for name in options.cases or CASES:
        outcome = besiege(name, options.short)
        outcomes.append(outcome)
        tell(outcome)
    print("\n" + table(outcomes))
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def tell(outcome):
    verdict = "; ".join(outcome.findings) or "holds"
    print(f"{outcome.name}: {verdict} {json.dumps(outcome.facts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
