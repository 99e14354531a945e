"""Facts of patterns, schedules and recipes: whole numbers and counts in which there is no chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from lib.config import TrainConfig
from lib.errors import SuiteError
from lib.patterns import Pattern, build
from lib.patterns.christoffel import carry_word
from lib.patterns.learned import alpha_of
from suite.claims.evidence import Measured
from suite.claims.measures import measure
from suite.experiments.christoffel import split_word
from suite.study import graph
from suite.study.comparisons import recommended
from suite.study.findings import christoffel, learned_alpha, power_law_sigma
from suite.study.frames import Model, NotTested, Study

PAPER_LENGTH = 1024
HOPS = 16               # more than any two tokens of the document's graph need


# Fibonacci: audit rows 1, 2, 11, 12, 13, 15 and 25

def paper_pattern(base: str = "fibonacci", schedule: str = "fixed", window: int = 8) -> Pattern:
    """A pattern of the paper at its depth of 16 layers and 8 heads."""
    return build("scaled_base", layers=16, heads=8, base=base, schedule=schedule, window=window)


@measure("tokens", exact=True)
def reach_difference(study: Study | None) -> Measured:
    """Reach of the paper's powers of two minus that of its Fibonacci base, T = 1024."""
    pow2, fibonacci = (max(paper_pattern(base).plan(0, PAPER_LENGTH).distances) for base in ("pow2", "fibonacci"))
    return Measured.fact("Reach of the powers of two minus that of the Fibonacci base", pow2 - fibonacci)


@measure("layers of 16", exact=True, every=True)
def untrained_layers(study: Study | None, *, bases: tuple[str, ...]) -> Measured:
    """Layers of the paper's linear stagger that query distances at 4096 tokens that training at 1024 has not shown."""
    return Measured.facts([(f"Layers with untrained distances at 4 times the training length, {base}",
                            layers_that_grow(paper_pattern(base, "linear"))) for base in bases])


def layers_that_grow(pattern) -> int:
    def distances(layer: int, length: int) -> set[int]:
        return set(pattern.plan(layer, length).distances)
    return sum(not distances(layer, 4 * PAPER_LENGTH) <= distances(layer, PAPER_LENGTH)
               for layer in range(pattern.layers))


@measure("key rows a query", exact=True)
def key_rows_difference(study: Study | None) -> Measured:
    """Key rows that a query reads with a learned alpha minus those with a fixed one, W = 8."""
    blended, fixed = learned_alpha.source_rows()
    return Measured.fact("Key rows read with a learned alpha minus a fixed one", blended - fixed)


@measure("distances", exact=True)
def distances_beyond_window(study: Study | None, *, window: int) -> Measured:
    """Distances of one layer of the paper's fixed pattern beyond the window."""
    found = paper_pattern(window=window).plan(0, PAPER_LENGTH).distances
    return Measured.fact(f"Distances beyond the window at W = {window}", sum(d > window for d in found))


@measure("distances", exact=True)
def distances_of_the_stack(study: Study | None, *, window: int) -> Measured:
    """Distinct distances of all 16 layers of the paper's linear stagger together."""
    pattern = paper_pattern(schedule="linear", window=window)
    distances = graph.stack_distances(pattern, PAPER_LENGTH)
    return Measured.fact(f"Distances of 16 layers together at W = {window}", len(distances))


@measure("depths of 2 to 16", exact=True)
def depths_without_coprime(study: Study | None) -> Measured:
    """Depths at which the coprime schedule has no stride."""
    def there(layers: int) -> bool:
        try:
            build("scaled_base", layers=layers, schedule="coprime")
        except SuiteError:
            return False
        return True
    return Measured.fact("Depths without a coprime stride", sum(not there(layers) for layers in range(2, 17)))


@measure("", exact=True)
def alpha_within_reach(study: Study | None) -> Measured:
    """The largest alpha that the paper's learning rates can move to from 1: a step of Adam is at most about the rate,
    whose mean is half the peak in the warm-up and halfway between peak and end in the cosine."""
    recipe = TrainConfig()
    after = (recipe.steps - recipe.warmup) * (1 + recipe.final_lr)
    farthest = alpha_of(recipe.lr * (recipe.warmup + after) / 2)
    return Measured.fact("Largest alpha in reach of the paper's recipe", farthest)


@measure("of the peak", exact=True)
def final_learning_rate(study: Study | None) -> Measured:
    """Learning rate at the end of the recipe, as the paper's code has it and the suite follows it, over the peak."""
    return Measured.fact("Learning rate at the end over its peak", TrainConfig().final_lr)


@measure("", exact=True)
def same_start_when_seeded_late(study: Study | None) -> Measured:
    """1 if a model that is built before the seed is set starts alike in two processes, 0 if not; enacted on one
    layer."""
    def built(process: int) -> np.ndarray:
        stream = np.random.RandomState(process)                    # what a process has drawn before it builds
        weights = stream.normal(size=(8, 8))
        stream.seed(42)                                            # too late for the weights
        return weights
    return Measured.fact("Whether two processes start alike", float(np.array_equal(built(0), built(1))))


# Power law: audit rows 19 to 21

@measure("new neighbours", exact=True)
def new_neighbours(study: Study | None, *, sigma: float, draws: int, radius: int) -> Measured:
    """New neighbours a query that the document's draws with replacement give beyond the window, T = 1024."""
    table = power_law_sigma.realised((sigma,), PAPER_LENGTH, radius, draws)
    what = f"New neighbours from {draws} draws at sigma = {sigma:g}, r = {radius}"
    return Measured.fact(what, table["new neighbours"].iloc[0])


@measure("times", exact=True)
def new_neighbours_ratio(study: Study | None, *, sigma: float, other: float, draws: int, radius: int) -> Measured:
    """New neighbours at one sigma over those at another, from as many draws."""
    new = power_law_sigma.realised((sigma, other), PAPER_LENGTH, radius, draws)["new neighbours"]
    return Measured.fact(f"New neighbours from {draws} draws at sigma = {sigma:g} over those at {other:g}",
                      new[sigma] / new[other])


@measure("of the edges", exact=True)
def future_edges(study: Study | None, *, sigma: float) -> Measured:
    """Share of the document's edges `j = (i + s d) mod n` that lie in the future of their query."""
    return Measured.fact("Edges that point to the future", power_law_sigma.future_share(sigma))


@measure("times", exact=True)
def degree_growth(study: Study | None, *, sigma: float, short: int, long: int) -> Measured:
    """Expected degree `sum d^-(1+sigma)` at `long` tokens over that at `short`."""
    def degree(n: int) -> float:
        return float((np.arange(1, n // 2 + 1, dtype=float) ** -(1 + sigma)).sum())
    return Measured.fact(f"Expected degree at {long} tokens over that at {short}, sigma = {sigma:g}",
                      degree(long) / degree(short))


@measure("times", exact=True)
def steepest_transition(study: Study | None, *, sigmas: tuple[float, ...], low: float, high: float, draws: int,
                        radius: int, length: int) -> Measured:
    """How the mean distance in hops on the document's ring (one seeded graph) rises with sigma: its slope between `low`
    and `high` over the steepest slope between other neighbours of `sigmas`."""
    slopes = np.diff([mean_hops(sigma, draws, radius, length) for sigma in sigmas]) / np.diff(sigmas)
    inside = np.array([a >= low and b <= high for a, b in zip(sigmas[:-1], sigmas[1:], strict=True)])
    return Measured.fact(f"Slope of the mean distance from sigma = {low:g} to {high:g} over the steepest elsewhere",
                      slopes[inside].max() / slopes[~inside].max())


@lru_cache(maxsize=None)
def mean_hops(sigma: float, draws: int, radius: int, length: int) -> float:
    """Mean distance in hops between two different tokens of the document's bidirectional graph."""
    pattern = build("power_law", mode="draws", sigma=sigma, draws=draws, window=radius, causal=False, layers=1)
    shares = graph.reach_by_depth(pattern, length, HOPS)               # a token and itself among the pairs
    assert shares[-1] == 1, f"not connected within {HOPS} hops"
    return 1 + float((1 - shares).sum()) * length / (length - 1)


@measure("hops", exact=True, every=True)
def diameter_difference(study: Study, *, other: str) -> Measured:
    """Diameter of a layer's graph, edges taken both ways, power law at the document's sigma minus `other`."""
    return graphs_beside(study, other, "Diameter", graph.diameter)


@measure("", exact=True, every=True)
def spectral_gap_difference(study: Study, *, other: str) -> Measured:
    """Spectral gap of a layer's normalised mask Laplacian, power law at the document's sigma minus `other`."""
    return graphs_beside(study, other, "Spectral gap", graph.spectral_gap)


def graphs_beside(study: Study, other: str, what: str, number: Callable[[Pattern, int, int], float | None]) -> Measured:
    """A number of the first layer's graph of each recommended model minus that of its control."""
    rows = []
    for model in recommended(study):
        control, T = study.partner(model, other), model.length
        mine, theirs = (number(m.pattern, 0, T) for m in (model, control))
        if mine is None or theirs is None:
            raise NotTested(f"the graph of {model.name} or of {control.name} is not connected")
        rows.append((f"{what} of {model.name} minus {control.name} at T = {T}", mine - theirs))
    return Measured.facts(rows)


# Christoffel: audit rows 22 to 24

@measure("keys", exact=True, every=True)
def prefix_discrepancy(study: Study, *, also: tuple[str, ...]) -> Measured:
    """Largest distance of the keys in a prefix of the word from slope times its length: the words trained here and
    others."""
    return of_words("Prefix discrepancy of {}", (*study.parameters.words, *also), lambda word: float(
        graph.prefix_discrepancy(carry_word(*split_word(word)), Fraction(*split_word(word)))))


@measure("keys", exact=True, every=True)
def density_error(study: Study, *, also: tuple[str, ...]) -> Measured:
    """Keys of one period of the word minus m."""
    return of_words("Keys a period of {} minus m", (*study.parameters.words, *also),
                    lambda word: len(ones(word)) - split_word(word)[0])


@measure("different gaps", exact=True, every=True)
def gaps(study: Study | None, *, words: tuple[str, ...]) -> Measured:
    """Different gaps between neighbouring offsets; 1: a fixed stride."""
    return of_words("Neighbouring offsets of {} have", words, lambda word: len(set(np.diff(ones(word)))))


@measure("residue classes of 8", exact=True, every=True)
def residue_classes(study: Study | None, *, words: tuple[str, ...]) -> Measured:
    """Residue classes modulo 8 that a word's offsets fall into."""
    return of_words("Offsets of {} lie in", words, lambda word: len(set(ones(word) % 8)))


@measure("keys", exact=True, every=True)
def keys_by_the_documents_rule(study: Study | None, *, words: tuple[str, ...]) -> Measured:
    """Offsets that the document's causal condition `i + o <= i` keeps."""
    return of_words("Keys of {} with i + o <= i", words, lambda word: (ones(word) <= 0).sum())


@measure("of the distances", exact=True, every=True)
def bridged_difference(study: Study, *, series: str, other: str, depth: int) -> Measured:
    """Share of the distances below T that the first `depth` layers of `series` bridge minus that of `other`."""
    def bridged(model: Model) -> float:
        return float(graph.stack_sums(model.pattern, model.length)[depth].mean())
    return Measured.facts([(f"Distances that {depth} layers of {model.name} bridge minus {control.name}",
                            bridged(model) - bridged(control)) for model, control in study.pairs((series,), (other,))])


@measure("of the distances", exact=True, every=True)
def reach_over_random(study: Study | None, *, words: tuple[str, ...], depth: int) -> Measured:
    """Share of the distances 0 to 2047 that `depth` layers of a word bridge minus that of as many random offsets."""
    table = christoffel.document_reach(depth).iloc[-1]
    return of_words(f"Reach of {{}} in {depth} layers minus that of random offsets", words, lambda word: (
        table[next(name for name in table.index if name.startswith(f"Christoffel {word}"))]
        - table["Random offsets, 64 of 512"]))


def of_words(what: str, words: Sequence[str], number: Callable[[str], float]) -> Measured:
    """An exact number of each Christoffel word `m/k`; `what` has its place in braces."""
    return Measured.facts([(what.format(word), number(word)) for word in dict.fromkeys(words)])


def ones(word: str) -> np.ndarray:
    return np.flatnonzero(carry_word(*split_word(word)))


@measure("", exact=True)
def read_in_code(study: Study | None, *, reason: str) -> Measured:
    """What only the paper's own code or machines could show."""
    raise NotTested(reason)
