#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the pictures of docs/concepts/debugging.md from the output of
05_debugging.

    tools/pictures.py <folder of 05_debugging> docs/images

sharding.svg and partial.svg are copied. explain.txt becomes explain.svg, with
the chosen strategy highlighted. trace.json becomes trace.svg: a band for each
rank, time to the right, and nested operators below their caller.
"""
import json
import sys
from html import escape
from pathlib import Path

LETTER, LINE, GAP = 7, 18, 12  # pixels, as in sharding.svg
COPIED = ("sharding.svg", "partial.svg")

# --- all pictures ------------------------------------------------------------


def rectangle(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}">{inside}</rect>'
    )


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve"{more}>{escape(words)}</text>'


def svg(width: float, height: float, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="11">'
    )
    return "\n".join([head, rectangle(0, 0, width, height, "white"), *body, "</svg>\n"])


# --- explain -----------------------------------------------------------------


def picture_of_text(lines: list[str]) -> str:
    width = 2 * GAP + LETTER * max(map(len, lines))
    body = []
    for number, line in enumerate(lines):
        y = GAP + LINE * number
        if line.lstrip().startswith("*"):
            body.append(rectangle(GAP / 2, y, width - GAP, LINE, "#abebc6"))
        bold = "" if line.startswith(" ") else ' font-weight="bold"'
        body.append(text(GAP, y + LINE - 5, line, bold))
    return svg(width, LINE * len(lines) + 2 * GAP, body)


# --- the trace ---------------------------------------------------------------

FILLS = {
    "range": "#d6dbdf",
    "node": "#fad7a0",
    "operator": "#aed6f1",
    "operator on DTensors": "#85c1e9",
    "collective": "#f1948a",
    "wait": "#d2b4de",
}
WIDTH, DEPTH, ROW = 1000, 4, 22  # of the time axis, rows per rank, their height


def kind_of(event: dict) -> str:
    distributed = event["cat"] == "operator" and "mesh" in event["args"]
    return "operator on DTensors" if distributed else event["cat"]


def depths_of(events: list[dict]) -> list[int]:
    """Returns the nesting depth of each event. Events are sorted by begin."""
    depths, open_ends = [], []
    for event in events:
        while open_ends and open_ends[-1] <= event["ts"]:
            open_ends.pop()
        depths.append(len(open_ends))
        open_ends.append(event["ts"] + event["dur"])
    return depths


def short(name: str) -> str:
    """autograd::engine::evaluate_function: MmBackward0 -> MmBackward0."""
    return name.replace("autograd::engine::evaluate_function: ", "").split("::")[-1]


def band(events: list[dict], begin: float, scale: float, top: float) -> list[str]:
    body = []
    for event, depth in zip(events, depths_of(events)):
        width = event["dur"] * scale
        if depth >= DEPTH or width < 0.5:
            continue
        x, y = 2 * GAP + (event["ts"] - begin) * scale, top + ROW * depth
        title = f'{event["name"]}, {event["dur"]:.0f} us'
        body.append(rectangle(x, y, max(width - 0.5, 0.5), ROW - 2, FILLS[kind_of(event)], title))
        fits = int((width - 4) // (LETTER - 0.3))
        label = short(event["name"])
        if len(label) <= fits or fits >= 8:
            body.append(text(x + 3, y + 14, label if len(label) <= fits else label[: fits - 1] + "…"))
    return body


def axis(length: float, scale: float, top: float, height: float) -> list[str]:
    """Returns a line with its time in microseconds about every hundred pixels."""
    step = next(s for s in (10**e * m for e in range(9) for m in (1, 2, 5)) if s * scale > 90)
    body = []
    for time in range(0, int(length) + 1, step):
        x = 2 * GAP + time * scale
        body.append(rectangle(x, top, 0.5, height, "#bbb"))
        if x + 8 * LETTER < WIDTH + 4 * GAP:
            body.append(text(x + 3, top + 9, f"{time} us", ' fill="#777"'))
    return body


def legend(kinds: set[str], y: float) -> list[str]:
    body, x = [], float(2 * GAP)
    for name, fill in ((n, f) for n, f in FILLS.items() if n in kinds):
        body += [rectangle(x, y, 12, 12, fill), text(x + 17, y + 10, name)]
        x += 17 + LETTER * len(name) + 2 * GAP
    return body


def picture_of_trace(trace: dict) -> str:
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    begin = min(e["ts"] for e in events)
    length = max(e["ts"] + e["dur"] for e in events) - begin
    scale = WIDTH / length
    ranks = sorted({e["pid"] for e in events})
    height = GAP + len(ranks) * (ROW * DEPTH + LINE + GAP) + 3 * LINE
    body = axis(length, scale, GAP, height - 2 * LINE - GAP)
    top = GAP + LINE
    for rank in ranks:
        body.append(text(GAP, top + 12, f"rank {rank}", ' font-weight="bold"'))
        of_rank = sorted((e for e in events if e["pid"] == rank), key=lambda e: (e["ts"], -e["dur"]))
        body += band(of_rank, begin, scale, top + LINE)
        top += ROW * DEPTH + LINE + GAP
    body += legend({kind_of(e) for e in events}, height - LINE - 6)
    return svg(WIDTH + 4 * GAP, height, body)


def main() -> None:
    written, images = map(Path, sys.argv[1:])
    images.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        (images / name).write_text((written / name).read_text())
    lines = (written / "explain.txt").read_text().rstrip().split("\n")
    (images / "explain.svg").write_text(picture_of_text(lines))
    trace = json.loads((written / "trace.json").read_text())
    (images / "trace.svg").write_text(picture_of_trace(trace))


if __name__ == "__main__":
    main()
