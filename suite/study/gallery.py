"""Pictures of patterns: masks, the distances of a stack by layer, and the gallery of everything that is discovered."""

import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from lib.patterns import Pattern, names, pattern_class
from suite.study.figures import BLUE, FAMILIES, GREY, WIDTH, drawn, panels, short
from suite.study.graph import layer_distances


@drawn
def masks(patterns: Mapping[str, Pattern], length: int, *, layer: int = 0, head: int = 0, columns: int = 5) -> Figure:
    """Small masks, one a pattern, of one layer and head (-1: the last): a row is a query, a column a key."""
    fig, grid = panels(len(patterns), WIDTH / min(columns, len(patterns)) + 0.35, columns)
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=True):
        picture = pattern.mask(range(pattern.layers)[layer], length)[head]
        axes.imshow(picture, cmap=ListedColormap(["#f4f4f4", FAMILIES[pattern.family]]), interpolation="nearest",
                    vmin=0, vmax=1)
        axes.set_title(f"{textwrap.fill(name, 18)}\n{picture.sum() / length:.1f} keys a query", fontsize=7.5)
        axes.set(xticks=[], yticks=[])
    return fig


def everything(length: int = 64) -> Figure:
    """The first example of every pattern, last layer and head; a new file in lib/patterns appears here by itself."""
    examples = {name: pattern_class(name).examples()[0] for name in names()}
    ranked = sorted(examples, key=lambda name: (list(FAMILIES).index(examples[name].family), name))
    return masks({name: examples[name] for name in ranked}, length, layer=-1, head=-1)


@drawn
def stack(patterns: Mapping[str, Pattern], length: int, *, window: int = -1) -> Figure:
    """Distances that each layer attends, one panel a pattern: a row is a layer, log scale; the window in grey."""
    fig, grid = panels(len(patterns), 0.5 + 0.26 * max(p.layers for p in patterns.values()), 2, "layer", sharex=True)
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=True):
        for layer in range(pattern.layers):
            distances = np.array([d for d in layer_distances(pattern, layer, length) if d > 0])
            for shown, size, color in ((distances[distances <= window], 5, GREY),
                                       (distances[distances > window], 9, FAMILIES[pattern.family])):
                axes.scatter(shown, np.full(len(shown), layer), s=size, color=color)
        axes.set_xscale("log", base=2)
        axes.set(title=name)
        axes.xaxis.set_major_formatter(short)
    fig.supxlabel("distance d = i - j, tokens", fontsize=9)
    return fig


@drawn
def offsets(patterns: Mapping[str, Pattern], length: int) -> Figure:
    """Offsets of the first layer as marks on a line, one row a pattern."""
    fig, (axes,) = panels(1, 0.7 + 0.3 * len(patterns))
    rows = list(patterns)[::-1]
    for at, name in enumerate(rows):
        distances, color = layer_distances(patterns[name], 0, length), FAMILIES[patterns[name].family]
        axes.scatter(distances, [at] * len(distances), s=26, marker="|", color=color, linewidths=1.1)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="distance d = i - j, tokens", xlim=(-1, length))
    return fig


@drawn
def sequence(inputs: np.ndarray, targets: np.ndarray) -> Figure:
    """One sequence of a task: what is read, and below it what is to be said where it is asked (elsewhere -100)."""
    fig, (axes,) = panels(1, 1.3)
    box = {"facecolor": BLUE, "edgecolor": BLUE, "pad": 1.5}
    for at, (token, target) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        axes.text(at, 1, token, ha="center", va="center", fontsize=7)
        if target >= 0:
            axes.text(at, 0, target, ha="center", va="center", fontsize=7, color="white", bbox=box)
    axes.set(xlim=(-1, len(inputs)), ylim=(-0.6, 1.6), yticks=[0, 1], yticklabels=["say", "read"], xlabel="position")
    axes.grid(False)
    return fig
