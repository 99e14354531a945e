"""Exact facts, in which there is no chance: of patterns, schedules and recipes, and of the Fibonacci paper's published
tables (suite/published)."""

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.errors import SuiteError
from lib.patterns import Pattern, build
from lib.patterns.christoffel import carry_word
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.rungs import base_rungs, fibonacci
from suite import published
from suite.claims.measures import Part, fact, measure
from suite.claims.measures.runs import beside_recommended
from suite.experiments.christoffel import split_word
from suite.study import graph
from suite.study.findings import christoffel, power_law_sigma
from suite.study.frames import NotTested, Study

PAPER_LENGTH = 1024
HOPS = 16               # more than any two tokens of the document's graph need


# Fibonacci: audit rows 1, 2, 11, 12, 13, 15 and 25 to 27

def paper_pattern(base: str = "fibonacci", schedule: str = "fixed", window: int = 8) -> Pattern:
    """A pattern of the paper at its depth of 16 layers and 8 heads."""
    return build("scaled_base", layers=16, heads=8, base=base, schedule=schedule, window=window)


@fact("tokens", "Reach of the powers of two minus that of the Fibonacci base")
def reach_difference() -> int:
    pow2, fibonacci = (max(paper_pattern(base).plan(0, PAPER_LENGTH).distances) for base in ("pow2", "fibonacci"))
    return pow2 - fibonacci


@measure("layers of 16", exact=True, every=True)
def untrained_layers(study: Study, *, bases: tuple[str, ...]) -> Iterator[Part]:
    """Layers of the paper's linear stagger that query distances at 4096 tokens that training at 1024 has not shown."""
    for base in bases:
        plan = paper_pattern(base, "linear").plan
        distances = [[set(plan(layer, times * PAPER_LENGTH).distances) for times in (1, 4)] for layer in range(16)]
        yield Part(f"Layers with untrained distances at 4 times the training length, {base}",
                   sum(not beyond <= trained for trained, beyond in distances))


@fact("key rows a query", "Key rows read with a learned alpha minus a fixed one")
def key_rows_difference() -> int:
    """At W = 8; a blended rung reads the two keys that it lies between."""
    fixed = paper_pattern().plan(0, PAPER_LENGTH).distances
    blended = fractional_rungs(base_rungs("fibonacci", 15, PAPER_LENGTH), 8, 0.997, PAPER_LENGTH)
    return 9 + sum(1 + (t > 0) for _, t, _ in blended) - len(fixed)


@fact("distances", "Distances beyond the window at W = {window}")
def distances_beyond_window(*, window: int) -> int:
    return sum(d > window for d in paper_pattern(window=window).plan(0, PAPER_LENGTH).distances)


@fact("distances", "Distances of 16 layers together at W = {window}")
def distances_of_the_stack(*, window: int) -> int:
    return len(graph.stack_distances(paper_pattern(schedule="linear", window=window), PAPER_LENGTH))


@fact("depths of 2 to 16", "Depths without a coprime stride")
def depths_without_coprime() -> int:
    missing = 0
    for layers in range(2, 17):
        try:
            build("scaled_base", layers=layers, schedule="coprime")
        except SuiteError:
            missing += 1
    return missing


@fact("distances", "Distances of 16 layers that doubles round otherwise than exact arithmetic")
def rounded_otherwise() -> int:
    alphas = zip(paper_pattern(schedule="linear").alphas, (Fraction(1, 2) + Fraction(at, 15) for at in range(16)))
    both = [(round(alpha * f), round(exact * f)) for alpha, exact in alphas for f in fibonacci(15)]
    return sum(double != exact and 8 < min(double, exact) < PAPER_LENGTH for double, exact in both)


@fact("rungs", "Rungs of 16 layers at the ramp's alphas that round beyond W = {window} and are dropped")
def rungs_dropped(*, window: int) -> int:
    distances = [alpha * f for alpha in paper_pattern(schedule="linear").alphas for f in fibonacci(15)]
    return sum(math.floor(d) <= window < round(d) for d in distances)


@fact("", "Largest alpha in reach of the paper's recipe")
def alpha_within_reach() -> float:
    """A step of Adam is at most about the rate: half the peak in the warm-up, then halfway between peak and end."""
    recipe = TrainConfig()
    after = (recipe.steps - recipe.warmup) * (1 + recipe.final_lr)
    return alpha_of(recipe.lr * (recipe.warmup + after) / 2)


@fact("of the peak", "Learning rate at the end over its peak")
def final_learning_rate() -> float:
    return TrainConfig().final_lr


@fact("", "Whether two processes start alike")
def same_start_when_seeded_late() -> bool:
    """Enacted on one layer: each process has drawn something else before it builds, and the seed is set after that."""
    return np.array_equal(*(np.random.RandomState(process).normal(size=(8, 8)) for process in (0, 1)))


# Power law: audit rows 19 to 21

@fact("new neighbours", "New neighbours from {draws} draws at sigma = {sigma:g}, r = {radius}")
def new_neighbours(*, sigma: float, draws: int, radius: int) -> float:
    return power_law_sigma.realised((sigma,), PAPER_LENGTH, radius, draws)["new neighbours"].iloc[0]


@fact("times", "New neighbours from {draws} draws at sigma = {sigma:g} over those at {other:g}")
def new_neighbours_ratio(*, sigma: float, other: float, draws: int, radius: int) -> float:
    new = power_law_sigma.realised((sigma, other), PAPER_LENGTH, radius, draws)["new neighbours"]
    return new[sigma] / new[other]


@fact("of the edges", "Edges that point to the future")
def future_edges(*, sigma: float) -> float:
    """Of the document's edges `j = (i + s d) mod n`, 48 draws a query."""
    n, rng = PAPER_LENGTH, np.random.default_rng(0)
    i = np.arange(n)[:, None]
    d = rng.choice(np.arange(1, n // 2 + 1), (n, 48), p=power_law_sigma.law(sigma, 0, n // 2))
    return ((i + d * rng.choice([-1, 1], d.shape)) % n > i).mean()


@fact("times", "Expected degree at {long} tokens over that at {short}, sigma = {sigma:g}")
def degree_growth(*, sigma: float, short: int, long: int) -> float:
    degrees = [(np.arange(1, n // 2 + 1, dtype=float) ** -(1 + sigma)).sum() for n in (long, short)]
    return degrees[0] / degrees[1]


@fact("times", "Slope of the mean distance from sigma = {low:g} to {high:g} over the steepest elsewhere")
def steepest_transition(*, sigmas: tuple[float, ...], low: float, high: float, draws: int, radius: int,
                        length: int) -> float:
    """Of the mean distance in hops on the document's ring (one seeded graph), between neighbours of `sigmas`."""
    slopes = np.diff([mean_hops(sigma, draws, radius, length) for sigma in sigmas]) / np.diff(sigmas)
    inside = np.array([a >= low and b <= high for a, b in zip(sigmas[:-1], sigmas[1:], strict=True)])
    return slopes[inside].max() / slopes[~inside].max()


@cache
def mean_hops(sigma: float, draws: int, radius: int, length: int) -> float:
    """Mean distance in hops between two different tokens of the document's bidirectional graph."""
    pattern = build("power_law", mode="draws", sigma=sigma, draws=draws, window=radius, causal=False, layers=1)
    shares = graph.reach_by_depth(pattern, length, HOPS)               # a token and itself among the pairs
    assert shares[-1] == 1, f"not connected within {HOPS} hops"
    return 1 + float((1 - shares).sum()) * length / (length - 1)


@measure("hops", exact=True, every=True)
def diameter_difference(study: Study, *, other: str) -> Iterator[Part]:
    """Diameter of a layer's graph, edges taken both ways, power law at the document's sigma minus `other`."""
    return graphs_beside(study, other, "Diameter", graph.diameter)


@measure("", exact=True, every=True)
def spectral_gap_difference(study: Study, *, other: str) -> Iterator[Part]:
    """Spectral gap of a layer's normalised mask Laplacian, power law at the document's sigma minus `other`."""
    return graphs_beside(study, other, "Spectral gap", graph.spectral_gap)


def graphs_beside(study: Study, other: str, what: str, number: Callable[..., float | None]) -> Iterator[Part]:
    """A number of the first layer's graph of each recommended model minus that of its control."""
    for model, control in beside_recommended(study, other):
        mine, theirs = (number(own.pattern, 0, model.length) for own in (model, control))
        if mine is None or theirs is None:
            raise NotTested(f"the graph of {model.name} or of {control.name} is not connected")
        yield Part(f"{what} of {model.name} minus {control.name} at T = {model.length}", mine - theirs)


# Christoffel: audit rows 22 to 24

def of_words(what: str, words: Sequence[str], number: Callable[[str], float]) -> Iterator[Part]:
    """An exact number of each Christoffel word `m/k`; `what` has its place in braces."""
    for word in dict.fromkeys(words):
        yield Part(what.format(word), number(word))


def ones(word: str) -> np.ndarray:
    return np.flatnonzero(carry_word(*split_word(word)))


@measure("keys", exact=True, every=True)
def prefix_discrepancy(study: Study, *, also: tuple[str, ...]) -> Iterator[Part]:
    """Largest distance of the keys in a prefix of the word from slope times its length, of trained and other words."""
    return of_words("Prefix discrepancy of {}", (*study.parameters.words, *also),
                    lambda word: graph.prefix_discrepancy(carry_word(*split_word(word)), Fraction(word)))


@measure("keys", exact=True, every=True)
def density_error(study: Study, *, also: tuple[str, ...]) -> Iterator[Part]:
    """Keys of one period of the word minus m."""
    return of_words("Keys a period of {} minus m", (*study.parameters.words, *also),
                    lambda word: len(ones(word)) - split_word(word)[0])


@measure("different gaps", exact=True, every=True)
def gaps(study: Study, *, words: tuple[str, ...]) -> Iterator[Part]:
    """Different gaps between neighbouring offsets; 1: a fixed stride."""
    return of_words("Neighbouring offsets of {} have", words, lambda word: len(set(np.diff(ones(word)))))


@measure("residue classes of 8", exact=True, every=True)
def residue_classes(study: Study, *, words: tuple[str, ...]) -> Iterator[Part]:
    """Residue classes modulo 8 that a word's offsets fall into."""
    return of_words("Offsets of {} lie in", words, lambda word: len(set(ones(word) % 8)))


@measure("keys", exact=True, every=True)
def keys_by_the_documents_rule(study: Study, *, words: tuple[str, ...]) -> Iterator[Part]:
    """Offsets that the document's causal condition `i + o <= i` keeps."""
    return of_words("Keys of {} with i + o <= i", words, lambda word: (ones(word) <= 0).sum())


@measure("of the distances", exact=True, every=True)
def bridged_difference(study: Study, *, series: str, other: str, depth: int) -> Iterator[Part]:
    """Share of the distances below T that the first `depth` layers of `series` bridge minus that of `other`."""
    for model, control in study.pairs((series,), (other,)):
        mine, theirs = (float(graph.stack_sums(own.pattern, own.length)[depth].mean()) for own in (model, control))
        yield Part(f"Distances that {depth} layers of {model.name} bridge minus {control.name}", mine - theirs)


@measure("of the distances", exact=True, every=True)
def reach_over_random(study: Study, *, words: tuple[str, ...], depth: int) -> Iterator[Part]:
    """Share of the distances 0 to 2047 that `depth` layers of a word bridge minus that of as many random offsets."""
    table = christoffel.document_reach(depth).iloc[-1]
    return of_words(f"Reach of {{}} in {depth} layers minus that of random offsets", words, lambda word: (
        table.filter(like=f"Christoffel {word}").iloc[0] - table["Random offsets, 64 of 512"]))


@fact("", "What only the paper's own code or machines could show")
def read_in_code(*, reason: str) -> float:
    raise NotTested(reason)


# perplexity.csv, length_extrapolation.csv, position_loss.csv

@measure("nats a token", exact=True)
def published_difference(study: Study, *, series: str, other: str, window: int, other_window: int = 0,
                         length: int = 0) -> Iterator[Part]:
    """Log of the ratio of perplexities: a mean over the four datasets (seed 42, perplexity.csv), or at an evaluation
    length, a mean over the two of length_extrapolation.csv; Dense has no window."""
    table = (published.read("length_extrapolation").query("eval_length == @length") if length else
             published.read("perplexity").query("seed == 42"))
    where = f"W = {window}" + (f", {length} tokens" if length else "")
    yield Part(f"Published loss of {series} minus {other} at {where}",
               log_mean(table, series, window) - log_mean(table, other, other_window or window))


@measure("nats a token", exact=True)
def published_growth(study: Study, *, series: str, window: float, other: str = "") -> Iterator[Part]:
    """Log of perplexity at 4096 tokens over that at 1024, a mean over two datasets; of `series`, or minus `other`'s."""
    table, names = published.read("length_extrapolation"), [name for name in (series, other) if name]
    near, far = (table[table["eval_length"] == length] for length in (1024, 4096))
    growths = [log_mean(far, name, window) - log_mean(near, name, window) for name in names]
    yield Part(f"Published growth of the loss of {' minus '.join(names)} at W = {window:g}, 1024 to 4096 tokens",
               growths[0] - sum(growths[1:]))


@measure("nats a token", exact=True, every=True)
def published_growth_of_all(study: Study) -> Iterator[Part]:
    """`published_growth` of every sparse model of the paper."""
    models = published.read("length_extrapolation").query("base != 'dense'")[["series", "window"]].drop_duplicates()
    for own in models.itertuples():
        yield from published_growth(study, series=own.series, window=own.window)


@measure("nats a token", exact=True)
def published_largest_growth(study: Study) -> Iterator[Part]:
    """The largest of `published_growth_of_all`."""
    yield max(published_growth_of_all(study), key=lambda part: part.estimate)


@fact("nats a token", "Published gain of the ramp from position 128 on minus before, W = {window}")
def published_gain_by_position(*, window: int) -> float:
    rows = published.read("position_loss").query("window == @window and base == 'fibonacci'")
    losses = rows.pivot_table(index="bin", columns="schedule", values="nll")
    gain = losses["fixed"] - losses["linear"]
    return gain.iloc[4:].mean() - gain.iloc[1:4].mean()         # of eight bins; the paper exempts the first


def log_mean(table: pd.DataFrame, series: str, window: float) -> float:
    at = table["window"].isna() if series == "Dense" else table["window"] == window
    rows = table[(table["series"] == series) & at]
    return float(np.log(rows["perplexity"]).mean())


# cost.csv and battery.csv

@measure("times", exact=True)
def published_cost(study: Study, *, inference: bool) -> Iterator[Part]:
    """Time of a learned alpha over that of fixed rungs: training (cost.csv), or inference (battery.csv)."""
    speed = published.read("battery").query("metric == 'tokens_per_sec_infer'").groupby("series")["value"].mean()
    ratio = speed["Fibonacci, fixed"] / speed["Fibonacci, learned"] if inference else published.learned_cost()
    yield Part(f"Published {'inference' if inference else 'training'} time of a learned alpha over fixed rungs", ratio)


@fact("parameters", "Published parameters of the learned model minus the fixed one")
def published_parameters() -> int:
    sizes = published.read("cost").groupby("series")["parameters"].first()
    return sizes["Fibonacci, learned"] - sizes["Fibonacci, fixed"]


@fact("tasks", "Tasks of the published battery that dense lacks")
def published_tasks_missing() -> int:
    table = published.read("battery")
    dense = table["base"] == "dense"
    return len(set(table[~dense]["task"]) - set(table[dense]["task"]))


@measure("times", exact=True)
def published_lambada_ratio(study: Study, *, window: int) -> Iterator[Part]:
    """Highest over lowest perplexity of LAMBADA's target among the sparse models of one W, means over seeds."""
    rows = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == @window")
    means = rows.groupby("series")["value"].mean()
    yield Part(f"LAMBADA's target perplexity, {means.idxmax()} over {means.idxmin()} at W = {window}",
               means.max() / means.min())


@fact("times", "Sample standard deviation over the population formula")
def published_std_ratio() -> float:
    """Of the three published seeds (perplexity.csv, W = 12)."""
    spread = published.spread_over_seeds().query("seeds == 3")
    return (spread["sample_std"] / spread["population_std"]).mean()


# retrieval_probe.csv

@fact("in alpha", "Largest published move of alpha in the {probes} probes")
def published_alpha_move(*, probes: str) -> float:
    """From its start. probes: `marked` (two distances, uniform start), `sweep` (one distance, from the ramp; its ends
    are left out, as no theta is finite there)."""
    table = published.read("retrieval_probe")
    rows = table.query("experiment == 'marked' and mechanism == 'fib_blur' and staggered_init == 0"
                       if probes == "marked" else "mechanism == 'fib_blur_stag'")
    moved = []
    for text in rows["alphas"].unique():
        alphas = [a["alpha"] if isinstance(a, dict) else a for a in ast.literal_eval(text)]
        starts = [1.0] * len(alphas) if probes == "marked" else 0.5 + np.arange(len(alphas)) / (len(alphas) - 1)
        moves = np.abs(np.array(alphas) - starts)
        moved += [*(moves if probes == "marked" else moves[1:-1])]
    return max(moved)


@fact("in accuracy", "Difference between two published seeds at depth {depth}")
def published_seed_spread(*, depth: int) -> float:
    """The largest of one cell of the marked probe from a uniform start."""
    rows = published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0 and depth == @depth")
    return rows.groupby("distance")["accuracy"].agg(lambda own: own.max() - own.min()).max()


@fact("of the answers", "Best published cell of the marked probe from a uniform start")
def published_probe_best() -> float:
    return published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0")["accuracy"].max()


@fact("in accuracy", "Published accuracy of the marked probe from the ramp minus from a uniform start")
def published_probe_difference() -> float:
    rows = published.marked_cells().query("mechanism == 'fib_blur'").groupby("staggered_init")["accuracy"].mean()
    return rows[1] - rows[0]
