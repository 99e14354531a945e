"""Pictures of patterns: masks, the distances of a stack by layer, and the gallery of everything that is discovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lib.patterns import EdgeTable, Pattern, names, pattern_class
from lib.patterns.base import offsets_of
from suite.study.figures import (BLUE, FAMILIES, GREY, WIDTH, drawn, figure,
                                 in_lines)


@drawn
def masks(patterns: Mapping[str, Pattern], length: int, *, layer: int = 0, head: int = 0, columns: int = 5) -> Figure:
    """Small masks, one a pattern, of one layer and head (-1: the last): a row is a query, a column a key."""
    rows = -(-len(patterns) // columns)
    fig = Figure(figsize=(WIDTH, (WIDTH / columns + 0.35) * rows), layout="constrained")
    grid = fig.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=False):
        shade = FAMILIES[pattern.family]
        picture = pattern.mask(range(pattern.layers)[layer], length)[head]
        axes.imshow(picture, cmap=_two_colours(shade), interpolation="nearest", vmin=0, vmax=1)
        axes.set_title(f"{in_lines(name, 18)}\n{picture.sum() / length:.1f} keys a query", fontsize=7.5)
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
    for axes in grid[len(patterns):]:
        axes.set_visible(False)
    return fig


def _two_colours(shade: str):
    from matplotlib.colors import ListedColormap
    return ListedColormap(["#f4f4f4", shade])


def everything(length: int = 64) -> Figure:
    """The first example of every pattern, last layer and head; a new file in lib/patterns appears here by itself."""
    found = {name: pattern_class(name).examples()[0] for name in names()}
    ranked = dict(sorted(found.items(), key=lambda item: (list(FAMILIES).index(item[1].family), item[0])))
    return masks(ranked, length, layer=-1, head=-1)


@drawn
def stack(patterns: Mapping[str, Pattern], length: int, *, window: int | None = None) -> Figure:
    """Distances that each layer attends, one panel a pattern: a row is a layer, log scale; the window in grey."""
    fig, panels = figure(0.7 + 0.16 * max(p.layers for p in patterns.values()) * -(-len(patterns) // 2) * 1.6,
                         columns=min(2, len(patterns)), rows=-(-len(patterns) // 2), squeeze=False, sharex=True)
    grid = panels.ravel()
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=False):
        for layer in range(pattern.layers):
            distances = np.asarray([d for d in distances_of(pattern, layer, length) if d > 0])
            near = distances <= (window if window is not None else -1)
            axes.scatter(distances[near], np.full(near.sum(), layer), s=5, color=GREY)
            axes.scatter(distances[~near], np.full((~near).sum(), layer), s=9, color=FAMILIES.get(pattern.family, BLUE))
        axes.set_xscale("log", base=2)
        axes.set(title=name, ylabel="layer")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axes in grid[len(patterns):]:
        axes.set_visible(False)
    for axes in grid[max(0, len(patterns) - panels.shape[1]):len(patterns)]:
        axes.set_xlabel("distance d = i - j, tokens")
    return fig


def distances_of(pattern: Pattern, layer: int, length: int) -> Sequence[int]:
    """Distances of one layer, ascending; those of any query where queries differ."""
    plan = pattern.plan(layer, length)
    if not isinstance(plan, EdgeTable):
        return offsets_of(plan, 0).distances
    keys = plan.keys if plan.keys.ndim == 2 else plan.keys[0]
    queries, columns = np.nonzero(keys >= 0)
    return tuple(np.unique(queries - keys[queries, columns]).tolist())


@drawn
def offsets(patterns: Mapping[str, Pattern], length: int, *, layer: int = 0) -> Figure:
    """Offsets of one layer as marks on a line, one row a pattern."""
    fig, axes = figure(0.7 + 0.3 * len(patterns))
    names = list(patterns)[::-1]
    for at, name in enumerate(names):
        pattern = patterns[name]
        found = [d for d in distances_of(pattern, min(layer, pattern.layers - 1), length)]
        axes.scatter(found, [at] * len(found), s=26, marker="|", color=FAMILIES[pattern.family], linewidths=1.1)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="distance d = i - j, tokens", xlim=(-1, length))
    return fig


@drawn
def sequence(inputs: np.ndarray, targets: np.ndarray) -> Figure:
    """One sequence of a task: what is read, and below it what is to be said where it is asked (target -100: nothing)."""
    fig, axes = figure(1.3)
    for at, (token, target) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        axes.text(at, 1, token, ha="center", va="center", fontsize=7)
        if target >= 0:
            box = {"facecolor": BLUE, "edgecolor": BLUE, "pad": 1.5}
            axes.text(at, 0, target, ha="center", va="center", fontsize=7, color="white", bbox=box)
    axes.set(xlim=(-1, len(inputs)), ylim=(-0.6, 1.6), yticks=[0, 1], yticklabels=["say", "read"], xlabel="position")
    axes.grid(False)
    return fig
