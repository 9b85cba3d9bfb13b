"""What happened while the broker was tortured, and the judgement on it.

A history is a list of events in the order in which the clients saw them. Topics carry numbered
messages of one publisher each, so `(topic, number)` names a message. `judge` is a function of the
history alone: it can be asked again from a file, and be tested with histories that are made up.
"""

import json
from collections import Counter, namedtuple

# A SUBACK has come: from here on the session is a promise, and it is owed what matches `filter`.
Subscribed = namedtuple("Subscribed", "client filter qos")
# What is acknowledged from here on is not owed. The client stays until it has been given the rest.
Unsubscribed = namedtuple("Unsubscribed", "client filter")
# A PUBLISH is handed to the socket for the first time.
Sent = namedtuple("Sent", "topic number qos retain")
# A PUBACK, or a PUBREC of a QoS 2 message, with a reason below 0x80 has come.
Acknowledged = namedtuple("Acknowledged", "topic number")
# The same with a reason of 0x80 or more.
Refused = namedtuple("Refused", "topic number reason")
# The application of this client was given a message.
Received = namedtuple("Received", "client topic number qos dup")
# A CONNACK said that there is no session, though it was promised.
Forgotten = namedtuple("Forgotten", "client")
# A reader is about to ask for retained messages; was given one; has been given all it waited for.
Asked = namedtuple("Asked", "reader")
Retained = namedtuple("Retained", "reader topic number")
Told = namedtuple("Told", "reader")
# A backup was made of the running broker, and found sound.
BackedUp = namedtuple("BackedUp", "life")
Killed = namedtuple("Killed", "at_secs")
Ready = namedtuple("Ready", "after_secs")

KINDS = {
    kind.__name__: kind
    for kind in (
        Subscribed, Unsubscribed, Sent, Acknowledged, Refused, Received, Forgotten, Asked,
        Retained, Told, BackedUp, Killed, Ready,
    )
}  # fmt: skip

# How many findings of one kind are told one by one.
TOLD_MAX = 10


class Verdict:
    """Findings by kind, and what was counted on the way."""

    def __init__(self):
        self.findings = {}
        self.counts = Counter()

    def find(self, kind, text):
        self.findings.setdefault(kind, []).append(text)

    @property
    def is_clean(self):
        return not self.findings

    def __str__(self):
        lines = []
        for kind, texts in self.findings.items():
            lines.append(f"{kind}: {len(texts)}")
            lines += [f"  {text}" for text in texts[:TOLD_MAX]]
            if len(texts) > TOLD_MAX:
                lines.append(f"  and {len(texts) - TOLD_MAX} more")
        return "\n".join(lines) or "nothing lost, doubled or out of order"


def matches(topic_filter, topic):
    wanted, given = topic_filter.split("/"), topic.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(given) or level not in ("+", given[at]):
            return False
    return len(wanted) == len(given)


def judge(history):
    """Every acknowledged message at every subscription that it is owed to, QoS 2 once, in order."""
    verdict = Verdict()
    _count(history, verdict)
    sent, acknowledged = {}, {}
    for at, event in enumerate(history):
        if isinstance(event, Sent):
            sent[event.topic, event.number] = (at, event.qos)
        elif isinstance(event, Acknowledged):
            acknowledged.setdefault((event.topic, event.number), at)
        elif isinstance(event, Forgotten):
            verdict.find("session forgotten", event.client)
    _judge_sources(history, sent, verdict)
    receipts = _receipts(history)
    for owed in _subscriptions(history):
        _judge_subscription(owed, sent, acknowledged, receipts, verdict)
    since = {}
    for at, event in enumerate(history):
        if isinstance(event, Subscribed):
            since.setdefault(event.client, at)
    for (client, topic), got in receipts.items():
        # One that was sent before the SUBACK may have passed by, and come when it is resent.
        start = since.get(client, len(history))
        numbers = [n for n, _ in got if sent.get((topic, n), (-1,))[0] > start]
        _judge_order(client, topic, numbers, verdict)
    _judge_retained(history, verdict)
    return verdict


def _count(history, verdict):
    counts = verdict.counts
    for event in history:
        counts[type(event).__name__] += 1
        if isinstance(event, Received):
            counts[f"received at QoS {event.qos}"] += 1
        elif isinstance(event, Acknowledged) and event.topic.startswith(WILLS):
            counts["wills promised"] += 1
    counts["acknowledged"] = counts.pop("Acknowledged", 0)


def _judge_sources(history, sent, verdict):
    """Nobody receives what nobody sent."""
    for event in history:
        if isinstance(event, Received) and (event.topic, event.number) not in sent:
            verdict.find("never sent", f"{event.topic} {event.number} at {event.client}")


def _receipts(history):
    """By client and topic: (number, qos) in the order of receipt."""
    receipts = {}
    for event in history:
        if isinstance(event, Received):
            got = receipts.setdefault((event.client, event.topic), [])
            got.append((event.number, event.qos))
    return receipts


class _Owed:
    """Who is owed what a filter matches: a client, or the members of a shared subscription."""

    def __init__(self, name, topic_filter, qos, since):
        self.name, self.filter, self.qos, self.since = name, topic_filter, qos, since
        self.until = None
        self.clients = set()


def _subscriptions(history):
    found, open_ones = [], {}
    for at, event in enumerate(history):
        if isinstance(event, Subscribed):
            shared = event.filter.startswith("$share/")
            name = event.filter if shared else event.client
            key = (name, event.filter)
            if key not in open_ones:
                plain = event.filter.split("/", 2)[2] if shared else event.filter
                open_ones[key] = _Owed(name, plain, event.qos, at)
                found.append(open_ones[key])
            open_ones[key].clients.add(event.client)
        elif isinstance(event, Unsubscribed) and not event.filter.startswith("$share/"):
            # One whose SUBACK never came was owed nothing.
            left = open_ones.pop((event.client, event.filter), None)
            if left is not None:
                left.until = at
    return found


def _judge_subscription(owed, sent, acknowledged, receipts, verdict):
    times = Counter()
    topics = {topic for client, topic in receipts if client in owed.clients}
    for client in owed.clients:
        for topic in topics:
            if matches(owed.filter, topic):
                got = receipts.get((client, topic), ())
                times.update((topic, number) for number, _ in got)
    for (topic, number), (sent_at, qos) in sent.items():
        if not matches(owed.filter, topic):
            continue
        acknowledged_at = acknowledged.get((topic, number))
        promised = acknowledged_at is not None and sent_at > owed.since
        if owed.until is not None and promised:
            promised = acknowledged_at < owed.until
        got = times[topic, number]
        verdict.counts["owed"] += promised
        if promised and got == 0:
            verdict.find("lost", f"{topic} {number} at {owed.name}")
        if got > 1:
            exactly_once = min(qos, owed.qos) == 2
            verdict.counts["repeated at QoS 2" if exactly_once else "repeated at QoS 1"] += got - 1
            if exactly_once:
                verdict.find("QoS 2 repeated", f"{topic} {number} at {owed.name}, {got} times")


def _judge_order(client, topic, numbers, verdict):
    """First receipts rise: whoever has skipped one may not be given it later."""
    seen, highest = set(), -1
    for number in numbers:
        if number in seen:
            continue
        seen.add(number)
        if number < highest and not client.startswith(MEMBER):
            verdict.find("out of order", f"{topic} {number} after {highest} at {client}")
        highest = max(highest, number)


def _judge_retained(history, verdict):
    """A reader gets the last acknowledged number of each topic, or one that was sent behind it."""
    acknowledged, sent, floors, told = {}, {}, {}, {}
    for event in history:
        if isinstance(event, Sent) and event.retain:
            sent[event.topic] = event.number
        elif isinstance(event, Acknowledged) and event.topic in sent:
            known = acknowledged.get(event.topic, -1)
            acknowledged[event.topic] = max(known, event.number)
        elif isinstance(event, Asked):
            floors[event.reader], told[event.reader] = dict(acknowledged), {}
        elif isinstance(event, Retained):
            told[event.reader].setdefault(event.topic, event.number)
        elif isinstance(event, Told):
            for topic, floor in floors[event.reader].items():
                verdict.counts["retained checked"] += 1
                got = told[event.reader].get(topic)
                if got is None or not floor <= got <= sent[topic]:
                    wanted = f"{floor} to {sent[topic]}"
                    verdict.find("retained", f"{topic}: {got}, not {wanted}, for {event.reader}")


# Topics of wills begin so. What acknowledges them is the SUBACK behind the CONNECT.
WILLS = "will/"

# Members of shared subscriptions have names that begin so: among them there is no order.
MEMBER = "member-"


def save(history, path):
    with open(path, "w", encoding="utf-8") as file:
        for event in history:
            file.write(json.dumps([type(event).__name__, *event]) + "\n")


def load(path):
    with open(path, encoding="utf-8") as file:
        return [KINDS[kind](*fields) for kind, *fields in map(json.loads, file)]
