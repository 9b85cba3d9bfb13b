#!/usr/bin/env python3
"""Builds the documentation as a site, with search, in target/docs-site/book.

The pages stay where they are in the repository. This script copies them to target/docs-site/src,
writes the SUMMARY.md of mdBook, runs mdBook, and checks every link of the result. Every page
below docs is in the summary: a new page needs no entry. `--stage` only copies and writes.
`tests/setup site` installs mdBook.
"""

import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "target/docs-site"
MDBOOK = Path(__file__).with_name(".venv") / "bin/mdbook"

# Title of a part, and its folder or pages. The order in a folder is that of docs/README.md.
PARTS = [
    ("Tutorials", ["docs/tutorials"]),
    ("Use the broker", ["docs/use", "examples", "packaging"]),
    ("Measure with flock", ["docs/flock"]),
    ("Change the code", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/develop", "lab", "fuzz",
                         "SECURITY.md"]),
    ("Decisions", ["docs/decisions"]),
]
FIRST = ["README.md", "docs/README.md"]
LAST = ["CHANGELOG.md"]

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)


def tracked():
    """The files of the repository, those that are not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def title(page):
    heading = re.search(r"^# (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    if heading is None:
        raise SystemExit(f"{page}: no heading: begin the page with `# Title`")
    return re.sub(r"[`\[\]]", "", heading[1])


def resolved(page, link):
    """The file of a link in a page, from the root of the repository."""
    return os.path.normpath(os.path.join(os.path.dirname(page), link.split("#")[0]))


def is_local(link):
    return not link.startswith("#") and not re.match(r"[a-z]+:", link)


def in_order(pages):
    """Pages as docs/README.md names them first, then the others by name. A README leads its folder."""
    links = [resolved("docs/README.md", link)
             for _, link in LINK.findall((ROOT / "docs/README.md").read_text()) if is_local(link)]

    def place(page):
        named = links.index(page) if page in links else len(links)
        return (not page.endswith("README.md"), named, page)

    return sorted(pages, key=place)


def parts(files):
    """Title and pages of each part."""
    pages = [file for file in files if file.endswith(".md")]
    found = []
    for name, places in PARTS:
        own = []
        for place in places:
            inside = [page for page in pages if page == place or page.startswith(place + "/")]
            own += in_order(inside)
        found.append((name, own))
    return found


def summary(files):
    lines = ["# Summary", ""]
    lines += [f"[{title(page)}]({page})" for page in FIRST]
    for name, pages in parts(files):
        if not pages:
            continue
        lines += ["", f"# {name}", ""]
        is_folded = pages[0] == "docs/decisions/README.md"
        for number, page in enumerate(pages):
            indent = "  " if is_folded and number else ""
            lines.append(f"{indent}- [{title(page)}]({page})")
    lines += ["", "---", "", *(f"[{title(page)}]({page})" for page in LAST), ""]
    return "\n".join(lines)


def pages_of(files):
    return [*FIRST, *(page for _, pages in parts(files) for page in pages), *LAST]


def staged(page, files, chosen, copied):
    """The text of a page. Files that it links are added to `copied`; a link to a folder leads to its
    README, and a link to what the site does not have becomes plain text."""

    def mended(match):
        text, link = match[1], match[2]
        if not is_local(link):
            return match[0]
        target = resolved(page, link)
        # mdBook writes the README of a folder as its index.
        if f"{target}/README.md" in chosen:
            return f"{text}({link.rstrip('/')}/index.md)"
        if target in chosen:
            return f"{text}({link.replace('README.md', 'index.md')})"
        if target in files and not target.endswith((".md", ".rs")):
            copied.add(target)
            return match[0]
        return text.strip("!")[1:-1]

    outside = FENCE.split((ROOT / page).read_text())
    outside[::2] = [LINK.sub(mended, text) for text in outside[::2]]
    return "".join(outside)


def stage():
    files = tracked()
    chosen, copied = set(pages_of(files)), set()
    shutil.rmtree(SITE, ignore_errors=True)
    for page in chosen:
        path = SITE / "src" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(staged(page, files, chosen, copied))
    for file in copied:
        path = SITE / "src" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, path)
    (SITE / "src/SUMMARY.md").write_text(summary(files))
    shutil.copyfile(Path(__file__).with_name("book.toml"), SITE / "book.toml")


class Page(html.parser.HTMLParser):
    """The links of a page, and what links may name in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text(errors="replace"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        link = attrs.get("href") or attrs.get("src")
        if link and tag in ("a", "img", "script", "link") and is_local(link.lstrip("#")):
            self.links.append(link)


def dead_links(book):
    """`PAGE: LINK` for each link without a file or heading."""
    made = {path: Page(path) for path in book.rglob("*.html")}
    faults = []
    for path, page in made.items():
        # The page of errors has absolute links of the place where it will be served.
        if path.name in ("404.html", "toc.html"):
            continue
        for link in page.links:
            file, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                faults.append(f"{path.relative_to(book)}: no file {link}")
            elif anchor and target in made and anchor not in made[target].ids:
                faults.append(f"{path.relative_to(book)}: no heading {link}")
    return faults


def main():
    stage()
    if "--stage" in sys.argv[1:]:
        return 0
    subprocess.run([MDBOOK, "build", SITE], check=True)
    book = SITE / "book"
    faults = dead_links(book)
    if faults:
        print("\n".join(faults))
        return 1
    print(f"docs-site: {len(list(book.rglob('*.html')))} pages in {book}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
