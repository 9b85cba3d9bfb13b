"""Reports of flock in a real browser: nothing overlaps, is cut off without a hint, or leaves the page."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/flock/examples"
# A run, one with a fault, one at several QoS, one with phases, and the tables of reports.
FOUND = EXAMPLES.glob("**/*.html")
PAGES = sorted(path.relative_to(EXAMPLES) for path in FOUND)

# Labels that lie on each other, and those beyond the page.
LABELS = """() => {
  const out = [];
  for (const svg of document.querySelectorAll('svg')) {
    const all = [...svg.querySelectorAll('text')].map(text => [text, text.getBoundingClientRect()]);
    for (const [at, [text, box]] of all.entries()) {
      const name = `${svg.getAttribute('aria-label')}: ${text.textContent}`;
      if (box.left < 0 || box.right > innerWidth) out.push(`${name} is off the page`);
      for (const [other, its] of all.slice(at + 1)) {
        const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (wide > 1 && high > 2) out.push(`${name} and ${other.textContent} overlap`);
      }
    }
  }
  return out;
}"""

# What is wider than the page, and has no place of its own to be scrolled in, with shadows as a hint.
CUT = """() => {
  const out = [];
  for (const element of document.querySelectorAll('main *')) {
    if (element.closest('svg') || element.getBoundingClientRect().right <= innerWidth + 0.5) continue;
    const place = element.closest('.scroll, pre');
    const hint = place && getComputedStyle(place);
    const shown = place && (place.matches('pre') || hint.backgroundImage.includes('gradient'));
    if (!shown || hint.overflowX !== 'auto') out.push(`${element.tagName} ${element.className}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) out.push('the page');
  return out;
}"""


# Lines of a chart that the legend does not tell apart, and figures in a unit that is too small for them.
UNCLEAR = """() => {
  const out = [];
  for (const figure of document.querySelectorAll('figure')) {
    const title = figure.querySelector('figcaption, h3, svg')?.textContent;
    const groups = [...figure.querySelectorAll('g.line')].map(
      line => line.querySelector('polyline')?.getAttribute('class')).filter(Boolean);
    for (const look of new Set(groups)) {
      if (groups.filter(other => other === look).length > 1) out.push(`${title}: two lines are ${look}`);
    }
  }
  for (const [raw] of document.querySelector('main').innerText.matchAll(/[0-9]{5,}(\\.[0-9]+)? (us|ms|B|KB)\\b/g)) {
    out.push(raw);
  }
  return out;
}"""


@pytest.fixture
def report(chromium):
    """Opens a page: `report(path, width)`."""
    opened = []

    def make(path, width, **options):
        size = {"width": width, "height": 900}
        opened.append(chromium.new_context(viewport=size, **options))
        page = opened[-1].new_page()
        page.goto(path.resolve().as_uri())
        return page

    yield make
    for context in opened:
        context.close()


@pytest.mark.parametrize("width", [420, 1072, 1400])
@pytest.mark.parametrize("name", PAGES, ids=str)
def test_labels_do_not_overlap_and_what_is_cut_off_can_be_scrolled(report, name, width):
    page = report(EXAMPLES / name, width)
    assert page.evaluate(LABELS) == []
    assert page.evaluate(CUT) == []


# Tables that have to be scrolled though the window has place for more of them.
NARROW = """() => [...document.querySelectorAll('.scroll')].filter(place =>
  place.offsetParent && place.scrollWidth > place.clientWidth && place.clientWidth < innerWidth - 80
).map(place => `${place.scrollWidth} px in ${place.clientWidth} of ${innerWidth}`)"""


@pytest.mark.parametrize("width", [1280, 1600])
@pytest.mark.parametrize("name", PAGES, ids=str)
def test_a_table_that_is_wider_than_the_text_uses_the_window(report, name, width):
    assert report(EXAMPLES / name, width).evaluate(NARROW) == []


@pytest.mark.parametrize("name", PAGES, ids=str)
def test_lines_differ_and_units_suit_their_figures(report, name):
    assert report(EXAMPLES / name, 1072).evaluate(UNCLEAR) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_page(report, scheme):
    page = report(EXAMPLES / "MB-B1.html", 1072, color_scheme=scheme)
    lightness = """colour => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + +part, 0) / 3"""
    for selector in ("h1", ".tile b", "svg text", "figcaption"):
        colours = page.evaluate(
            """selector => [document.querySelector(selector), document.body].map(
                 (element, at) => getComputedStyle(element)[
                   at ? 'backgroundColor' : element.closest('svg') ? 'fill' : 'color'])""",
            selector,
        )
        text, back = (page.evaluate(f"({lightness})({colour!r})") for colour in colours)
        assert abs(text - back) > 90, (selector, colours)


def test_print_unfolds_the_scenario_and_cuts_no_table(report):
    page = report(EXAMPLES / "MB-B1.html", 718)
    folded = page.locator("details:not([open])")
    assert folded.count() > 0
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert folded.count() == 0
    assert page.get_by_text("stage publish").first.is_visible()
    cut = """() => [...document.querySelectorAll('table, pre')].filter(
      element => element.getBoundingClientRect().right > innerWidth + 0.5).length"""
    assert page.evaluate(cut) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert folded.count() > 0


def test_a_report_is_one_file(report):
    asked = []
    page = report(EXAMPLES / "MB-B1.html", 1072)
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == 1
