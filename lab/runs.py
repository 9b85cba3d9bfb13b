"""What the benchmarks write of their runs: tables, a summary on top, and a grid. Pure functions of
the results that `flock versus` leaves; `bench.py` makes those and says which there are."""

import math
import re
import statistics
from dataclasses import dataclass, field

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

    def median(self, of):
        values = [value for value in map(of, self.runs) if value is not None]
        return statistics.median(values) if values else None


# --- What a run says


def rate(name):
    return lambda results: statistics.median(busy(results, name) or [0])


def busy(results, name):
    seconds = results["series"]
    return [second[name] for second in seconds if second["published"] + second["received"] > 0]


def connect_rate(results):
    """The first and the last second are partial, but for the median that is all the same."""
    rates = [second["connects"] for second in results["series"] if second["connects"]]
    return statistics.median(rates or [0])


def latency(percentile, kind="end_to_end"):
    def of(results):
        kinds = [one["summary"] for one in results["latencies"] if one["kind"] == kind]
        most = max(kinds, key=lambda summary: summary["count"], default=None)
        return most and most[percentile] / 1000

    return of


def load(name, unit=1):
    def of(results):
        value = (results["broker_load"] or {}).get(name)
        return None if value is None else value / unit

    return of


received = rate("received")
cost = load("cpu_us_per_message")

# Title, where it comes from, digits behind the point.
COLUMNS = [
    ("received/s", received, 0),
    ("p50 ms", latency("p50_us"), 2),
    ("p99 ms", latency("p99_us"), 2),
    ("MB", load("memory_bytes_max", 1e6), 1),
    ("CPU us per message", cost, 2),
]

# Of scenarios without messages.
CONNECTION_COLUMNS = [
    ("connects/s", connect_rate, 0),
    ("p50 ms", latency("p50_us", "connect"), 2),
    ("p99 ms", latency("p99_us", "connect"), 2),
    ("bytes per connection", load("memory_bytes_per_connection"), 0),
    ("CPU us per connect", load("cpu_us_per_connect"), 1),
]


def columns(runs):
    """What is told of a scenario, its cost last: connections where there are no messages, and its
    own stopwatches, if it has some, instead of rates."""
    if runs and not any(sum(results["totals"]["published"]) for results in runs):
        return CONNECTION_COLUMNS
    timers = dict.fromkeys(timer["name"] for results in runs for timer in results["timers"])
    if not timers:
        return COLUMNS
    return [*((f"{name} ms", stopwatch(name), 1) for name in timers), *COLUMNS[-2:]]


def stopwatch(name):
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
    """Did messages arrive to the very end of the wait? Then what is missing need not be lost: what
    is sent flat out at QoS 0 waits in the sockets of publishers, millions deep."""
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


# --- Tables


def table_row(cells):
    return "| " + " | ".join(one.replace("|", "/").replace("\n", " ") for one in cells) + " |"


def table_head(titles):
    return [table_row(titles), "|---" * len(titles) + "|"]


def spread(of, digits, runs):
    values = [value for value in map(of, runs) if value is not None]
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def ratio(of, cell, unit):
    ours, theirs = cell.median(of), unit.median(of) if unit else None
    return f"{ours / theirs:.2f}" if ours and theirs else "-"


def named(broker, cell):
    return f"{broker} {cell.runs[0]['broker']['version']}".strip() if cell.runs else broker


def tables(measured, unit):
    """One table per row of the suite, with a line per broker. `measured`: row to broker to cell."""
    lines = []
    for row, cells in measured.items():
        runs = [run for cell in cells.values() for run in cell.runs]
        scenario = runs[0]["scenario"] if runs else {"title": "no broker could be measured"}
        lines += [f"**{row}**: {scenario['title']}{shrunk(scenario)}", ""]
        told = columns(runs)
        lines += table_head(["broker", *(column[0] for column in told), f"x {unit}", "remarks"])
        for broker, cell in cells.items():
            figures = [spread(of, digits, cell.runs) for _, of, digits in told]
            remarks = "; ".join(cell.remarks())
            compared = ratio(told[-1][1], cell, cells.get(unit))
            lines.append(table_row([named(broker, cell), *figures, compared, remarks]))
        lines.append("")
    return lines


def shrunk(scenario):
    if scenario.get("scale", 1.0) == 1.0:
        return ""
    return f" (here {scenario['clients']:,} clients)"


# --- The summary


def summary(measured, brokers, unit, own, marks):
    """Three small tables: cost, rate and latency, a line per row and a column per broker.

    `own`: row to the broker of ours that is held against the others there. `marks`: row to broker
    to its cost, and that of `unit`, on another machine.
    """
    brokers = [one for one in brokers if any(one in cells for cells in measured.values())]
    marked = list(dict.fromkeys(one for row in measured for one in marks.get(row, {})))
    marked = [one for one in marked if one != unit]
    titles = ["scenario", *brokers, "ours / best other", *(f"*{one}*" for one in marked)]
    lines = ["CPU us per message (bold: the best of those that delivered all in time):", ""]
    lines += table_head(titles)
    for row, cells in measured.items():
        sound = {one: cell.median(cost) for one, cell in cells.items() if not cell.shortcomings()}
        sound = {one: value for one, value in sound.items() if value}
        best = min(sound, key=sound.get, default=None)
        told = [costs_of(cells.get(one), one == best) for one in brokers]
        scaled = [mark(marks.get(row, {}), one, unit, cells) for one in marked]
        lines.append(table_row([row, *told, against(sound, own(row)), *scaled]))
    lines += ["", "Received per second:", "", *table_head(["scenario", *brokers])]
    for row, cells in measured.items():
        told = [rates_of(cells.get(one)) for one in brokers]
        lines.append(table_row([row, *told]))
    lines += ["", "Latency end to end, p50 / p99 ms:", "", *table_head(["scenario", *brokers])]
    for row, cells in measured.items():
        told = [latencies_of(cells.get(one)) for one in brokers]
        lines.append(table_row([row, *told]))
    return [*lines, ""]


def costs_of(cell, is_best):
    if cell is None:
        return "-"
    value, short = cell.median(cost), ", ".join(cell.shortcomings())
    if value is None:
        return short or "-"
    text = f"**{value:,.2f}**" if is_best else f"{value:,.2f}"
    return f"{text} ({short})" if short else text


def rates_of(cell):
    value = cell and cell.median(received)
    return f"{value:,.0f}" if value else "-"


def latencies_of(cell):
    low, high = (cell and cell.median(latency(one)) for one in ("p50_us", "p99_us"))
    return f"{low:,.2f} / {high:,.2f}" if low is not None and high is not None else "-"


def against(sound, own):
    """Our cost over that of the best broker that is not ours, among those that did the work."""
    others = {one: value for one, value in sound.items() if not one.startswith("quelea")}
    if own not in sound:
        return "-"
    if not others:
        return "no other did it"
    best = min(others, key=others.get)
    return f"{sound[own] / others[best]:.2f} x {best}"


def mark(known, broker, unit, cells):
    """What `broker` would cost here: as often what `unit` costs here as on the other machine."""
    here = cells[unit].median(cost) if unit in cells else None
    if here is None or broker not in known:
        return "-"
    return f"*{here * known[broker] / known[unit]:,.2f}*"


# --- The grid


def grid(measured, brokers, places):
    """A table per block, a line per payload, a column per QoS and broker: cost and rate.

    `places`: row to (block, column, line).
    """
    blocks = {}
    for row, cells in measured.items():
        block, column, line = places[row]
        blocks.setdefault(block, {}).setdefault(line, {})[column] = cells
    lines = []
    for block, of_block in blocks.items():
        heads = list(dict.fromkeys(one for columns_ in of_block.values() for one in columns_))
        lines += [f"**{block}**", ""]
        pairs = [(head, broker) for head in heads for broker in brokers]
        lines += table_head(["payload", *(f"{head}, {broker}" for head, broker in pairs)])
        for line, columns_ in of_block.items():
            told = [grid_cell(columns_.get(head, {}), broker) for head, broker in pairs]
            lines.append(table_row([line, *told]))
        lines.append("")
    return lines


def grid_cell(cells, broker):
    cell = cells.get(broker)
    if cell is None:
        return "-"
    sound = {one: other.median(cost) for one, other in cells.items() if not other.shortcomings()}
    sound = {one: value for one, value in sound.items() if value}
    best = min(sound, key=sound.get, default=None)
    text = costs_of(cell, broker == best)
    return text if cell.median(cost) is None else f"{text}, {rates_of(cell)}/s"


# --- Where they stand


def disclosure(runs, command, commit, absent):
    machine = runs[0]["machine"]
    memory = machine["memory_bytes"] / 2**30
    rounds = max(count_rounds(runs).values())
    cpus = list(dict.fromkeys(run["broker"]["cpus"] for run in runs))
    lines = [
        f"Commit `{commit}`, `{command}`; {machine['cores']} x {machine['cpu']}, {memory:.0f} GiB,",
        f"Linux {machine['kernel']}; brokers on cores {', '.join(cpus)}, the load on the"
        f" others; {rounds} {'rounds' if rounds > 1 else 'round'} in turns: median"
        " (smallest-largest).",
    ]
    lines += [f"Not there: {one}." for one in absent]
    return [*lines, ""]


def count_rounds(runs):
    counts = {}
    for results in runs:
        pair = (results["scenario"]["source"], results["broker"]["name"])
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def between_markers(text, name, lines):
    """The document with the part between the two markers of `name` replaced."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the document needs {begin.strip()} and {end.strip()}, once each")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return before + begin + "\n".join(lines).rstrip("\n") + "\n" + end + after


def reason_in(output, broker):
    """Why there are no results, from what `flock versus` printed: its row without figures, or its
    last words."""
    row = re.search(rf"^\| {re.escape(broker)} \| ([^|]+?) \|(?: \|)+$", output, re.MULTILINE)
    if row:
        return row[1]
    words = [line for line in output.splitlines() if line.strip() and " against " not in line]
    return words[-1].strip() if words else "no results"
