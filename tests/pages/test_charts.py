"""What charts say: rates without a zigzag, and ticks in round units."""

import re

from playwright.sync_api import expect

from fill import publish
from test_pages import Client

# The history has a sample each ten seconds, and polls follow it. A client sends 50 messages each five
# seconds, so that an interval of two seconds has 50 or none.
RATES = """async () => {
  const { rate } = await import("/dashboard/live.js");
  const times = [0, 10, 20, 30, 30.2, 32, 34, 36, 38, 40, 40.1, 42, 44, 46];
  const values = times.map((time) => 50 * Math.floor(time / 5));
  return rate({ times, series: new Map([["sent", values]]) }, "sent");
}"""

RESTART = """async () => {
  const { rate } = await import("/dashboard/live.js");
  const times = [0, 10, 20, 30, 40];
  return rate({ times, series: new Map([["sent", [100, 200, 0, 50, 100]]]) }, "sent");
}"""

# Texts that are drawn on canvases.
DRAWN = """
window.drawn = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
  window.drawn.push(text);
  return draw.call(this, text, ...rest);
};
"""


def test_a_rate_has_no_zigzag_where_polls_follow_the_history(empty, tab):
    dashboard = tab(empty)
    dashboard.open()
    dashboard.log_in("vera")
    dashboard.heading("Overview")
    first, *rates = dashboard.page.evaluate(RATES)
    assert first is None
    # Ten a second, whatever the interval.
    assert all(6 <= value <= 14 for value in rates), rates
    assert dashboard.page.evaluate(RESTART) == [None, 10, None, 5, 5]


def test_ticks_of_bytes_are_round(empty, tab):
    client = Client(empty, "source")
    client.send(b"".join(publish(f"a/{number}", b"x" * 9_000, retain=True) for number in range(50)))
    dashboard = tab(empty)
    page = dashboard.page
    page.add_init_script(DRAWN)
    dashboard.open()
    dashboard.log_in("vera")
    expect(page.get_by_role("img", name=re.compile("^Memory")).locator("canvas")).to_be_visible()
    ticks = [re.fullmatch(r"([\d.]+)\s(B|[KMGT]iB)", text) for text in page.evaluate("window.drawn")]
    found = {(float(tick[1]), tick[2]) for tick in ticks if tick}
    assert any(unit == "MiB" for _, unit in found), found
    # Multiples of a half: 1, 1.5 and 2 MiB, and never 19.1 MiB.
    assert all(number * 2 == int(number * 2) for number, _ in found), found
