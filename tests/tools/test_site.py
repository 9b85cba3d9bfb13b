"""The documentation as a site: every page is in its summary, and its links lead somewhere."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "packaging/site"))
import build  # noqa: E402


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    build.stage()
    return tmp_path / "site"


def test_every_page_is_in_the_summary_once(site):
    found = re.findall(r"\[(.+)\]\(([^)]+)\)", (site / "src/SUMMARY.md").read_text())
    titles, listed = zip(*found, strict=True)
    assert len(set(titles)) == len(set(listed)) == len(listed) > 80
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    expected |= {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "lab/README.md"}
    assert expected <= set(listed)
    assert all((site / "src" / page).exists() for page in listed)


def test_pages_follow_the_order_of_the_list_of_documents(site):
    summary = (site / "src/SUMMARY.md").read_text()
    places = [summary.index(f"(docs/use/{page}.md)") for page in ("operations", "transports", "api")]
    assert places == sorted(places)


def test_links_outside_code_lead_to_what_the_site_has(monkeypatch):
    pages = {"docs/a.md": "[b](b.md#x) [lab](../lab) [rust](../src/x.rs) [data](d.json)\n"
                          "```text\n[not](a.link)\n```\n[home](../lab/README.md)\n"}
    monkeypatch.setattr(build, "ROOT", type("Root", (), {
        "__truediv__": lambda _, page: type("File", (), {"read_text": lambda _: pages[page]})()
    })())
    files = {"docs/a.md", "docs/b.md", "lab/README.md", "src/x.rs", "docs/d.json"}
    copied = set()
    text = build.staged("docs/a.md", files, {"docs/b.md", "lab/README.md"}, copied)
    assert text == ("[b](b.md#x) [lab](../lab/index.md) rust [data](d.json)\n"
                    "```text\n[not](a.link)\n```\n[home](../lab/index.md)\n")
    assert copied == {"docs/d.json"}


def test_dead_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#in">b</a><a href="#top">t</a>')
    (tmp_path / "b.html").write_text('<h1 id="in"></h1><img src="c.svg"><a href="a.html#out">a</a>')
    assert sorted(build.dead_links(tmp_path)) == [
        "b.html: no file c.svg", "b.html: no heading a.html#out"
    ]


def test_the_site_has_no_dead_link(site):
    subprocess.run([build.MDBOOK, "build", site], check=True, capture_output=True)
    assert len(list((site / "book").rglob("*.html"))) > 80
    assert build.dead_links(site / "book") == []
    assert list((site / "book").glob("searchindex*.js"))
