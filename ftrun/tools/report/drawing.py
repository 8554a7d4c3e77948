"""Pictures of a report, as self-contained SVG.

Colours are classes of the page's style sheet, for light and dark. Not here: that style (page.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ftrun.base.words import duration, plain

WIDTH, HEIGHT = 860, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 22
TICKS = 4


def stacked(bands: Mapping[str, Sequence[float]], width_s: float, last_s: float, name: str) -> str:
    """Bands of time, each filled by use in the order of ``bands``. The last band is narrower."""
    count = max((len(row) for row in bands.values()), default=0)
    if not count:
        return ""
    span_s = width_s * (count - 1) + last_s
    rates = [
        sum(row[i] for row in bands.values()) / (last_s if i == count - 1 else width_s)
        for i in range(count)
    ]
    most = max(*rates, 1e-9)
    inner = WIDTH - LEFT - RIGHT
    shapes = []
    for i in range(count):
        long_s = last_s if i == count - 1 else width_s
        x, wide, y = (
            LEFT + inner * i * width_s / span_s,
            inner * long_s / span_s,
            float(HEIGHT - BOTTOM),
        )
        for use, row in bands.items():
            high = (HEIGHT - TOP - BOTTOM) * row[i] / long_s / most
            if high > 0:
                y -= high
                words = f"{use}: {row[i]:.3g} replica-seconds"
                shapes.append(
                    f'<rect class="{use_class(use)}" x="{x:.2f}" y="{y:.2f}" '
                    f'width="{wide:.2f}" height="{high:.2f}"><title>{escape(words)}</title></rect>'
                )
    return _picture("".join(shapes), name, span_s, most, "replicas")


def curve(points: Sequence[tuple[float, float]], span_s: float, name: str, unit: str) -> str:
    """One value over time."""
    if len(points) < 2 or span_s <= 0:
        return ""
    most = max(max(value for _, value in points), 1e-9)
    inner, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    places = " ".join(
        f"{LEFT + inner * at / span_s:.2f},{HEIGHT - BOTTOM - high * value / most:.2f}"
        for at, value in points
    )
    return _picture(f'<polyline class="curve" points="{places}"/>', name, span_s, most, unit)


def marks(times: Sequence[tuple[float, str]], span_s: float, name: str) -> str:
    """Moments on a time line, each with its words."""
    if not times or span_s <= 0:
        return ""
    inner = WIDTH - LEFT - RIGHT
    dots = "".join(
        f'<circle class="mark" cx="{LEFT + inner * at / span_s:.2f}" cy="14" r="5">'
        f"<title>{escape(plain(words))}</title></circle>"
        for at, words in times
    )
    line = f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="14" y2="14"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} 28" role="img" aria-label="{escape(name)}">{line}{dots}</svg>'
    )


def use_class(use: str) -> str:
    """The style class of a use of time."""
    return "use-" + "".join(char if char.isalnum() else "-" for char in use)


def _picture(shapes: str, name: str, span_s: float, most: float, unit: str) -> str:
    inner, base = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM
    ticks = "".join(
        f'<text x="{LEFT + inner * i / TICKS:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
        f"{duration(span_s * i / TICKS)}</text>"
        for i, anchor in enumerate(["start", "middle", "middle", "middle", "end"])
    )
    scale = "".join(
        f'<text x="{LEFT - 6}" y="{base - (base - TOP) * share + 4:.1f}" text-anchor="end">'
        f"{most * share:.4g}</text>"
        for share in (0, 0.5, 1)
    )
    axis = f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>'
    label = escape(f"{name}, in {unit}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{shapes}{axis}{ticks}{scale}</svg>"
    )
