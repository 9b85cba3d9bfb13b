"""The judge of the torture finds what is planted, and nothing in a history without fault."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab/torture"))

import history as h


def whole():
    """Three messages each at QoS 1, at QoS 2, shared and retained, with a kill between them."""
    history = [
        h.Subscribed("plain", "one/#", 1),
        h.Subscribed("twice", "two/+", 2),
        h.Subscribed("member-0", "$share/crew/shared/#", 1),
        h.Subscribed("member-1", "$share/crew/shared/#", 1),
    ]
    for number in range(3):
        for topic, qos in (("one/0", 1), ("two/0", 2), ("shared/0", 1), ("kept/0", 1)):
            history.append(h.Sent(topic, number, qos, topic == "kept/0"))
            history.append(h.Acknowledged(topic, number))
        history.append(h.Received("plain", "one/0", number, 1, False))
        history.append(h.Received("twice", "two/0", number, 2, False))
        history.append(h.Received(f"member-{number % 2}", "shared/0", number, 1, False))
        if number == 1:
            history += [h.Killed(1.0), h.Ready(0.1), h.Asked("r")]
            history += [h.Retained("r", "kept/0", 1), h.Told("r")]
    return history


def findings(history):
    return {kind: len(texts) for kind, texts in h.judge(history).findings.items()}


def test_a_whole_history_is_clean():
    verdict = h.judge(whole())
    assert verdict.is_clean, str(verdict)
    assert verdict.counts["owed"] == 9
    assert verdict.counts["retained checked"] == 1


@pytest.mark.parametrize("client", ["plain", "twice", "member-0", "member-1"])
def test_each_missing_receipt_is_found(client):
    history = whole()
    for at, event in enumerate(history):
        if isinstance(event, h.Received) and event.client == client:
            assert findings(history[:at] + history[at + 1 :]) == {"lost": 1}


def test_what_was_never_acknowledged_is_owed_to_nobody():
    history = [h.Subscribed("plain", "#", 1), h.Sent("one/0", 0, 1, False)]
    assert findings(history) == {}
    assert findings([*history, h.Refused("one/0", 0, 0x97)]) == {}
    assert findings([*history, h.Acknowledged("one/0", 0)]) == {"lost": 1}


def test_a_repetition_is_counted_at_qos_1_and_found_at_qos_2():
    again = h.Received("plain", "one/0", 1, 1, True)
    verdict = h.judge([*whole(), again])
    assert verdict.is_clean and verdict.counts["repeated at QoS 1"] == 1
    again = h.Received("twice", "two/0", 1, 2, False)
    assert findings([*whole(), again]) == {"QoS 2 repeated": 1}


def test_a_message_after_a_later_one_is_found_but_not_in_a_group():
    history = whole()
    receipts = [at for at, event in enumerate(history) if isinstance(event, h.Received)]
    for client, expected in (("plain", {"out of order": 1}), ("twice", {"out of order": 1})):
        first, second = (at for at in receipts[:6] if history[at].client == client)
        swapped = list(history)
        swapped[first], swapped[second] = history[second], history[first]
        assert findings(swapped) == expected
    swapped = [e for e in history if not isinstance(e, h.Received) or e.client[:6] != "member"]
    backwards = [h.Received("member-0", "shared/0", number, 1, False) for number in (2, 1, 0)]
    assert findings(swapped + backwards) == {}


def test_a_resent_row_is_in_order_when_first_receipts_rise():
    history = [h.Subscribed("plain", "#", 1)]
    for number in range(3):
        history += [h.Sent("one/0", number, 1, False), h.Acknowledged("one/0", number)]
    for number in (0, 1, 0, 1, 2):
        history.append(h.Received("plain", "one/0", number, 1, False))
    verdict = h.judge(history)
    assert verdict.is_clean and verdict.counts["repeated at QoS 1"] == 2


def test_what_was_sent_before_a_suback_may_come_when_it_is_resent():
    history = [h.Sent("one/0", 0, 1, False), h.Subscribed("new", "one/#", 1)]
    history += [h.Sent("one/0", 1, 1, False), h.Received("new", "one/0", 1, 1, False)]
    history += [h.Killed(1.0), h.Received("new", "one/0", 0, 1, False)]
    history += [h.Received("new", "one/0", 1, 1, True)]
    assert findings(history) == {}


@pytest.mark.parametrize("number", [0, None])
def test_a_retained_message_that_is_old_or_missing_is_found(number):
    history = [event for event in whole() if not isinstance(event, h.Retained)]
    if number is not None:
        asked = next(at for at, event in enumerate(history) if isinstance(event, h.Asked))
        history.insert(asked + 1, h.Retained("r", "kept/0", number))
    assert findings(history) == {"retained": 1}


def test_a_reader_may_see_what_is_not_acknowledged_yet():
    history = [h.Sent("kept/0", 0, 1, True), h.Acknowledged("kept/0", 0)]
    history += [h.Asked("r"), h.Sent("kept/0", 1, 1, True)]
    history += [h.Retained("r", "kept/0", 1), h.Told("r")]
    assert findings(history) == {}


def test_a_forgotten_session_and_a_message_from_nowhere_are_found():
    assert findings([*whole(), h.Forgotten("plain")]) == {"session forgotten": 1}
    stray = h.Received("plain", "one/0", 7, 1, False)
    assert findings([*whole(), stray]) == {"never sent": 1}


def test_a_newcomer_is_owed_what_is_sent_between_its_suback_and_its_leave():
    history = [h.Sent("one/0", 0, 1, False), h.Acknowledged("one/0", 0)]
    history += [h.Subscribed("new", "one/#", 1)]
    history += [h.Sent("one/0", 1, 1, False), h.Acknowledged("one/0", 1)]
    assert findings(history) == {"lost": 1}
    history.append(h.Received("new", "one/0", 1, 1, False))
    history += [h.Unsubscribed("new", "one/#")]
    history += [h.Sent("one/0", 2, 1, False), h.Acknowledged("one/0", 2)]
    assert findings(history) == {}


def test_a_history_can_be_kept_and_judged_again(tmp_path):
    path = tmp_path / "history.jsonl"
    h.save(whole(), path)
    assert h.load(path) == whole()
    assert h.judge(h.load(path)).is_clean
