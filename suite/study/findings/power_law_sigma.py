"""Notebook 4: the exponent sigma; the document's three success criteria; audit rows 19 to 21."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config import RunConfig
from lib.patterns import Pattern, build
from suite.plan.cost import training_flops
from suite.study import graph
from suite.study.conclusions import (compared, correlation, listing, lower,
                                     not_higher, verdict)
from suite.study.findings.shared import interval, row, stack_of
from suite.study.losses import Losses
from suite.study.stats import Interval, seed_words
from suite.study.tables import by_step, mean_loss, named, select

RECOMMENDED = (0.8, 0.85)       # the document's transition range
DRAWS = "Power law, draws"      # the document's own rule, beside exact budgets


def law(sigma: float, window: int, reach: int) -> np.ndarray:
    """q(d) for d = window + 1 ... reach, the long-range part of the document's distribution."""
    d = np.arange(window + 1, reach + 1)
    return d ** -(1.0 + sigma) / (d ** -(1.0 + sigma)).sum()


def check_budget(pattern: Pattern, length: int) -> str:
    """Every query has exactly its budget (all predecessors where there are fewer), no key lies in the future."""
    for layer in range(pattern.layers):
        keys = pattern.plan(layer, length).keys
        degree = (keys >= 0).sum(axis=-1)
        assert (degree == np.minimum(pattern.budget, np.arange(length) + 1)).all(), f"layer {layer} breaks the budget"
        assert (keys <= np.arange(length)[:, None]).all(), f"layer {layer} sees the future"
    return (f"{length} queries in {pattern.layers} layers: each has exactly min({pattern.budget}, i + 1) keys, none in "
            f"the future.")


def realised(sigmas: Sequence[float], length: int = 1024, radius: int = 8, draws: int = 48) -> pd.DataFrame:
    """Audit row 20: what the document's m draws give; new neighbours a query beyond the window, by sigma."""
    rows = []
    for sigma in sigmas:
        pattern = build("power_law", mode="draws", sigma=sigma, draws=draws, window=radius)
        degree = (pattern.plan(0, length).keys >= 0).sum(axis=-1)[length // 2:]          # far from the start of the text
        rows.append({"sigma": sigma, "draws": draws, "new neighbours": float(degree.mean() - radius - 1),
                     "keys a query": float(degree.mean())})
    return pd.DataFrame(rows).set_index("sigma")


def say_realised(table: pd.DataFrame) -> str:
    new = table["new neighbours"]
    return (f"{int(table['draws'].iloc[0])} draws with replacement give {new.max():.1f} new neighbours a query at "
            f"sigma = {new.idxmax():g} "
            f"and {new.min():.1f} at sigma = {new.idxmin():g}: a sweep over sigma at fixed draws is a sweep over edges. "
            "Here every sigma has the same budget.")


def future_share(sigma: float = 0.8, length: int = 1024, draws: int = 48, seed: int = 0) -> float:
    """Audit row 21: share of the document's edges `j = (i + s d) mod n` that lie in the future of their query."""
    rng = np.random.default_rng(seed)
    q = law(sigma, 0, length // 2)
    d = rng.choice(np.arange(1, length // 2 + 1), (length, draws), p=q)
    j = (np.arange(length)[:, None] + d * rng.choice([-1, 1], d.shape)) % length
    return float((j > np.arange(length)[:, None]).mean())


def curve(runs: pd.DataFrame) -> pd.DataFrame:
    """Loss by sigma: rows are sigmas, one column a budget and mode (nats, mean over domains and seeds)."""
    loss = mean_loss(runs[runs["family"] == "power-law"])
    parts = [dict(part.split("=") for part in name.split(", ") if "=" in part) for name in loss.index]
    columns = [f"{name.partition(', sigma=')[0]}, B={p['B']}" for name, p in zip(loss.index, parts, strict=True)]
    table = pd.DataFrame({"sigma": [float(p["sigma"]) for p in parts], "budget": columns, "loss": loss.to_numpy()})
    return table.pivot_table(index="sigma", columns="budget", values="loss")


def say_curve(table: pd.DataFrame, losses: Losses) -> str:
    """Where the lowest loss is, and whether that is in the document's range."""
    said = []
    for column in [each for each in table if not each.startswith(DRAWS)]:
        best, worst = table[column].idxmin(), table[column].idxmax()
        budget = column.rpartition("=")[2]
        difference = losses.difference(sigma_name(losses, best, budget), sigma_name(losses, worst, budget))
        inside = "inside" if RECOMMENDED[0] <= best <= RECOMMENDED[1] else "outside"
        said.append(f"With B = {budget} the lowest loss is at sigma = {best:g}, {inside} the document's range of "
                    f"{RECOMMENDED[0]:g} to {RECOMMENDED[1]:g}; the highest is at {worst:g} "
                    f"(difference {difference.text()} nats).")
    return " ".join(said)


def modes_table(losses: Losses) -> pd.DataFrame:
    """Loss of the document's draws minus that of the exact budget (nats a token), with intervals: one row a sigma and budget,
    with the draws that give the budget and the pairs that both realise."""
    rows = []
    for name in [each for each in losses.jobs if each.startswith(DRAWS)]:
        other = name.replace(DRAWS, "Power law")
        if other in losses.jobs:
            one, two = (stack_of(losses.jobs[each][0].run) for each in (name, other))
            T = losses.jobs[name][0].run.train.length
            rows.append(row(losses.difference(name, other), name=name, draws=one.draws,
                            **{"pairs, draws": one.pairs(T), "pairs, budget": two.pairs(T)}))
    columns = ["name", "estimate", "low", "high", "seeds", "draws", "pairs, draws", "pairs, budget"]
    return pd.DataFrame(rows, columns=columns).set_index("name")


def say_modes(table: pd.DataFrame) -> str:
    """Whether it matters how the edges are drawn, at equal pairs: draws leave their number to chance, query by query."""
    if table.empty:
        return "No model was trained with the document's draws beside its exact budget."
    off = 100 * (table["pairs, draws"] / table["pairs, budget"] - 1)
    signs = [interval(own).sign() for _, own in table.iterrows()]
    widest = table.loc[table["estimate"].abs().idxmax()]
    numbers = listing([str(n) for n in sorted(set(table["draws"]))])
    how = f" ({seed_words(int(table['seeds'].min()))})" if seed_words(int(table["seeds"].min())) else ""
    return (f"The document's rule needs {numbers} draws a query for the pairs of the exact budget (realised within "
            f"{off.abs().max():.1f} %). Of {len(table)} comparisons at these pairs{how} the draws have a lower loss in "
            f"{signs.count('below')}, a higher in {signs.count('above')}, undecided {signs.count('undecided')}; the "
            f"largest difference is {interval(widest).text()} nats a token ({widest.name}).")


def sigma_name(losses: Losses, sigma: float, budget: str) -> str:
    return f"Power law, sigma={sigma:g}, B={budget}"


def recommended(losses: Losses, budget: int) -> str:
    """The model at the sigma that is nearest to the middle of the document's range."""
    names = [name for name in losses.jobs if name.startswith("Power law, sigma=") and name.endswith(f", B={budget}")]
    middle = sum(RECOMMENDED) / 2
    return min(names, key=lambda name: abs(float(name.partition("sigma=")[2].split(",")[0]) - middle))


def control_of(losses: Losses, budget: int) -> str:
    """The local window with the pairs of a budget; dense, where no local window was trained."""
    return next((name for name in losses.jobs if name.startswith("Local window") and name.endswith(f", B={budget}")), "Dense")


def verdict_local(losses: Losses, budget: int) -> str:
    """The document's first criterion: lower perplexity than local attention at the same edge budget."""
    model, control = recommended(losses, budget), control_of(losses, budget)
    difference = losses.difference(model, control)
    return verdict(lower(difference), f"Lower perplexity than local attention at the same edge budget (B = {budget})",
                   compared(model, control, difference))


def verdict_memory(runs: pd.DataFrame, losses: Losses, budget: int) -> str:
    """The second: at least 2x lower attention memory than dense attention. Counted."""
    name = recommended(losses, budget)
    rows = select(runs, "attention_memory_ratio")
    ratio = float(rows.loc[rows["name"] == name, "value"].iloc[0])
    return verdict(ratio >= 2, f"At least 2 times lower attention memory than dense (B = {budget})",
                   f"The scores of {name} take {ratio:.1f} times less memory than dense causal attention's at the "
                   f"training length (counted).")


def verdict_compute(runs: pd.DataFrame, losses: Losses, budget: int) -> str:
    """The third: no degradation relative to dense at fixed training compute (forward and backward, attention by pairs)."""
    model, dense = recommended(losses, budget), "Dense"
    share = compute_share(losses, model, dense)
    if share > 1:
        return verdict(None, "No degradation relative to dense at fixed training compute",
                       f"{model} does not compute less than dense.")
    difference = losses.difference(model, dense)
    handicap = loss_at_share(runs, dense, share)
    adjusted = Interval(difference.estimate - handicap, difference.low - handicap, difference.high - handicap,
                        difference.count)
    return verdict(not_higher(adjusted), f"No degradation relative to dense at fixed training compute (B = {budget})",
                   f"At equal tokens: {compared(model, dense, difference)} {model} needs {100 * share:.1f} % of "
                   f"dense's operations; dense stopped "
                   f"there would have lost {handicap:.3f} nats by its own curve, which leaves {adjusted.text()}.")


def compute_share(losses: Losses, model: str, dense: str) -> float:
    a, b = losses.jobs[model][0].run, losses.jobs[dense][0].run
    return training_flops(a, stack_of(a).pairs(a.train.length)) / training_flops(b, stack_of(b).pairs(b.train.length))


def loss_at_share(runs: pd.DataFrame, name: str, share: float) -> float:
    """What a model's loss still falls by in the last `1 - share` of its steps, from its curve (nats, at least 0).

    The curve is the light held-out evaluations', or the training loss where the profile asks for one evaluation only.
    """
    curves = [by_step(runs, measure) for measure in ("nll", "train_loss")]
    path = next(own for own in (curve[name].dropna() for curve in curves if name in curve) if len(own) > 1)
    last = path.index[-1]
    return max(0.0, float(np.interp(share * last, path.index, path)) - float(path.iloc[-1]))


def flow_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of the influence on a prediction that comes from far tokens, and counted score memory, by model."""
    share = select(runs, "far_influence_share").groupby("name")["value"].mean()
    memory = select(runs, "attention_memory_ratio").groupby("name")["value"].mean()
    table = pd.DataFrame({"far influence, %": 100 * share, "score memory, dense / pattern": memory,
                          "loss, nats": mean_loss(runs)})
    return table.sort_values("far influence, %", ascending=False)


def say_flow(table: pd.DataFrame, far: int) -> str:
    sparse = table.drop("Dense", errors="ignore")
    most, least = sparse.index[0], sparse.index[-1]
    return (f"Of the influence on a prediction, {sparse.iloc[0, 0]:.1f} % comes from at least {far} tokens back in "
            f"{most} and "
            f"{sparse.iloc[-1, 0]:.1f} % in {least}. "
            + correlation(sparse.iloc[:, 0], sparse["loss, nats"], "far influence", "The loss"))


def influence(runs: pd.DataFrame) -> pd.DataFrame:
    """Share of influence by distance (per cent): rows are first distances of the bins, columns models."""
    rows = select(runs, "influence_share")
    return 100 * rows.pivot_table(index="position", columns="name", values="value", aggfunc="mean")


def far_of(parameters: Any, length: int) -> int:
    """What the experiment calls far: a quarter of the training length unless a parameter says otherwise."""
    return parameters.far or length // 4


def draws_pattern(sigma: float, length: int, draws: int = 64) -> Pattern:
    """The law alone: a window of the query itself, draws with replacement, far enough that nothing is cut off."""
    return build("power_law", mode="draws", sigma=sigma, draws=draws, window=0, reach=length // 2)


def octaves(reach: int) -> np.ndarray:
    """Edges 1, 2, 4, ... of bins of distances, up to and with `reach`."""
    return np.array([*(2 ** n for n in range(reach.bit_length()) if 2 ** n < reach), reach + 1])


def distance_counts(pattern: Pattern, length: int) -> np.ndarray:
    """Edges of the first layer by octave of distance, of queries that have `reach` predecessors."""
    keys = pattern.plan(0, length).keys
    queries, columns = np.nonzero(keys >= 0)
    distance = queries - keys[queries, columns]
    kept = (distance > pattern.window) & (queries >= pattern.reach)
    return np.histogram(distance[kept], octaves(pattern.reach))[0].astype(float)


def expected_counts(pattern: Pattern, length: int) -> np.ndarray:
    """The same from the law: a distance is among m draws with probability `1 - (1 - q)^m`."""
    d = np.arange(1, pattern.reach + 1)
    once = 1 - (1 - law(pattern.sigma, 0, pattern.reach)) ** pattern.draws
    return (length - pattern.reach) * np.histogram(d, octaves(pattern.reach), weights=once)[0]


def say_future() -> str:
    share = future_share()
    return (f"Of the document's edges `j = (i + s d) mod n`, {100 * share:.0f} % point to the future of their query: "
            f"in a decoder they "
            f"{'leak what is to be predicted' if share > 0 else 'are harmless'}. Here edges go back only.")


def levels(runs: pd.DataFrame) -> dict[str, float]:
    """Loss of the models without a sigma, by name."""
    return mean_loss(runs[runs["family"] != "power-law"]).to_dict()


def pair_curves(runs: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """Training loss against the attended pairs that training has computed (forward)."""
    return curves_over(runs, losses, lambda run: stack_of(run).pairs(run.train.length) * run.train.batch)


def compute_curves(runs: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """Training loss against training operations (forward and backward)."""
    return curves_over(runs, losses, lambda run: training_flops(run, stack_of(run).pairs(run.train.length),
                                                                run.train.batch * run.train.length))


def curves_over(runs: pd.DataFrame, losses: Losses, a_step: Callable[[RunConfig], float]) -> pd.DataFrame:
    """Training loss of every language model (mean over seeds) over `a_step` units a step: rows are units, columns models."""
    paths, columns = by_step(runs, "train_loss"), []
    for name, jobs in losses.jobs.items():
        own = paths[name].dropna()
        columns.append(pd.Series(own.to_numpy(), index=own.index * a_step(jobs[0].run), name=name))
    return pd.concat(columns, axis=1).sort_index()


def say_compute(losses: Losses) -> str:
    shares = {name: compute_share(losses, name, "Dense") for name in losses.jobs if name != "Dense"}
    least = min(shares, key=shares.get)
    return (f"Attention is a small part of training at this size: {least} needs {100 * shares[least]:.0f} % of dense's "
            f"operations for the same tokens, "
            f"with {pairs_share(losses, least):.0f} % of its pairs.")


def pairs_share(losses: Losses, name: str) -> float:
    a, b = losses.jobs[name][0].run, losses.jobs["Dense"][0].run
    return 100 * stack_of(a).pairs(a.train.length) / stack_of(b).pairs(b.train.length)


def throughput(runs: pd.DataFrame) -> pd.DataFrame:
    """Measured training speed and peak memory of the process, by model: whole steps, on one CPU thread unless stated."""
    rows = named(runs).drop_duplicates("run")
    return rows.groupby("name")[["run_tokens_per_s", "run_peak_memory_mib"]].mean().rename(
        columns={"run_tokens_per_s": "tokens a second", "run_peak_memory_mib": "peak memory, MiB"}).sort_values(
            "tokens a second")


def graph_table(patterns: Mapping[str, Pattern], length: int) -> pd.DataFrame:
    """Of the first layer's graph: its diameter in hops, edges taken both ways, and its spectral gap; dense left out."""
    rows = [{"name": name, "diameter, hops": graph.diameter(pattern, 0, length),
             "spectral gap": graph.spectral_gap(pattern, 0, length)}
            for name, pattern in patterns.items() if pattern.name != "dense"]
    return pd.DataFrame(rows).set_index("name")


def say_graph(table: pd.DataFrame) -> str:
    near, far = table["diameter, hops"].idxmin(), table["diameter, hops"].idxmax()
    return (f"At this length the diameter goes from {table.loc[near, 'diameter, hops']:g} ({near}) to "
            f"{table.loc[far, 'diameter, hops']:g} hops ({far}); "
            f"the spectral gap is largest for {table['spectral gap'].idxmax()} ({table['spectral gap'].max():.3f}).")
