"""Results as data: `lab/results` has a file for each suite, with the record of its latest run.

A record says what ran: command, commit and its date, date of the run, machine, rounds. Its rows
name what was measured (`of`: scenario, broker, level, ...). A cell has the median, the minimum
and the maximum over the rounds, and a unit. What is not known is null.
"""

import contextlib
import json
import os
import platform
import statistics
import subprocess
import time
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "lab/results"
# Digits that a measurement deserves.
DIGITS = 6


# --- Making


def cell(values, unit):
    """None if no round has a value."""
    values = [rounded(value) for value in values if value is not None]
    if not values:
        return None
    middle = rounded(statistics.median(values))
    return {"median": middle, "min": min(values), "max": max(values), "unit": unit}


def rounded(value):
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def row(of, cells, remarks=(), shortcomings=()):
    """`cells`: name to cell; those without a value are left out."""
    cells = {name: one for name, one in cells.items() if one is not None}
    made = {"of": of, "cells": cells}
    made |= {"shortcomings": list(shortcomings)} if shortcomings else {}
    return made | ({"remarks": list(remarks)} if remarks else {})


def record(suite, command, rounds, rows, machine=None, **more):
    """`more`: facts that only this suite has, and `notes`."""
    return {
        "suite": suite,
        "command": command,
        "commit": git("describe", "--always", "--dirty"),
        "commit_date": git("log", "-1", "--format=%cs"),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine or this_machine(),
        "rounds": rounds,
        **more,
        "rows": rows,
    }


def git(*arguments):
    """None outside a checkout."""
    command = ["git", *arguments]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()


def this_machine():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine(os.cpu_count(), processor(), memory, platform.release())


def processor():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def machine(cores, cpu, memory_bytes, kernel, cpus=()):
    """`cpus`: where the brokers ran."""
    where = f"{cores} x {cpu}, {memory_bytes / 2**30:.0f} GiB, Linux {kernel}"
    return f"{where}; brokers on cores {', '.join(cpus)}" if cpus else where


# --- Files


def write(record):
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{record['suite']}.json").write_text(text(record))


def text(record):
    """A line for each fact and each row."""
    facts = {name: value for name, value in record.items() if name != "rows"}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in facts.items()]
    rows = ",\n".join(f"    {json.dumps(one)}" for one in record["rows"])
    return "\n".join(["{", *lines, '  "rows": [', rows, "  ]", "}", ""])


def read(suite):
    return json.loads((RESULTS / f"{suite}.json").read_text())


def suites():
    return sorted(path.stem for path in RESULTS.glob("*.json"))


# --- Reading


def find(record, **of):
    """The one row with these names, or None."""
    found = [one for one in record["rows"] if of.items() <= one["of"].items()]
    return found[0] if found else None


def median(row, name):
    return row["cells"][name]["median"] if row and name in row["cells"] else None


def values(record, name):
    """All values of one part of `of`, in their order."""
    return list(dict.fromkeys(one["of"][name] for one in record["rows"] if name in one["of"]))


def figure(value):
    """Three digits, or as many as there are before the point; no more than were recorded."""
    if isinstance(value, int):
        return f"{value:,}"
    exact = Decimal(repr(value))
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    digits = min(digits, max(-exact.as_tuple().exponent, 0))
    return f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,}"


def spread(cell):
    if cell is None:
        return ""
    middle = figure(cell["median"]) if cell["median"] is not None else None
    low, high = figure(cell["min"]), figure(cell["max"])
    if middle is None:
        return f"{low} to {high}"
    return middle if low == high else f"{middle} ({low}-{high})"


def with_unit(cell):
    return " ".join(filter(None, [spread(cell), cell["unit"]])) if cell else ""


def table_row(cells):
    return "| " + " | ".join(one.replace("|", "/").replace("\n", " ") for one in cells) + " |"


def table(titles, rows):
    return [table_row(titles), "|---" * len(titles) + "|", *map(table_row, rows)]


def tables(record):
    """For the terminal: a table for each set of columns, with what ran above them."""
    lines = [f"{record['command']}, commit {record['commit']}, {record['machine']}", ""]
    groups = {}
    for one in record["rows"]:
        groups.setdefault((tuple(one["of"]), one["of"].get("scenario")), []).append(one)
    for (names, _), rows in groups.items():
        cells = dict.fromkeys(name for one in rows for name in one["cells"])
        told = [
            [
                *(str(one["of"][name]) for name in names),
                *(with_unit(one["cells"].get(name)) for name in cells),
                "; ".join(one.get("remarks", [])),
            ]
            for one in rows
        ]
        lines += [*table([*names, *cells, "remarks"], told), ""]
    return lines
