"""What one client, or one address, makes of log-ins for all others: nothing."""

import json
import socket
import threading

import pytest

from broker import eventually
from test_identity import LISTENER, NOT_AUTHORIZED, UNAVAILABLE, service
from tokens import SECRET, RsaKey, as_json, claims, hs256
from wire import CONNACK, Peer, connect

__all__ = ["service"]

ATTACKER, HONEST = "127.0.0.2", "127.0.0.1"


def dial(broker, source):
    return Peer(broker.port(), source=source)


def reason(broker, source=HONEST, **options):
    with dial(broker, source) as peer:
        return peer.connect(**options)[1]


def provider(asked, more=""):
    return f'[[authentication]]\nname = "s"\nkind = "http"\nurl = "{asked.url}"\n{more}' + LISTENER


def closed_port():
    with socket.socket() as unused:
        unused.bind((HONEST, 0))
        return unused.getsockname()[1]


def by_user(answers):
    """An answer for each user name; a function is called."""

    def answer(_, body):
        found = answers[json.loads(body)["username"]]
        return found() if callable(found) else found

    return answer


MANY = {f"a{number}": "x" for number in range(65)}


@pytest.mark.parametrize(
    ("odd", "answer"),
    [
        (as_json({}, 500), UNAVAILABLE),
        ((200, {"Content-Type": "text/plain"}, b"no"), UNAVAILABLE),
        (as_json({"result": "allow", "client_attrs": MANY}), NOT_AUTHORIZED),
        (as_json({"result": "allow", "expire_at": "soon"}), UNAVAILABLE),
        ((200, {"Content-Type": "application/json"}, b"\xff" * 2_000_000), UNAVAILABLE),
    ],
    ids=["5xx", "text", "attributes", "expiry", "large"],
)
def test_an_answer_that_arrived_closes_the_service_to_nobody_else(start, service, odd, answer):
    asked = service(by_user({"odd": odd, "anna": as_json({"result": "allow"})}))
    broker = start(provider(asked))
    # So that connections are kept, on which a question could be asked again.
    waiting = [dial(broker, HONEST) for _ in range(10)]
    for number, peer in enumerate(waiting):
        peer.send(connect(user="anna", password=f"x{number}"))
    for peer in waiting:
        peer.expect(CONNACK)
    for _ in range(20):
        assert reason(broker, ATTACKER, user="odd", password="x") == answer
    assert reason(broker, user="anna", password="x") == 0
    assert sum(b"odd" in body for _, _, body, _ in asked.asked) == 20, "each is asked once"
    for peer in waiting:
        peer.close()


def test_timeouts_of_one_address_close_the_service_to_nobody_else(start, service):
    release = threading.Event()

    def hang():
        release.wait(60)
        return as_json({"result": "allow"})

    asked = service(by_user({"slow": hang, "anna": as_json({"result": "allow"})}))
    broker = start(provider(asked, "timeout_secs = 1\n"))
    slow = [dial(broker, ATTACKER) for _ in range(12)]
    for peer in slow:
        peer.send(connect(user="slow", password="x"))
    for peer in slow:
        assert peer.expect(0x20)[1] == UNAVAILABLE
        peer.close()
    assert reason(broker, user="anna", password="x") == 0
    release.set()


def test_log_ins_that_hang_close_the_service_to_nobody_else(start, service):
    release = threading.Event()

    def answer(_, body):
        if json.loads(body)["username"].startswith("slow"):
            release.wait(60)
        return as_json({"result": "allow"})

    asked = service(answer)
    broker = start(provider(asked, "timeout_secs = 1\n"))
    slow = [dial(broker, f"127.0.1.{number % 5 + 2}") for number in range(100)]
    for number, peer in enumerate(slow):
        peer.send(connect(user=f"slow{number}", password="x"))
    answers = [peer.expect(CONNACK)[1] for peer in slow[:60]]
    assert set(answers) == {UNAVAILABLE}
    for number in range(20):
        assert reason(broker, user=f"anna{number}", password="x") == 0
        assert reason(broker, "127.0.1.2", user=f"anna{number}", password="x") == 0
    release.set()
    for peer in slow:
        peer.close()


def test_one_address_takes_a_part_of_the_requests_only(start, service):
    release = threading.Event()

    def hang():
        release.wait(60)
        return as_json({"result": "allow"})

    asked = service(by_user({"slow": hang, "anna": as_json({"result": "allow"})}))
    broker = start(provider(asked, "timeout_secs = 60\nrequests_max = 8\n"))
    slow = [dial(broker, ATTACKER) for _ in range(20)]
    for peer in slow:
        peer.send(connect(user="slow", password="x"))
    eventually(lambda: len(asked.asked) >= 2, "two requests of one address under way")
    assert reason(broker, user="anna", password="x") == 0
    assert len(asked.asked) == 3, "a quarter of the requests for one address"
    release.set()
    for peer in slow:
        assert peer.expect(0x20)[1] == 0
        peer.close()


def listener(names):
    return LISTENER + f"authentication = {json.dumps(names)}\n"


def http(name, asked, more=""):
    return f'[[authentication]]\nname = "{name}"\nkind = "http"\nurl = "{asked.url}"\n{more}'


def test_a_service_that_hangs_holds_up_no_other_provider(start, service, passwords):
    release, allow = threading.Event(), as_json({"result": "allow"})

    def hang(*_):
        release.wait(60)
        return allow

    hanging, prompt = service(hang), service(lambda *_: allow)
    config = http("hanging", hanging, "timeout_secs = 60\nrequests_max = 1000\n")
    config += http("prompt", prompt)
    config += listener(["hanging"]) + listener(["prompt"]) + listener(["file"])
    config += '[limits]\nconnect_timeout_secs = 60\n[auth]\npassword_file = "{dir}/passwords"\n'
    broker = start(config, {"passwords": passwords})
    waiting = [Peer(broker.port(nth=0)) for _ in range(80)]
    for peer in waiting:
        peer.send(connect(user="slow", password="x"))
    eventually(lambda: len(hanging.asked) >= GUESSES_AT_ONCE, "as many as may be wrong at once")
    # All are of one address, as behind a proxy.
    for nth in (1, 2):
        with Peer(broker.port(nth=nth)) as peer:
            assert peer.connect(user="anna", password="secret")[1] == 0
    assert len(hanging.asked) == GUESSES_AT_ONCE and not release.is_set()
    release.set()
    for peer in waiting:
        assert peer.expect(0x20)[1] == 0
        peer.close()


def test_a_key_set_that_hangs_holds_up_no_token_of_the_next_provider(start, service, tmp_path):
    release, known, strange = threading.Event(), RsaKey(tmp_path, "a"), RsaKey(tmp_path, "b")
    reply = {"keys": lambda: as_json({"keys": [known.jwk()]})}
    issuer = service(lambda *_: reply["keys"]())
    config = f'[[authentication]]\nname = "keys"\nkind = "jwt"\njwks_url = "{issuer.url}"\n'
    config += '[[authentication]]\nname = "tokens"\nkind = "jwt"\nsecret_file = "{dir}/secret"\n'
    broker = start(config + listener(["keys", "tokens"]), {"secret": SECRET})
    assert reason(broker, user="x", password=known.sign(claims())) == 0

    def cannot_fetch(event):
        return "cannot fetch the key set" in event["message"]

    reply["keys"], seen = lambda: (500, {}, b""), len(broker.log)
    broker.reload()
    broker.wait_for_log(cannot_fetch, seen)

    def hang():
        release.wait(60)
        return 500, {}, b""

    reply["keys"], seen, fetched = hang, len(broker.log), len(issuer.asked)
    broker.reload()
    eventually(lambda: len(issuer.asked) > fetched, "a fetch that hangs")
    assert reason(broker, user="x", password=hs256(claims(), kid="c")) == 0
    assert reason(broker, user="x", password=strange.sign(claims())) == UNAVAILABLE
    assert reason(broker, user="x", password=known.sign(claims())) == 0
    assert not any(map(cannot_fetch, broker.log[seen:])), "it still hangs"
    release.set()


GUESSES_AT_ONCE = 64
LOGINS = 60


def guesses_are_paced(broker, asked, answer):
    """One address guesses on and on, and log-ins of another go on."""
    for number in range(GUESSES_AT_ONCE):
        assert reason(broker, ATTACKER, user="guess", password=str(number)) == answer
    waiting = [dial(broker, ATTACKER) for _ in range(2 * LOGINS)]
    for number, peer in enumerate(waiting):
        peer.send(connect(user="guess", password=f"more {number}"))
    # Addresses take turns: without the limit as many guesses are asked as honest log-ins.
    for _ in range(LOGINS):
        assert reason(broker, user="anna", password="x") == 0
    guesses = sum(b"guess" in body for _, _, body, _ in asked.asked)
    assert guesses < GUESSES_AT_ONCE + LOGINS // 2, "one a second, after the first"
    for peer in waiting:
        peer.close()


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (as_json({}, 401), NOT_AUTHORIZED),
        (as_json({}, 403), NOT_AUTHORIZED),
        (as_json({"result": "ignore"}), NOT_AUTHORIZED),
        (as_json({"result": "deny"}), NOT_AUTHORIZED),
        (as_json({}, 500), UNAVAILABLE),
    ],
    ids=["401", "403", "ignore", "deny", "500"],
)
def test_every_refusal_counts_as_a_failed_login(start, service, wrong, answer):
    asked = service(by_user({"guess": wrong, "anna": as_json({"result": "allow"})}))
    broker = start(provider(asked) + "[auth]\nfailures_per_second_max = 1\n")
    guesses_are_paced(broker, asked, answer)


def test_guesses_at_one_service_count_while_another_is_down(start, service):
    asked = service(by_user({"guess": as_json({}, 403), "anna": as_json({"result": "allow"})}))
    url = f"http://127.0.0.1:{closed_port()}/"
    down = f'[[authentication]]\nname = "d"\nkind = "http"\nurl = "{url}"\n'
    broker = start(down + provider(asked) + "[auth]\nfailures_per_second_max = 1\n")
    guesses_are_paced(broker, asked, UNAVAILABLE)


def test_a_refusal_by_one_provider_is_none_where_the_next_says_yes(start, service, passwords):
    asked = service(lambda *_: as_json({}, 401))
    config = provider(asked) + 'authentication = ["s", "file"]\n'
    config += '[auth]\npassword_file = "{dir}/passwords"\nfailures_per_second_max = 1\n'
    broker = start(config, {"passwords": passwords})
    for _ in range(2 * GUESSES_AT_ONCE):
        assert reason(broker, user="anna", password="secret") == 0


def test_a_refused_takeover_counts_as_a_failed_login(start, service):
    asked = service(lambda *_: as_json({"result": "allow"}))
    broker = start(provider(asked) + "[auth]\nfailures_per_second_max = 1\n")
    stranger = {"client_id": "c1", "user": "bruno", "password": "x"}
    with Peer(broker.port()).accepted(client_id="c1", user="anna", password="x") as owner:
        for _ in range(GUESSES_AT_ONCE):
            assert reason(broker, ATTACKER, **stranger) == NOT_AUTHORIZED
        waiting = [dial(broker, ATTACKER) for _ in range(2 * LOGINS)]
        for peer in waiting:
            peer.send(connect(**stranger))
        for number in range(LOGINS):
            assert reason(broker, client_id=f"own {number}", user="anna", password="x") == 0
        tries = sum(b"bruno" in body for _, _, body, _ in asked.asked)
        assert tries < GUESSES_AT_ONCE + LOGINS // 2, "one a second, after the first"
        for peer in waiting:
            peer.close()
        owner.ping()
