"""What the results of a run of flock say: figures, faults, and cells over several rounds. Pure
functions of the files that `flock run` and `flock versus` leave."""

import math
import os
import re
import statistics
from dataclasses import dataclass, field

import records

# Of messages due: behind more than this share a broker has not kept the pace.
BEHIND_MAX = 0.05


@dataclass
class Cell:
    """One broker and one scenario, over all rounds."""

    runs: list = field(default_factory=list)
    # Why a round has no results.
    failures: list = field(default_factory=list)
    # The rate is given, so that a broker can fall behind it.
    paced: bool = False

    def remarks(self):
        said = [*self.failures, *(one for run in self.runs for one in faults(run, self.paced))]
        return alike(said)

    def shortcomings(self):
        """In a word or two each, without what is the tool's or the machine's fault."""
        said = ["failed"] if self.failures else []
        said += [word for run in self.runs for word in shortcomings(run, self.paced)]
        return list(dict.fromkeys(said))

    def is_hopeless(self):
        """Another round would take its time, and say the same."""
        return bool(self.failures and not self.runs) or "nothing arrived" in self.shortcomings()

    def row(self, of, told):
        """A row of a record with the figures of `told`: name, unit, function of a run."""
        cells = {name: records.cell(map(get, self.runs), unit) for name, unit, get in told}
        made = records.row(of, cells, self.remarks(), self.shortcomings())
        version = self.runs[0]["broker"]["version"] if self.runs else None
        return made | ({"version": version} if version else {})


# --- What a run says


def rate(name):
    return lambda results: statistics.median(busy(results, name) or [0])


def busy(results, name):
    """Of the seconds in which messages were due, too: a broker that is gone delivers none."""
    of_load = ("published", "received", "scheduled")
    seconds = results["series"]
    loaded = [second for second in seconds if any(second[what] for what in of_load)]
    return [second[name] / secs(second) for second in loaded]


def secs(second):
    """How long an entry of the series is: more than a second in runs of hours."""
    return second.get("spread", {}).get("secs", 1)


def connect_rate(results):
    """The first and the last second are partial, but for the median that is all the same."""
    rates = [second["connects"] / secs(second) for second in results["series"] if second["connects"]]
    return statistics.median(rates or [0])


def latency(percentile, kind="end_to_end"):
    def of(results):
        kinds = [one for one in results["latencies"] if one["kind"] == kind]
        most = max(kinds, key=lambda one: one["summary"]["count"], default=None)
        if not most or is_unknown(most, percentile):
            return None
        return most["summary"][percentile] / 1000

    return of


def is_unknown(latency, percentile):
    """More never came than this percentile leaves out."""
    digits = percentile.removeprefix("p").removesuffix("_us")
    missing = latency.get("missing", 0)
    total = latency["summary"]["count"] + missing
    return digits.isdigit() and missing > total * (1 - float(f"0.{digits}"))


def load(name, unit=1):
    def of(results):
        value = (results["broker_load"] or {}).get(name)
        return None if value is None else value / unit

    return of


received = rate("received")
cost = load("cpu_us_per_message")

# Name, unit, where it comes from.
COLUMNS = [
    ("received", "1/s", received),
    ("p50", "ms", latency("p50_us")),
    ("p99", "ms", latency("p99_us")),
    ("memory", "MB", load("memory_bytes_max", 1e6)),
    ("cpu", "us", cost),
]

# Of scenarios without messages.
CONNECTION_COLUMNS = [
    ("connects", "1/s", connect_rate),
    ("p50", "ms", latency("p50_us", "connect")),
    ("p99", "ms", latency("p99_us", "connect")),
    ("memory", "B", load("memory_bytes_per_connection")),
    ("cpu", "us", load("cpu_us_per_connect")),
]


def columns(runs):
    """The figures of a scenario, its cost last: of connections if there are no messages, and its
    own timers, if it has some, instead of rates."""
    if runs and not any(sum(results["totals"]["published"]) for results in runs):
        return CONNECTION_COLUMNS
    timers = dict.fromkeys(timer["name"] for results in runs for timer in results["timers"])
    if not timers:
        return COLUMNS
    return [*((name, "ms", timer(name)) for name in timers), *COLUMNS[-2:]]


def timer(name):
    """Of the slowest client."""

    def of(results):
        times = [one["summary"]["max_us"] for one in results["timers"] if one["name"] == name]
        return times[0] / 1000 if times else None

    return of


def integrity(results, name):
    return sum(one[name] for one in results["integrity"]["by_qos"])


def behind(results):
    """The share of the deliveries due that had not come at the last full second of publishing. What
    each publisher sent last may still be under way."""
    totals = results["totals"]
    if not results["series"] or not totals["publishes_scheduled"]:
        return 0
    starts, ends = publishing(results)
    full = math.floor(ends)
    if full <= starts:
        return 0
    copies = integrity(results, "expected") / max(sum(totals["published"]), 1)
    due = totals["publishes_scheduled"] * copies * (full - starts) / (ends - starts)
    seconds = results["series"]
    arrived = sum(second["received"] for second in seconds if second["at_secs"] <= full)
    last_of_each = results["scenario"]["publishers"] * copies
    return max(due - arrived - last_of_each, 0) / max(due, 1)


def publishing(results):
    """From when to when, in seconds: the stage that was followed by a wait for what was sent."""
    phases = results["phases"]
    names = [phase["name"] for phase in phases]
    stage = phases[max(names.index("drain") - 1, 0)] if "drain" in names else phases[-1]
    return stage["from_secs"], stage["to_secs"]


def still_came(results):
    """Did messages arrive to the very end of the wait? Then missing messages need not be lost: at
    full speed at QoS 0, millions of messages are still in the sockets of publishers."""
    waits = [phase["to_secs"] for phase in results["phases"] if phase["name"] == "drain"]
    last = [one for one in results["series"] if waits and one["at_secs"] == math.floor(waits[-1])]
    return any(second["received"] for second in last)


def shortcomings(results, paced):
    totals, said = results["totals"], []
    outcome = results["run"]["outcome"]["how"]
    if outcome != "completed":
        said.append(outcome)
    if totals["connects_failed"] or totals["connections_lost"]:
        said.append("connections lost")
    if totals["subscribes_failed"]:
        said.append("subscription refused")
    flaws = [name for name in ("lost", "duplicated", "reordered") if integrity(results, name)]
    said += [name for name in flaws if name != "lost" or not still_came(results)]
    if sum(totals["published"]) and not sum(totals["received"]):
        said.append("nothing arrived")
    elif paced and behind(results) > BEHIND_MAX:
        said.append("behind")
    return said


def faults(results, paced):
    """What a reader must know of a run before its figures."""
    totals, said = results["totals"], []
    for word in shortcomings(results, paced):
        if word in ("lost", "duplicated", "reordered"):
            said.append(f"{integrity(results, word):,} {word}")
        elif word == "behind":
            said.append(f"{100 * behind(results):.0f} % behind at the end")
        elif word == "connections lost":
            said.append(f"{totals['connects_failed'] + totals['connections_lost']:,} {word}")
        else:
            said.append(word)
    if integrity(results, "lost") and "lost" not in shortcomings(results, paced):
        said.append(f"{integrity(results, 'lost'):,} had not come when the wait ended")
    if not results["validity"]["valid"]:
        said += results["validity"]["reasons"][:1] or ["not valid"]
    said += [f"{one['count']:,} x {one['reason']}" for one in results["errors"][:1]]
    return said


def alike(said):
    """Remarks that differ in their figures only, once, with how many there were."""
    kinds = {}
    for one in said:
        kinds.setdefault(re.sub(r"\d[\d.,]*", "0", one), []).append(one)
    return [f"{same[0]} ({len(same)} times)" if same[1:] else same[0] for same in kinds.values()]


# --- Rows of records


def rows(measured):
    """`measured`: scenario to broker to cell."""
    made = []
    for scenario, cells in measured.items():
        told = columns([run for cell in cells.values() for run in cell.runs])
        made += [
            cell.row({"scenario": scenario, "broker": one}, told) for one, cell in cells.items()
        ]
    return made


def titles(measured):
    """What each scenario is."""
    firsts = {
        row: [run for cell in cells.values() for run in cell.runs]
        for row, cells in measured.items()
    }
    return {row: title(runs[0]["scenario"]) for row, runs in firsts.items() if runs}


def title(scenario):
    if scenario.get("scale", 1.0) == 1.0:
        return scenario["title"]
    return f"{scenario['title']} (here {scenario['clients']:,} clients)"


def machine(runs):
    of = runs[0]["machine"]
    cpus = list(dict.fromkeys(run["broker"]["cpus"] for run in runs))
    return records.machine(os.cpu_count(), of["cpu"], of["memory_bytes"], of["kernel"], cpus)


def reason_in(output, broker):
    """Why there are no results, from what `flock versus` printed: its row without figures, or its
    last words."""
    row = re.search(rf"^\| {re.escape(broker)} \| ([^|]+?) \|(?: \|)+$", output, re.MULTILINE)
    if row:
        return row[1]
    words = [line for line in output.splitlines() if line.strip() and " against " not in line]
    return words[-1].strip() if words else "no results"
