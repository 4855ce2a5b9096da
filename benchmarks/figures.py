"""The report's figures, as SVG that is the same at every run: no date, no random identifiers, no fonts embedded."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.bound import REFERENCE
from benchmarks.replay import Result
from benchmarks.report import Grouped, at, cards_saved, mean_at
from scoring.model import Floats

REPRODUCIBLE: Final = {"svg.hashsalt": "tessera", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f7f7f",
    "#000000",
)  # Okabe, Ito
ZOOM: Final = 70  # percent arrived below which policies hardly differ

Value = Callable[[str, str, int], float]  # of a trace and a policy at a percent arrived, to be drawn as a bar


def draw(grouped: Grouped, folder: Path) -> list[Path]:
    """Write the figures into a folder and return their paths: one a trace, bars of all traces, cards saved.

    Cards are saved against FGD, if it ran on every trace.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(REPRODUCIBLE):  # type: ignore[arg-type]
        figures = {f"packing-{trace}": _curves(trace, policies) for trace, policies in grouped.items()}
        figures["packing-bars"] = _bars(
            grouped, "GPU allocation, % (cut axis)", lambda t, p, k: mean_at(grouped[t][p], k)
        )
        if all(REFERENCE in policies for policies in grouped.values()):
            figures["packing-cards"] = _bars(
                grouped,
                f"cards in use more than with {REFERENCE}",
                lambda t, p, k: cards_saved(grouped[t], p, k),
                zero=True,
            )
        return [_save(figure, folder / f"{name}.svg") for name, figure in figures.items()]


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # The writer leaves blanks at the ends of lines, which version control marks as mistakes.
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))
    return path


def _curves(trace: str, policies: Mapping[str, Sequence[Result]]) -> Figure:
    """Allocation and fragmentation against arrived load: the median over seeds, and half of the seeds as a band."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    allocation, fragmentation = figure.subplots(1, 2)
    for colour, (policy, runs) in zip(_colours(len(policies)), policies.items(), strict=True):
        _band(allocation, [run.allocation for run in runs], policy, colour, ZOOM)
        _band(fragmentation, [run.fragmentation_amount for run in runs], policy, colour, 0)
    allocation.set_ylabel("GPU allocation, % of all")
    fragmentation.set_ylabel("fragmented GPU, % of all")
    for axes in (allocation, fragmentation):
        axes.set_xlabel("arrived GPU demand, % of all")
        axes.grid(alpha=0.3)
    allocation.legend(loc="lower right", frameon=False)
    figure.suptitle(trace)
    return figure


def _band(axes: Axes, curves: Sequence[Mapping[str, float]], label: str, colour: str, first: int) -> None:
    last = min(max(map(int, curve)) for curve in curves)
    arrived = np.arange(min(first, last), last + 1)
    values: Floats = np.array([[at(curve, k) for k in arrived.tolist()] for curve in curves])
    low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
    axes.fill_between(arrived, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(arrived, middle, color=colour, label=label, linewidth=1.2)


def _bars(grouped: Grouped, label: str, value: Value, *, zero: bool = False) -> Figure:
    """A bar for each trace and policy, at 100 and at 130 % arrived. Without `zero` the axis is cut near the least."""
    policies = list(dict.fromkeys(policy for found in grouped.values() for policy in found))
    figure = Figure(figsize=(max(5.0, 1.2 * len(grouped) + 2), 5.6), layout="constrained")
    for axes, percent in zip(figure.subplots(2, 1), (100, 130), strict=True):
        least = _draw_bars(axes, grouped, policies, percent, value)
        if not zero:
            axes.set_ylim(5 * (least // 5), 100)
        axes.set_xticks(range(len(grouped)), list(grouped))
        axes.set_title(f"{percent} % arrived", loc="left")
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def _draw_bars(axes: Axes, grouped: Grouped, policies: Sequence[str], percent: int, value: Value) -> float:
    """Draw one panel and return its least value."""
    width, least = 0.8 / len(policies), np.inf
    for i, (policy, colour) in enumerate(zip(policies, _colours(len(policies)), strict=True)):
        here = [(x, value(trace, policy, percent)) for x, trace in enumerate(grouped) if policy in grouped[trace]]
        places = [x + (i - (len(policies) - 1) / 2) * width for x, _ in here]
        axes.bar(places, [height for _, height in here], width, color=colour, label=policy)
        least = min([least, *(height for _, height in here)])
    return least


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
