"""The summary of a suite as a picture: a panel per row, a bar per broker, what a message costs. Pure
functions of the results that `flock versus` leaves, as the tables of `bench_tables.py` are."""

from xml.sax.saxutils import escape

from bench_tables import cost

PANELS_ABREAST = 3
PANEL = 320
MARGIN = 24
HEAD = 64
FOOT = 30
PANEL_HEAD = 46
LINE = 22
BAR = 14
NAME = 84
BAR_MAX = 140

INK, FAINT, PAPER = "#1f2933", "#6b7785", "#ffffff"
OWN, OTHER = "#c8372d", "#a9b4c0"


def chart(title, measured, titles, brokers, source):
    """An SVG. `measured`: row to broker to cell; `titles`: row to what it is; `source`: where the
    figures come from. A broker that did not do the work has its reason instead of a bar."""
    columns = min(PANELS_ABREAST, len(measured))
    depth = PANEL_HEAD + LINE * len(brokers) + MARGIN
    width = 2 * MARGIN + columns * PANEL
    height = HEAD + -(-len(measured) // columns) * depth + FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        text(MARGIN, 38, title, size=19, weight=600),
    ]
    for number, (row, cells) in enumerate(measured.items()):
        x = MARGIN + number % columns * PANEL
        y = HEAD + number // columns * depth
        lines += panel(x, y, row, titles[row], cells, brokers)
    lines += [text(MARGIN, height - 14, source, size=11, fill=FAINT), "</svg>"]
    return "\n".join(lines) + "\n"


def panel(x, y, row, about, cells, brokers):
    costs = {one: cell.median(cost) for one, cell in cells.items() if not cell.shortcomings()}
    costs = {one: value for one, value in costs.items() if value}
    most = max(costs.values(), default=1)
    lines = [text(x, y + 14, row, weight=600), text(x, y + 30, about, size=11, fill=FAINT)]
    for number, broker in enumerate(brokers):
        middle = y + PANEL_HEAD + LINE * number + LINE / 2
        lines.append(text(x, middle + 4, broker))
        if broker in costs:
            length = max(BAR_MAX * costs[broker] / most, 1)
            lines.append(bar(x + NAME, middle, length, broker))
            told = text(x + NAME + length + 6, middle + 4, figure(costs[broker]))
        else:
            short = cells[broker].shortcomings()[:1] if broker in cells else []
            told = text(x + NAME, middle + 4, *short or ["not measured"], size=11, fill=FAINT)
        lines.append(told)
    return lines


def figure(value):
    """Three digits, or as many as there are before the point."""
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def bar(x, middle, length, broker):
    colour = OWN if broker.startswith("quelea") else OTHER
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
