"""The plots of the benchmarks' pages, drawn from the traces in the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import Result

WIDTH_INCHES, HEIGHT_INCHES = 11.0, 4.2
DOTS_PER_INCH = 110


def draw(result: Result, directory: Path) -> Path | None:
    """Draw ``<name>.png``, if the result has a plot."""
    drawing = _DRAWINGS.get(result.name)
    if drawing is None or not result.traces:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    drawing(axes, result.traces)
    figure.tight_layout()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.name}.png"
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _draw_recovery(axes: Any, traces: dict[str, Any]) -> None:
    for axis, (peer, workers) in zip(axes, traces.items(), strict=True):
        names = [f"survivor {i}" for i in range(len(workers) - 2)] + ["killed", "replacement"]
        for place, (name, points) in enumerate(zip(names, workers, strict=True)):
            size = 8 - 2 * place  # rings within rings: workers commit the same steps
            axis.plot(*_columns(points), "o-", mfc="none", ms=size, lw=0.7, label=name)
        axis.axvline(0, color="red", linewidth=0.8, linestyle="--")
        axis.set(title=f"{peer}: SIGKILL at 0", xlabel="seconds", ylabel="committed step")
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)


def _draw_goodput(axes: Any, traces: dict[str, Any]) -> None:
    for peer, runs in traces.items():
        for index, run in enumerate(runs):
            name = f"a kill every {run['period_s']:g} s" if run["period_s"] else "undisturbed"
            style = {
                "color": f"C{index}",
                "linestyle": "-" if peer == "ftrun" else ":",
                "label": f"{peer}, {name}",
            }
            axes[0].plot(*_columns(run["progress"]), **style)
            axes[1].plot(*_columns(run["loss"]), linewidth=0.9, **style)
    axes[0].set(title="steps committed", xlabel="seconds", ylabel="steps")
    axes[1].set(title="loss", xlabel="step", ylabel="cross entropy")
    axes[0].legend(fontsize="small")
    for axis in axes:
        axis.grid(alpha=0.3)


def _columns(points: list[Any]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


_DRAWINGS = {"recovery": _draw_recovery, "goodput": _draw_goodput}
