"""The picture of one pattern: the mask, the distances by layer, what several layers reach together, and the cost."""

import dataclasses
import time
import warnings
from functools import lru_cache
from typing import Any, get_type_hints

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lib.errors import one_of
from lib.patterns import EdgeTable, Pattern, build, names, pattern_class
from lib.patterns.base import offsets_by_head
from suite.bench import cases
from suite.lab.controls import Controls, Panel, Screen, choice, control, slider
from suite.study import figures

LENGTHS = (64, 128, 256, 512, 1024, 2048)
DEPTHS = (1, 2, 4, 8)               # layers whose reach is shown
SHOWN = 256                         # rows and columns of the pictures, at most
FAINTEST = 0.2                      # shade of a distance that few queries attend
HEAD_DIM, ROUNDS = 64, 3            # of the measured attention; the first call is not counted


@lru_cache(maxsize=64)
def attended(pattern: Pattern, layer: int, length: int, head: int | None = None) -> np.ndarray:
    """Boolean `[T, T]`: whether a query attends a key in this head, or in any (None). Like `lib.patterns.expand`, which
    looks every distance up in a `[T, T]` table."""
    plan, mask, j = pattern.plan(layer, length), np.zeros((length, length), bool), np.arange(length)
    listed = isinstance(plan, EdgeTable)
    heads = plan.keys.reshape(-1, length, plan.keys.shape[-1]) if listed else offsets_by_head(plan)
    for keys in heads if head is None else [heads[head % len(heads)]]:
        if listed:
            i, column = np.nonzero(keys >= 0)
            mask[i, keys[i, column]] = True
            continue
        by_distance = np.zeros(2 * length - 1, bool)                                # from T - 1 down to 1 - T
        by_distance[length - 1 - np.array([d for d in keys.distances if abs(d) < length])] = True
        mask |= np.lib.stride_tricks.sliding_window_view(by_distance, length)[::-1]
        mask |= (j < keys.leading) & (np.tri(length, dtype=bool) | (not keys.causal))
    return mask


@lru_cache(maxsize=64)
def shares(pattern: Pattern, layer: int, length: int) -> np.ndarray:
    """`[T]`: of the queries that could attend the distance 0, 1, 2, …, back or ahead, the share that does."""
    diagonals = np.zeros((length, 2 * length), np.int32)
    diagonals[:, :length] = attended(pattern, layer, length)[:, ::-1]
    counts = diagonals.ravel()[:length * (2 * length - 1)].reshape(length, -1).sum(axis=0)    # of d = 1 - T to T - 1
    return np.maximum(counts[length - 1:], counts[length - 1::-1]) / (length - np.arange(length))


def reached(pattern: Pattern, length: int, query: int, depth: int) -> np.ndarray:
    """Boolean `[T]`: the tokens that reach `query` through the first `depth` layers (of a stack that repeats)."""
    tokens = np.arange(length) == query
    for layer in reversed(range(depth)):
        tokens = attended(pattern, layer % pattern.layers, length)[tokens].any(axis=0)
    return tokens


def milliseconds(pattern: Pattern, layer: int, length: int) -> tuple[float, float]:
    """Of attention forward in one layer, here and now, the better of two calls in turn: dense, and this pattern."""
    setting, times = cases.Setting(heads=pattern.heads, kv_heads=pattern.heads, head_dim=HEAD_DIM), []
    dense = build("dense", layers=pattern.layers, heads=pattern.heads, causal=pattern.causal)
    ways = [cases.by_backend("auto", own, setting, layer, False) for own in (dense, pattern)]
    for call in ROUNDS * [cases.prepared(way, setting, length, "forward") for way in ways]:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[2::2]), min(times[3::2])


def cost(pattern: Pattern, layer: int, length: int) -> str:
    """Attended pairs, counted and measured cost beside dense attention, as a sentence."""
    pairs, (dense, own) = pattern.pairs(length), milliseconds(pattern, layer, length)
    whole = pattern.layers * (length * (length + 1) / 2 if pattern.causal else length ** 2)
    operations = 4e-9 * pattern.heads * HEAD_DIM
    return (f"**{pairs:,.0f} attended pairs** in {pattern.layers} layers: {pairs / (length * pattern.layers):.1f} keys "
            f"a query, {100 * pairs / whole:.2f} % of dense attention. Operations forward, {pattern.heads} heads of "
            f"size {HEAD_DIM}: {operations * pairs:.2f} G, dense {operations * whole:.2f} G. Layer {layer}, measured "
            f"here and now: **{own:.2f} ms**, dense {dense:.2f} ms.")


def pooled(mask: np.ndarray) -> np.ndarray:
    """A mask of at most SHOWN rows: a cell is set where any pair in it is, so that a thin line stays."""
    size = -(-len(mask) // SHOWN)
    mask = np.pad(mask, (0, -len(mask) % size))
    return mask.reshape(len(mask) // size, size, -1, size).any(axis=(1, 3))


@figures.drawn
def drawing(pattern: Pattern, length: int, layer: int, head: int, query: int) -> Figure:
    """The mask of a layer and head, the distances of all layers, and what reaches the query after 1, 2, 4, 8 layers."""
    layers, before = range(pattern.layers), query + 1 if pattern.causal else length
    color = LinearSegmentedColormap.from_list("", ["#f4f4f4", figures.FAMILIES.get(pattern.family, figures.BROWN)])
    fig = Figure(figsize=(figures.WIDTH, 5.4))
    mask, distances, reach = (fig.add_axes(place) for place in (
        (0.07, 0.45, 0.37, 0.50), (0.53, 0.45, 0.45, 0.50), (0.17, 0.09, 0.81, 0.21)))
    first = (2 ** np.linspace(0, np.log2(length), SHOWN, endpoint=False)).astype(int) - 1     # distance of each column
    far = np.maximum.reduceat([shares(pattern, row, length) for row in layers], first, axis=1)
    rows = [reached(pattern, length, query, depth) for depth in DEPTHS]
    for axes, picture, extent in (
            (mask, pooled(attended(pattern, layer, length, head)), (0, length, length, 0)),
            (distances, np.where(far > 0, far.clip(FAINTEST), 0), (0, np.log2(length), len(layers) - 0.5, -0.5)),
            (reach, rows, (0, length, len(rows), 0))):
        axes.imshow(picture, extent=extent, aspect="auto", cmap=color, interpolation="nearest", vmin=0, vmax=1)
        axes.grid(False)
    mask.axhline(query + 0.5, color=figures.BLACK, linewidth=0.8, linestyle=":")
    mask.set(title=f"keys of each query: layer {layer}, head {head}", xticks=[0, length], yticks=[0, length])
    powers = np.arange(np.log2(length))
    distances.set_xticks(powers, [f"{2 ** power - 1:.0f}" for power in powers])
    distances.set(title="distances by layer; faint: of few queries", xlabel="distance, tokens", yticks=layers)
    reach.set_yticks(np.arange(len(rows)) + 0.5, [f"{depth} layer{'s' * (depth > 1)}: {100 * own.sum() / before:.0f} %"
                                                  for depth, own in zip(DEPTHS, rows, strict=True)])
    reach.set(title=f"tokens that reach query {query} through the first layers", xlabel="position")
    return fig


def words(pattern: Pattern, length: int, layer: int, head: int, query: int) -> str:
    """What the drawing shows, for who does not see it."""
    keys = attended(pattern, layer, length, head)[query].nonzero()[0][::-1]
    after = ", ".join(f"{reached(pattern, length, query, depth).sum()} ({depth})" for depth in DEPTHS)
    return (f"{pattern.name}, T = {length}: query {query} attends {len(keys)} keys in layer {layer}, head {head}: "
            f"{', '.join(map(str, keys[:12]))}{', …' * (len(keys) > 12)}. Tokens that reach it (layers): {after}.")


def picture(pattern: Pattern, length: int, layer: int, head: int, query: int, image: Screen, text: Screen) -> None:
    image.figure(drawing(pattern, length, layer, head, query), words(pattern, length, layer, head, query))
    text.show(cost(pattern, layer, length))


def explore(name: str = "scaled_base", length: int = 1024, layers: int = 8, heads: int = 4, **given: Any) -> Panel:
    """Every pattern with a control for each of its parameters; `given` are first values of the pattern `name`."""
    screens = Screen(), Screen()

    def others(pattern: str, length: int, layers: int, heads: int) -> Controls:
        cls, first = pattern_class(pattern), given if pattern == name else {}
        hints = get_type_hints(cls, include_extras=True)
        own = {field.name: control(field.name, first.get(field.name, field.default), hints[field.name])
               for field in dataclasses.fields(cls) if field.name not in ("layers", "heads")
               if field.name != "causal" or cls.bidirectional}
        return own | {"layer": slider("layer", 0, 0, layers - 1), "head": slider("head", 0, 0, heads - 1),
                      "query": slider("query", length - 1, 0, length - 1)}

    def draw(pattern: str, length: int, layer: int, head: int, query: int, **values: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="christoffel")
            picture(build(pattern, **values), length, layer, head, query, *screens)

    chosen = {"pattern": choice("pattern", names(), names().index(one_of(name, names(), "pattern"))),
              "length": choice("length", sorted({*LENGTHS, length}), sorted({*LENGTHS, length}).index(length)),
              "layers": slider("layers", layers, 1, 16), "heads": slider("heads", heads, 1, 8)}
    return Panel(draw, chosen, others)
