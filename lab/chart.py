"""Bar charts as SVG: a panel for each scenario, a bar for each broker. Pure functions of the
records in `lab/results`."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

from records import figure

PANELS_ABREAST = 3
PANEL = 320
MARGIN = 24
HEAD = 64
FOOT = 30
PANEL_HEAD = 46
LINE = 22
BAR = 14
NAME = 104
BAR_MAX = 120

INK, FAINT, PAPER = "#1f2933", "#6b7785", "#ffffff"
OWN, OTHER = "#c8372d", "#a9b4c0"


@dataclass(frozen=True)
class Panel:
    title: str
    about: str
    # Label, and its value or the words instead of a bar.
    bars: list


def chart(title, panels, source):
    """`source`: where the figures come from."""
    columns = min(PANELS_ABREAST, len(panels))
    depth = PANEL_HEAD + LINE * max(len(panel.bars) for panel in panels) + MARGIN
    width = 2 * MARGIN + columns * PANEL
    height = HEAD + -(-len(panels) // columns) * depth + FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        text(MARGIN, 38, title, size=19, weight=600),
    ]
    for number, panel in enumerate(panels):
        x = MARGIN + number % columns * PANEL
        y = HEAD + number // columns * depth
        lines += drawn(x, y, panel)
    lines += [text(MARGIN, height - 14, source, size=11, fill=FAINT), "</svg>"]
    return "\n".join(lines) + "\n"


def drawn(x, y, panel):
    most = max((value for _, value in panel.bars if not isinstance(value, str)), default=1)
    lines = [text(x, y + 14, panel.title, weight=600)]
    lines.append(text(x, y + 30, panel.about, size=11, fill=FAINT))
    for number, (label, value) in enumerate(panel.bars):
        middle = y + PANEL_HEAD + LINE * number + LINE / 2
        lines.append(text(x, middle + 4, label))
        if isinstance(value, str):
            lines.append(text(x + NAME, middle + 4, value, size=11, fill=FAINT))
        else:
            length = max(BAR_MAX * value / most, 1)
            lines.append(bar(x + NAME, middle, length, label))
            lines.append(text(x + NAME + length + 6, middle + 4, figure(value)))
    return lines


def bar(x, middle, length, label):
    colour = OWN if label.startswith("quelea") else OTHER
    top = middle - BAR / 2
    return (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{length:.1f}" height="{BAR}" rx="2"'
        f' fill="{colour}"/>'
    )


def text(x, y, words, size=13, weight=400, fill=INK):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}">'
        f"{escape(words)}</text>"
    )
