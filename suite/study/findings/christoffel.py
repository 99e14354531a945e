"""Notebook 5: words as offsets, their balance, what they reach, and the document's success criteria; audit rows 22 to 24."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.patterns import Pattern
from lib.patterns.christoffel import carry_word, coprime_neighbours
from suite.experiments.common import SEQUENCES
from suite.plan.cost import attention_training_flops
from suite.study import graph
from suite.study.conclusions import (above_chance, compared, correlation,
                                     listing, not_higher, verdict)
from suite.study.findings.power_law_sigma import curves_over
from suite.study.findings.shared import against, interval, stack_of, standing
from suite.study.losses import Losses
from suite.study.stats import Interval, seed_words, wilson
from suite.study.tables import by_step, select

# Audit row 24: what four layers reach of the distances 0 to 2047 (window, m, k; 0 random keys).
DOCUMENT_LENGTH = 2048


def offsets(m: int, k: int, length: int | None = None, window: int = 0) -> tuple[int, ...]:
    """Distances of the word m/k, its period repeated over `length`, the query itself and a window included."""
    word = carry_word(m, k, length)
    return tuple(sorted({*range(window + 1), *(o for o, carry in enumerate(word) if carry)}))


def say_balance(words: Sequence[tuple[int, int]]) -> str:
    """The document's prefix-balance guarantee, proved for the words that are used."""
    found = {f"{m}/{k}": graph.imbalance(carry_word(m, k)) for m, k in words}
    assert max(found.values()) <= 1, f"a word is not balanced: {found}"
    return (f"Every stretch of equal length of {listing(list(found))} holds the same number of keys up to 1: the words "
            f"are balanced.")


def residue_table(words: Mapping[str, tuple[int, int]], shown: int = 8) -> pd.DataFrame:
    """Audit row 22: gcd, period, gaps and residue classes of each word."""
    rows = []
    for name, (m, k) in words.items():
        ones = [o for o in offsets(m, k) if o > 0 and carry_word(m, k)[o]]
        shared = math.gcd(m, k)
        gaps = sorted({b - a for a, b in zip(ones[:-1], ones[1:], strict=True)})
        rows.append({"word": name, "gcd": shared, "period": k // shared, "gaps": ", ".join(map(str, gaps)),
                     f"residues mod {shown}": len({o % shown for o in ones}),
                     "coprime neighbours": str(coprime_neighbours(m, k))})
    return pd.DataFrame(rows).set_index("word")


def say_stride(words: Mapping[str, tuple[int, int]]) -> str:
    plain = []
    for name, (m, k) in words.items():
        ones = [o for o, carry in enumerate(carry_word(m, k)) if carry]
        if len({b - a for a, b in zip(ones[:-1], ones[1:], strict=True)}) == 1:
            plain.append(f"{name} (stride {ones[1] - ones[0]}, first offset {ones[0]})")
    others = [name for name in words if not any(p.startswith(f"{name} ") for p in plain)]
    return f"Plain strides in one residue class: {listing(plain)}. Words with two gaps: {listing(others)}."


def say_document_rule(m: int, k: int) -> str:
    """Audit row 23: the document's causal rule, taken literally."""
    ones = [o for o, carry in enumerate(carry_word(m, k)) if carry]
    kept = sum(1 for o in ones if o <= 0)
    return (f"The document's causal condition `i + o <= i` keeps {kept} of the {len(ones)} offsets (the first is "
            f"{ones[0]}): "
            f"{'every key set is empty' if kept == 0 else 'some keys are left'}. Here keys are `i - o`, and `i` itself.")


def reach(distances: Sequence[int], depth: int, length: int) -> list[float]:
    """Share of the distances 0 ... length - 1 that are sums of 1, 2, ... depth of `distances` (0 is one of them)."""
    return graph.reachable_distances([distances] * depth, length)[1:].mean(axis=1).tolist()


def document_reach(depth: int = 4, length: int = DOCUMENT_LENGTH, seed: int = 0) -> pd.DataFrame:
    """Audit row 24 at the document's size: rows are depths, columns masks of 64 keys of 512 (or near)."""
    random = np.random.default_rng(seed).choice(np.arange(1, 512), 64, replace=False)
    masks = {"Christoffel 64/512 (stride 8)": offsets(64, 512), "Christoffel 63/512": offsets(63, 512),
             "Christoffel 61/512": offsets(61, 512), "Christoffel 55/512, W=8": offsets(55, 512, window=8),
             "Random offsets, 64 of 512": (0, *random.tolist()), "Local window, W=64": tuple(range(65))}
    return pd.DataFrame({name: reach(found, depth, length) for name, found in masks.items()},
                        index=pd.Index(range(1, depth + 1), name="layers"))


def say_reach(table: pd.DataFrame) -> str:
    last = (100 * table.iloc[-1]).sort_values(ascending=False)
    words = last[[name.startswith("Christoffel") for name in last.index]]
    random = last[[name.startswith("Random") for name in last.index]]
    better = bool(len(random)) and bool(len(words)) and words.max() > random.max()
    listed = listing([f"{name} {value:.0f} %" for name, value in last.items()])
    return (f"After {table.index[-1]} layers the masks reach: {listed}. "
            f"Balance {'improves' if better else 'does not improve'} connectivity over random offsets.")


def stack_reach(patterns: Mapping[str, Pattern], length: int) -> pd.DataFrame:
    """The same for the masks trained here, layer after layer, each layer with its own offsets."""
    found = {name: graph.stack_sums(pattern, length)[1:].mean(axis=1) for name, pattern in patterns.items()}
    return pd.DataFrame(found, index=pd.Index(range(1, len(next(iter(found.values()))) + 1), name="layers"))


def names_at(losses: Losses, window: int) -> list[str]:
    """The models with a window W beside word or control, and dense."""
    return [name for name, jobs in losses.jobs.items() if jobs[0].labels.window in (None, window)]


def controls_at(patterns: Mapping[str, Pattern], window: int) -> dict[str, Pattern]:
    """The controls of equal edges made for a window W, their names without it."""
    plain = {name.removesuffix(f", W={window}"): pattern for name, pattern in patterns.items()}
    return {name: pattern for name, pattern in plain.items() if name.endswith("equal edges")}


def by_window(losses: Losses, windows: Sequence[int]) -> tuple[pd.DataFrame, list[str]]:
    """Loss of every model minus that of the local window of equal edges, one group a window W, and what each group says."""
    tables, said = [], []
    for window in windows:
        names = names_at(losses, window)
        reference = next((name for name in names if name.startswith("Local window")), "Dense")
        own = against(losses, reference, names)
        said.append(standing(own, reference))
        tables.append(own.set_axis([name.removesuffix(f", W={window}") for name in own.index]).assign(group=f"W = {window}"))
    return pd.concat(tables), said


def verdict_perplexity(runs: pd.DataFrame, losses: Losses, word: str, others: Sequence[str]) -> str:
    """The document's first criterion: matches or improves perplexity while reducing attention memory and compute."""
    found = {other: losses.difference(word, other) for other in others if other in losses.jobs}
    met = [not_higher(difference) for difference in found.values()]
    whole = False if False in met else None if None in met else True
    rows = select(runs, "attention_memory_ratio")
    ratio = float(rows.loc[rows["name"] == word, "value"].iloc[0])
    less = f"({ratio:.1f} times less than dense, counted)"
    return verdict(whole, f"{word} matches or improves perplexity with less attention memory {less}",
                   " ".join(compared(word, other, difference) for other, difference in found.items()))


def verdict_descent(runs: pd.DataFrame, losses: Losses, word: str, others: Sequence[str]) -> str:
    """The second: faster loss descent at equal sparse-attention operations. Masks of equal pairs spend them alike, step by
    step, so that the mean of the training loss over the steps decides."""
    area = by_step(runs, "train_loss")[list(losses.jobs)].mean()
    equal = [other for other in others if other in area.index]
    beside = "; ".join(f"{other} {area[other]:.3f}" for other in equal)
    return verdict(all(area[word] < area[other] for other in equal),
                   f"{word} descends faster at equal sparse-attention operations",
                   f"Its training loss, a mean over training, is {area[word]:.3f} nats; {beside}.")


def descent_curves(runs: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """Training loss against the operations of attention that training has spent."""
    return curves_over(runs, losses, lambda run: attention_training_flops(
        run, stack_of(run).pairs(run.train.length), run.train.batch * run.train.length))


def say_reach_and_loss(reached: pd.DataFrame, loss: pd.Series) -> str:
    """Whether masks that reach more distances have a lower loss."""
    shared = [name for name in reached if name in loss.index and name != "Dense"]
    return correlation(reached.loc[reached.index[-1], shared], loss.loc[shared],
                       "the share of distances that the stack reaches", "The loss")


def gradient_norms(runs: pd.DataFrame) -> pd.DataFrame:
    """Norm of the loss's gradient by layer at the end of training (mean over seeds): rows are layers, columns models."""
    return select(runs, "gradient_norm").pivot_table(index="layer", columns="name", values="value")


def say_gradient_norms(table: pd.DataFrame) -> str:
    """Whether some layer of a mask hardly learns: its smallest norm over its largest, beside dense attention's."""
    ratio = (table.min() / table.max()).sort_values()
    dense = f"; Dense has {ratio['Dense']:.2f}" if "Dense" in ratio else ""
    sparse = ratio.drop("Dense", errors="ignore")
    return (f"Smallest over largest gradient norm of a layer: from {sparse.iloc[0]:.2f} ({sparse.index[0]}) to "
            f"{sparse.iloc[-1]:.2f} ({sparse.index[-1]}){dense}. No gradient vanishes where this is far from 0.")


def cost_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Counted score memory, measured training speed and peak memory, by language model."""
    rows = select(runs, "attention_memory_ratio")
    table = rows.groupby("name").agg(**{
        "score memory, dense / mask": ("value", "mean"), "tokens a second": ("run_tokens_per_s", "mean"),
        "peak memory, MiB": ("run_peak_memory_mib", "mean")})
    return table.sort_values("score memory, dense / mask", ascending=False)


def residue_counts(patterns: Mapping[str, Pattern], length: int, modulus: int = 8) -> dict[str, pd.Series]:
    """How many distances of the first layer fall into each residue class; the query itself left out."""
    found = {}
    for name, pattern in patterns.items():
        distances = [d for d in graph.layer_distances(pattern, 0, length) if d]
        found[name] = pd.Series(graph.residues(distances, modulus), index=range(modulus))
    return found


def chances(table: pd.DataFrame) -> dict[str, float]:
    """Chance level of each task of a table of accuracies."""
    return table.groupby("group", sort=False)["chance"].mean().to_dict()


def of_sequences(shares: Sequence[float], answers: Sequence[int]) -> Interval:
    """Wilson's interval of an accuracy over runs (seeds): answers of one sequence depend on one another, so that a sequence
    counts once, and all runs are asked the same sequences. It holds the trained models fixed."""
    trials = min(SEQUENCES, *answers) if len(answers) > 1 else min(SEQUENCES, answers[0])
    return wilson(float(np.mean(shares)) * trials, trials, len(shares))


def task_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of the models trained on a task, with Wilson's interval and chance; `group` is the task."""
    columns = ["name", "group", "estimate", "low", "high", "chance", "answers", "seeds"]
    if "accuracy" not in set(runs["measure"]):
        return pd.DataFrame(columns=columns).set_index("name")
    rows = select(runs, "accuracy")
    rows = rows[rows["split"] == rows["setting"]]
    models = [name.removesuffix(f", {task}") for name, task in zip(rows["name"], rows["setting"], strict=True)]
    value = runs[runs["step"].isna()].set_index(["measure", "run", "split"])["value"]
    found = []
    for (task, name), own in rows.assign(model=models).groupby(["setting", "model"], sort=False):
        answers = [int(value["count", run, task]) for run in own["run"]]
        solved = of_sequences(list(own["value"]), answers)
        found.append((name, task, solved.estimate, solved.low, solved.high, float(value["chance", own["run"].iloc[0], task]),
                      answers[0], len(own)))
    return pd.DataFrame(found, columns=columns).set_index("name")


def say_tasks(table: pd.DataFrame) -> str:
    """Whether a task separates the masks, and who solves it."""
    said = []
    for task, own in table.groupby("group", sort=False):
        ranked = own.sort_values("estimate", ascending=False)
        best, worst = ranked.iloc[0], ranked.iloc[-1]
        word = "separates" if best["low"] > worst["high"] else "does not separate"
        solved = [f"{name} {row['estimate']:.2f} ({above_chance(interval(row), row['chance'])})"
                  for name, row in ranked.iterrows()]
        seeds = seed_words(int(own["seeds"].min()))
        said.append(f"Trained for directly{f', {seeds}' if seeds else ''}, {task} {word} the masks "
                    f"(chance {best['chance']:.3f}): {listing(solved)}.")
    return " ".join(said) or "No task was trained for directly."
