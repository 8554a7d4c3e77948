"""The picture of the long run. Needs matplotlib (the extra ``bench``)."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.restarts import LongRun

WIDTH_INCHES, HEIGHT_INCHES = 14.0, 4.0
DOTS_PER_INCH = 110
PANELS = (
    ("fds", "descriptors", 1),
    ("threads", "threads", 1),
    ("ports", "TCP ports", 1),
    ("rss_kib", "resident MiB", 1024),
)


def draw(found: LongRun, path: Path) -> None:
    """Descriptors, threads and memory of each process over the restarts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    for axis, (sign, title, unit) in zip(axes, PANELS, strict=True):
        for name, signs in found.signs.items():
            axis.plot(found.restarts, [v / unit for v in signs[sign]], linewidth=1.0, label=name)
        axis.set(title=title, xlabel="restarts")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)
