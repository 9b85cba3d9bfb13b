"""Attacks on what many log-ins share: services that say who clients are, their answers that are
remembered, what rules are made from, and namespaces that are made when a client asks for them."""

import collections
import functools
import itertools
import select
import time

import cases
import wire
from after_login import subscribed
from cases import push

# An address that has had many failed log-ins is slow from then on: each case comes from one of its
# own. All log in by a service, but those who show nothing; `tenants` makes each namespace that it is
# asked for.
CONFIG = """
[[listeners]]
url = "tcp://127.0.0.1:0"
name = "tenants"
namespace_from = ["username"]
namespace_unknown = "create"
[[authentication]]
name = "service"
kind = "http"
url = "{service}"
body = ["username=${username}", "password=${password}", "clientid=${clientid}"]
[access]
acl_file = "{dir}/access"
[[namespaces]]
name = "green"
messages_in_per_second_max = 1_000
"""

case = functools.partial(cases.case, config=CONFIG, peak_mib=300)

AT_ONCE = 50
# With lists of attributes: each one's rules were 12 MB.
CLIENTS = 30


# Each publish is asked about, too.
RIGHTS = CONFIG + """
[authorization]
url = "{service}/acl"
"""
# Who hangs comes from so many addresses.
ADDRESSES = 5


def log_ins(field, port, options_of, *sources):
    """Log-ins at full speed, some at a time, of addresses in turn: how often each reason was
    answered."""
    sources = itertools.cycle(sources)
    begun, reasons, waiting = time.monotonic(), collections.Counter(), []
    for number in itertools.count():
        if not field.goes_on():
            break
        stream = field.dial(port, next(sources))
        if stream is not None:
            cases.push(stream, wire.connect(**options_of(number)))
            waiting.append(stream)
        is_full = len(waiting) >= AT_ONCE
        answered, _, _ = select.select(waiting, [], [], 0.05 if is_full else 0)
        for stream in answered:
            reasons[reason_of(stream)] += 1
            waiting.remove(stream)
            stream.close()
    for stream in waiting:
        stream.close()
    return {**reasons, "unanswered": len(waiting), "secs": time.monotonic() - begun}


def reason_of(stream):
    try:
        packet = stream.recv(64)
    except OSError:
        packet = b""
    return f"{packet[3]:#x}" if len(packet) > 3 and packet[0] == wire.CONNACK else "closed"


def none_let_in(outcome):
    let_in = outcome.facts.get("0x0", 0)
    return [f"{let_in} times let in"] if let_in else []


@case("service-garbage", "log-ins for which the service answers 500 or garbage, at full speed",
      expect=none_let_in)  # fmt: skip
def service_garbage(field):
    return log_ins(field, field.closed_port, lambda n: {"user": f"odd{n}", "password": "x"}, 41)


@case("service-silence", "log-ins of one address that the service never answers, at full speed",
      expect=none_let_in)  # fmt: skip
def service_silence(field):
    return log_ins(field, field.closed_port, lambda n: {"user": f"silent{n}", "password": "x"}, 46)


@case("service-silence-everywhere", "log-ins of five addresses that the service never answers, at"
      " full speed", expect=none_let_in)  # fmt: skip
def service_silence_everywhere(field):
    sources = range(50, 50 + ADDRESSES)
    return log_ins(
        field, field.closed_port, lambda n: {"user": f"silent{n}", "password": "x"}, *sources
    )


@case("rights-silence", "100 clients of five addresses publish on topics about which the service"
      " never answers", config=RIGHTS)  # fmt: skip
def rights_silence(field):
    peers = []
    for number in range(100):
        login = {"user": f"silent:{number}", "password": "x"}
        if peer := field.client(60 + number % ADDRESSES, port=field.closed_port, **login):
            peers.append(peer)
    field.begin()
    for number, peer in enumerate(peers):
        topics = (f"silent/{number}/{n}" for n in range(100))
        sent = (wire.publish(topic, b"", 1, n + 1) for n, topic in enumerate(topics))
        push(peer.stream, b"".join(sent))
    field.wait()
    return {"clients": len(peers)}


def guesses_are_paced(outcome):
    heard, secs = outcome.facts.get("0x87", 0), outcome.facts["secs"]
    # 64 at once, and 5 in a second.
    found = [f"{heard} guesses were heard in {secs:.1f} s"] if heard > 70 + 6 * secs else []
    return found + none_let_in(outcome)


@case("service-guesses", "guesses that the service answers with 401 and 403, at full speed",
      expect=guesses_are_paced)  # fmt: skip
def service_guesses(field):
    return log_ins(field, field.closed_port, lambda n: {"user": "guess", "password": f"x{n}"}, 42)


@case("remembered-answers", "one user with a new client id for each log-in; answers of 10 KB are"
      " cached", peak_mib=120)  # fmt: skip
def remembered_answers(field):
    login = {"user": "cached", "password": "x"}
    return log_ins(field, field.closed_port, lambda n: {"client_id": f"cached-{n}", **login}, 43)


@case("lists-multiplied", "clients with two lists of 150 values and rules that have both, each of whom"
      " subscribes to 1,000 filters", peak_mib=250)  # fmt: skip
def lists_multiplied(field):
    peers, granted = [], 0
    for number in range(CLIENTS):
        login = {"user": f"lister{number}", "password": "x"}
        if peer := field.client(45, port=field.closed_port, **login):
            peers.append(peer)
    field.begin()
    for peer in itertools.takewhile(lambda _: field.goes_on(), peers):
        names = (f"lists/{n % 150}/{n // 150}/up" for n in range(1_000))
        granted += subscribed(peer, names, portion=1_000)
    field.wait()
    return {"clients": len(peers), "granted": granted}


def names_are_paced(outcome):
    made, secs = outcome.facts.get("0x0", 0), outcome.facts["secs"]
    # 32 at once, and 1 in a second.
    return [f"{made} namespaces were made in {secs:.1f} s"] if made > 34 + 2 * secs else []


@case("namespaces-ever-new", "one address that asks for a new namespace each time, at full speed",
      expect=names_are_paced)  # fmt: skip
def namespaces_ever_new(field):
    return log_ins(field, field.tenants_port, lambda n: {"user": f"new{n}:a", "password": "x"}, 44)
