"""The clients of a round: those of the torture, with several addresses and little patience.

A client that is refused, cannot connect or loses its connection goes to the next address. One whose
broker is silent asks (PINGREQ), and leaves when there is no answer.
"""

import asyncio
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab/torture"))

import clients
import wire

PINGREQ, PINGRESP = b"\xc0\x00", 0xD0
# A client asks a broker that was silent for so long, and leaves it after so much longer.
PING_SECS, PATIENCE_SECS = 1.0, 2.0
# Between two attempts to connect; each at most so long.
clients.RETRY_SECS = 0.1
clients.ANSWER_SECS = 2


class Addresses:
    """One client's way through the addresses of the cluster."""

    def __init__(self, nodes, first):
        self._ports = itertools.cycle([node.mqtt for node in nodes])
        for _ in range(first % len(nodes)):
            next(self._ports)

    async def port(self):
        return next(self._ports)


class Impatient:
    """What all of them do beside their work."""

    heard = 0.0

    async def packet(self):
        while True:
            first, body = await super().packet()
            self.heard = time.monotonic()
            if first != PINGRESP:
                return first, body

    def look(self, now):
        """Called several times a second."""
        if not self.connected.is_set() or self.writer is None:
            return
        silent = now - self.heard
        if silent > PING_SECS + PATIENCE_SECS:
            self.hang_up()
        elif silent > PING_SECS:
            self.writer.write(PINGREQ)

    async def end_session(self, port):
        """The broker forgets the session: the next part of a run begins with other names."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(wire.connect(self.name, clean=True))
            await reader.readexactly(4)
        finally:
            writer.close()


class Subscriber(Impatient, clients.Subscriber):
    pass


class Mortal(Impatient, clients.Mortal):
    pass


class Publisher(Impatient, clients.Publisher):
    """Notes when it was acknowledged, for the time without service."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.acknowledged_at = []

    def note(self, acknowledged):
        super().note(acknowledged)
        self.acknowledged_at.append(time.monotonic())


def without_service(publishers, from_at, to_at):
    """The longest time within which a publisher had no acknowledgement, of the worst of them: from
    its last one before, however long before the fault that was, to the next."""
    worst = 0.0
    for publisher in publishers:
        times = [at for at in publisher.acknowledged_at if at <= to_at]
        gaps = [
            later - earlier
            for earlier, later in zip(times, [*times[1:], to_at])
            if later > from_at
        ]
        # One that was never acknowledged had no service at all.
        worst = max([worst, *gaps] if times else [worst, to_at - from_at])
    return worst


class Cast:
    """Publishers and subscribers of one part of a run, under names of their own."""

    def __init__(self, part, nodes, history, options):
        self.part, self.nodes, self.history, self.options = part, nodes, history, options
        self._count = itertools.count()
        self.publishers = [self._publisher(at) for at in range(options.publishers)]
        self.subscribers = [
            self.subscriber("plain-1", "one", 1),
            self.subscriber("plain-2", "one", 1, version=4),
            self.subscriber("twice-1", "two", 2),
            self.subscriber("twice-2", "two", 2, version=4),
            self.subscriber("mixed-1", "two", 1),
            self.subscriber("mixed-2", "one", 2),
            *(self.member(n, "crew") for n in range(3)),
        ]
        # A session alone, and a group with all its members: away while the fault lasts.
        self.away = [
            self.subscriber("away-1", "one", 1),
            self.subscriber("away-2", "two", 2, version=4),
            *(self.member(n, "rest") for n in (3, 4)),
        ]
        wills = [("a", 1, 5), ("b", 2, 5), ("c", 1, 4), ("d", 2, 4)]
        self.mortals = [
            Mortal(
                self.named(f"mortal-{letter}"), self._addresses(), history,
                f"will/{part}/{letter}", qos, version,
            )
            for letter, qos, version in wills
        ]  # fmt: skip
        self.heirs = [
            self.subscriber("heir-1", "will", 1),
            self.subscriber("heir-2", "will", 1, version=4),
        ]

    @property
    def lasting(self):
        """Those who are owed something to the end."""
        return [*self.subscribers, *self.away, *self.heirs]

    @property
    def all(self):
        return [*self.publishers, *self.lasting, *self.mortals]

    def named(self, name):
        return f"{name}-of-{self.part}"

    def _addresses(self):
        return Addresses(self.nodes, next(self._count))

    def _publisher(self, at):
        # No topics in common: order is judged per publisher and topic.
        topics = [
            (f"one/{self.part}/{at}", 1, False),
            (f"two/{self.part}/{at}", 2, False),
            (f"shared/{self.part}/{at}", 1, False),
            (f"kept/{self.part}/{at}", 1, True),
            (f"held/{self.part}/{at}", 2, True),
        ]
        rate = self.options.rate / self.options.publishers
        version = 5 if at % 2 == 0 else 4
        return Publisher(
            self.named(f"publisher-{at}"), self._addresses(), self.history, topics,
            self.options.window, rate, version,
        )  # fmt: skip

    def subscriber(self, name, root, qos, version=5):
        topic_filter = f"{root}/{self.part}/#"
        return Subscriber(
            self.named(name), self._addresses(), self.history, topic_filter, qos, version
        )

    def member(self, at, group):
        topic_filter = f"$share/{group}-{self.part}/shared/{self.part}/#"
        return Subscriber(
            self.named(f"member-{at}"), self._addresses(), self.history, topic_filter, 1
        )

    def retained_topics(self):
        """Those of which a message was acknowledged."""
        kept = {t for publisher in self.publishers for t, _, retain in publisher.topics if retain}
        return sorted(kept & self.acknowledged().keys())

    def acknowledged(self):
        """The highest number acknowledged of each topic."""
        return {t: n for publisher in self.publishers for t, n in publisher.acknowledged.items()}

    async def watch(self):
        while True:
            await asyncio.sleep(PING_SECS / 4)
            now = time.monotonic()
            for client in self.all:
                client.look(now)
