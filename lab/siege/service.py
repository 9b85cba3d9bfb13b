"""The service that says who a client is, and what it may do, where a case wants one: it goes by the
user name, and by the topic."""

import itertools
import json
import time

from tokens import Service, as_json

HONEST = ("anna", "bruno", "eve", "otto")
LISTED = 150
_turns = itertools.count()

# What is no answer, in turn.
GARBAGE = (
    as_json({}, 500),
    (200, {"Content-Type": "text/plain"}, b"no"),
    (200, {"Content-Type": "application/json"}, b'{"result": "allow'),
    as_json({"result": "allow", "client_attrs": {f"a{number}": "x" for number in range(65)}}),
    (200, {"Content-Type": "application/json"}, b"[" * 100_000),
)


def lists():
    """Two attributes that make 22,500 of a rule with both."""
    return {name: [str(number) for number in range(LISTED)] for name in ("one", "two")}


def hang():
    """Longer than anybody waits."""
    time.sleep(60)
    return as_json({"result": "ignore"})


# By the beginning of the user name.
ANSWERS = {
    "silent": hang,
    "odd": lambda: GARBAGE[next(_turns) % len(GARBAGE)],
    "guess": lambda: as_json({"result": "deny"}, (401, 403)[next(_turns) % 2]),
    "cached": lambda: as_json(
        {"result": "allow", "client_attrs": {f"a{number}": "x" * 300 for number in range(30)}},
        **{"Cache-Control": "max-age=600"},
    ),
    "lister": lambda: as_json({"result": "allow", "client_attrs": lists()}),
}


def answer(path, body):
    """Tenants have a colon in their names."""
    asked = json.loads(body)
    if path == "/acl":
        return hang() if asked["topic"].startswith("silent") else as_json({"result": "allow"})
    name = asked.get("username") or ""
    if name in HONEST or ":" in name:
        return as_json({"result": "allow"})
    kind = next((kind for kind in ANSWERS if name.startswith(kind)), None)
    return ANSWERS[kind]() if kind else as_json({"result": "ignore"})


def start():
    return Service(answer)
