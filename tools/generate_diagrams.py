"""Write docs/diagrams/*.svg, the drawings of docs/concepts.md; with --check only compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from generated import publish

STYLE = """\
text { font: 13px sans-serif; fill: #1c2b33; text-anchor: middle }
.small { font-size: 11px; fill: #51636d }
.left { text-anchor: start }
.title { font-weight: bold }
rect { fill: #eef3f6; stroke: #51636d; rx: 4 }
.page { fill: #ffffff; stroke: none }
.good { fill: #dff0df }
.bad { fill: #f6dcdc }
.faint { fill: #fafafa; stroke-dasharray: 4 3 }
line { stroke: #51636d; stroke-width: 1.4 }
.life { stroke-dasharray: 3 4 }
.strike { stroke: #a33; stroke-width: 1.6 }"""

ARROW = '<marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0 8 4 0 8z" fill="#51636d"/></marker>'  # noqa: E501


class Drawing:
    """Collects shapes and returns them as SVG. All lengths are pixels.

    Attributes:
        width: the width of the drawing.
        height: its height.
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._shapes = [f"<title>{escape(title)}</title>", f'<rect class="page" width="{width}" height="{height}"/>']

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{_class(style)}>{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, lines: Sequence[str], style: str = "") -> None:  # noqa: PLR0917 - a place, a size and what stands there
        """Draw a box with lines of text in its middle. The first line is the title if there are several."""
        self._shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{_class(style)}/>')
        top = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            kind = "small" if number else "title" if len(lines) > 1 else ""
            self.text(x + width / 2, top + 16 * number, line, kind)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "", *, arrow: bool = False) -> None:
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self._shapes.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{_class(style)}{end}/>')

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<style>\n{STYLE}\n</style>"]
        return "\n".join([*parts, f"<defs>{ARROW}</defs>", *self._shapes, "</svg>"]) + "\n"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""


def life_of_a_change() -> Drawing:
    stations = (
        ("client", "SET 21A_IPA", "vbucket = hash of the key"),
        ("node", "assigns seqno and cas,", "appends a frame to its log"),
        ("stream", "sends frames of the log,", "one snapshot after another"),
        ("consumer", "turns frames into", "Arrow columns"),
        ("Spark", "plans a batch and", "reads it in tasks"),
        ("changelog", "one row for each change;", "only ever appended to"),
        ("current", "one row for each", "document that exists"),
        ("readers", "Spark, DuckDB,", "Polars, pandas"),
    )
    drawing = Drawing("Life of a change", 860, 270)
    for number, lines in enumerate(stations):
        row, column = divmod(number, 4)
        x = 20 + 215 * (column if row == 0 else 3 - column)
        drawing.box(x, 30 + 130 * row, 175, 76, lines, "good" if number in (5, 6) else "")
        if number in (0, 1, 2):
            drawing.line(x + 175, 68, x + 213, 68, arrow=True)
        elif number == 3:
            drawing.line(x + 87, 106, x + 87, 158, arrow=True)
        elif number < 7:
            drawing.line(x, 198, x - 38, 198, arrow=True)
    return drawing


def cells(drawing: Drawing, x: float, y: float, made: Sequence[tuple[str, str]]) -> None:
    """Draw (text, style) side by side, as places of a log."""
    for number, (text, style) in enumerate(made):
        drawing.box(x + 84 * number, y, 76, 40, [text], style)


def rollback() -> Drawing:
    drawing = Drawing("A rollback", 860, 400)
    rows = (
        ("the node, branch A", [("1", "good"), ("2", "good"), ("3", "good"), ("4", "bad"), ("5", "bad")]),
        ("the consumer has", [("1", "good"), ("2", "good"), ("3", "good"), ("4", "bad"), ("5", "bad")]),
        ("the node after the crash", [("1", "good"), ("2", "good"), ("3", "good"), ("4 of B", "")]),
        ("the consumer afterwards", [("1", "good"), ("2", "good"), ("3", "good"), ("4 of B", "")]),
    )
    notes = (
        "seqnos 4 and 5 were sent, but not yet on disk",
        "position: vbuuid A, seqno 5",
        "failover log: B since 3, A since 0",
        "rollback row with seqno 3, then the new change",
    )
    for number, ((label, made), note) in enumerate(zip(rows, notes, strict=True)):
        y = 30 + (50 if number > 1 else 0) + 80 * number
        drawing.text(20, y + 25, label, "left title")
        cells(drawing, 210, y, made)
        drawing.text(210, y + 57, note, "left small")
    drawing.line(690, 130, 690, 228, arrow=True)
    drawing.text(700, 170, "STREAM_REQ A, 5", "left small")
    drawing.line(655, 240, 655, 142, arrow=True)
    drawing.text(612, 205, "ROLLBACK 3", "small")
    return drawing


def snapshots() -> Drawing:
    drawing = Drawing("Deduplication and snapshots", 860, 300)
    log = [("a = 1", "faint"), ("b = 1", "faint"), ("a = 2", "good"), ("c = 1", "good"), ("b deleted", "good")]
    drawing.text(20, 75, "log of the vbucket", "left title")
    for number in range(5):
        drawing.text(248 + 84 * number, 38, f"seqno {number + 1}", "small")
    cells(drawing, 210, 50, log)
    for number in (0, 1):
        drawing.line(214 + 84 * number, 86, 282 + 84 * number, 54, "strike")
    drawing.text(210, 108, "newer versions of a and b supersede the versions 1 and 2", "left small")
    drawing.text(20, 155, "snapshot 1 to 5", "left title")
    cells(drawing, 210, 130, [("", "faint"), ("", "faint"), *log[2:]])
    drawing.text(210, 188, "sent: 3, 4, 5; complete at seqno 5", "left small")
    drawing.text(20, 235, "cut off after 4", "left title")
    cells(drawing, 210, 210, [("", "faint"), ("", "faint"), *log[2:4], ("?", "bad")])
    drawing.text(210, 268, "not a state of the bucket: at seqno 4 it had b = 1, which was not sent", "left small")
    return drawing


def exactly_once() -> Drawing:
    steps = (
        ("1  plan", "Spark stores the offsets", "of batch n"),
        ("2  append", "one Delta commit: rows", "and the number n"),
        ("3  commit", "Spark marks batch n", "as done"),
        ("4  merge", "current takes the new", "changelog versions"),
    )
    crashes = (
        ("a crash here", "the same batch n", "runs again"),
        ("a crash here", "the changelog has n,", "so it is not appended"),
        ("a crash here", "the next run merges", "what is missing"),
    )
    drawing = Drawing("Exactly once into Delta", 860, 260)
    for number, lines in enumerate(steps):
        x = 20 + 215 * number
        drawing.box(x, 30, 175, 76, lines, "good" if number in (1, 3) else "")
        if number < 3:
            drawing.line(x + 175, 68, x + 213, 68, arrow=True)
            drawing.line(x + 194, 72, x + 194, 158, "life")
            drawing.box(x + 109, 160, 170, 76, crashes[number], "bad")
    return drawing


DIALECTS = {
    "TAP": ("> TAP_CONNECT", "< CHECKPOINT_START", "< MUTATION ...", "> acknowledgement", "< CHECKPOINT_END"),
    "UPR draft": ("> STREAM_REQ", "< OK", "< STREAM_START", "< SNAPSHOT_START", "< MUTATION ...", "< SNAPSHOT_END"),
    "UPR": ("> STREAM_REQ", "< STREAM_START", "< SNAPSHOT_START", "< MUTATION ...", "< SNAPSHOT_END", "< STREAM_END"),
    "DCP": (
        "> OPEN",
        "> CONTROL",
        "> STREAM_REQ",
        "< SNAPSHOT_MARKER",
        "< MUTATION ...",
        "> BUFFER_ACK",
        "< STREAM_END",
    ),
}
"""The usual messages of each dialect in their order. > goes to the producer, < to the consumer."""


def dialects() -> Drawing:
    drawing = Drawing("The four dialects side by side", 860, 380)
    for number, (name, messages) in enumerate(DIALECTS.items()):
        left, right = 40 + 212 * number, 176 + 212 * number
        drawing.text((left + right) / 2, 24, name, "title")
        drawing.text(left, 46, "consumer", "small")
        drawing.text(right, 46, "producer", "small")
        drawing.line(left, 54, left, 365, "life")
        drawing.line(right, 54, right, 365, "life")
        for place, message in enumerate(messages):
            y = 88 + 42 * place
            begin, end = (left, right) if message[0] == ">" else (right, left)
            drawing.line(begin, y, end, y, arrow=True)
            drawing.text((left + right) / 2, y - 6, message[2:], "small")
    return drawing


DRAWINGS: tuple[Callable[[], Drawing], ...] = (life_of_a_change, rollback, snapshots, exactly_once, dialects)

if __name__ == "__main__":
    publish({f"diagrams/{draw.__name__.replace('_', '-')}.svg": draw().svg() for draw in DRAWINGS})
