"""Notebook 2: does alpha move, does it help, what does it cost; audit rows 6 to 11."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns import build
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.rungs import base_rungs
from suite import published
from suite.study.conclusions import compared, listing
from suite.study.findings.shared import find, has
from suite.study.losses import Losses
from suite.study.tables import named

FIXED, RAMP = "Fibonacci, fixed", "Fibonacci, linear ramp"
LEARNED, FROM_RAMP = "Fibonacci, learned", "Fibonacci, learned from the ramp"


def source_rows(window: int = 8, rungs: int = 15, length: int = 1024, alpha: float = 0.997) -> tuple[int, int]:
    """Audit row 11: key rows that a query reads with blended rungs, and with integer ones."""
    blended = fractional_rungs(base_rungs("fibonacci", rungs, length), window, alpha, length)
    fixed = build("scaled_base", window=window, rungs=rungs).plan(0, length).distances
    return window + 1 + sum(1 + (t > 0) for _, t, _ in blended), len(fixed)


def say_source_rows() -> str:
    blended, fixed = source_rows()
    return (f"At the paper's W = 8 a learned alpha off the integers reads {blended} key rows a query, a fixed one {fixed}: "
            f"they do not attend the same keys.")


def travel(recipe: TrainConfig) -> float:
    """How far a schedule can move theta: Adam's step is at most about the learning rate, so the sum of the rates."""
    from lib.training import learning_rate
    return recipe.theta_lr * sum(learning_rate(step, recipe) for step in range(recipe.steps))


def say_travel(recipe: TrainConfig, whose: str) -> str:
    far = travel(recipe)
    reach = "cannot reach the ramp's ends, 0.5 and 1.5" if alpha_of(far) < 1.49 else "can come close to the ramp's ends"
    return (f"{whose}: over {recipe.steps} steps theta can move by about {far:.2f}, so alpha from 1 to "
            f"{alpha_of(-far):.2f} ... {alpha_of(far):.2f}; it {reach}.")


def alpha_steps(runs: pd.DataFrame, probe: bool = False) -> dict[str, pd.DataFrame]:
    """Paths of alpha by model, of language models or of the probe's (asked for distances between rungs): rows are steps,
    columns layers; first seed."""
    rows = named(runs)
    rows = rows[(rows["measure"] == "alpha") & rows["step"].notna()]
    rows = rows[rows["setting"].fillna("").str.contains("probe") == probe]
    found = {}
    for name, own in rows.groupby("name", sort=False):
        first = own[own["run"] == own["run"].iloc[0]]
        found[name] = first.pivot_table(index="step", columns="layer", values="value")
    return found


def moves(paths: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How far alpha moved: from first to last step, by model; the largest over layers, and where it ended."""
    if not paths:
        return pd.DataFrame(columns=["largest move", "lowest at the end", "highest at the end"])
    rows = [{"name": name, "largest move": float((path.iloc[-1] - path.iloc[0]).abs().max()),
             "lowest at the end": float(path.iloc[-1].min()), "highest at the end": float(path.iloc[-1].max())}
            for name, path in paths.items()]
    return pd.DataFrame(rows).set_index("name")


def say_moves(table: pd.DataFrame, limit: float = 0.05) -> str:
    if table.empty:
        return "No model with a learned alpha was trained here."
    parts = [f"alpha of {name} " + (f"moves by up to {row['largest move']:.3f}" if row["largest move"] > limit else
                                    f"stays within {limit} of its start (at most {row['largest move']:.3f})")
             for name, row in table.iterrows()]
    sentence = "; ".join(parts)
    return sentence[0].upper() + sentence[1:] + "."


def say_learned(runs: pd.DataFrame, losses: Losses, window: int) -> str:
    """Every learned model against the fixed schedule that it started from."""
    said = []
    for name in losses.jobs:
        start = RAMP if name.startswith(FROM_RAMP) else FIXED if name.startswith(LEARNED) else ""
        if start and has(runs, start):
            other = find(runs, start, window)
            said.append(compared(name, other, losses.difference(name, other)))
    return " ".join(said) or "No learned model has its fixed counterpart here."


def speed(runs: pd.DataFrame, learned: str = LEARNED, fixed: str = FIXED) -> float:
    """Training throughput of the fixed model over that of the learned one, both measured here; medians over runs."""
    rows = runs[runs["setting"].fillna("") == ""].drop_duplicates("run").set_index("series")["run_tokens_per_s"]
    return float(np.median(rows.loc[[fixed]]) / np.median(rows.loc[[learned]]))


def say_speed(runs: pd.DataFrame) -> str:
    """Audit row 10."""
    if not has(runs, LEARNED, FIXED):
        return "Learned and fixed were not both trained: no cost to compare."
    ratio, theirs = speed(runs), published.learned_cost()
    word = "less than" if ratio < 0.9 * theirs else "as much as" if ratio < 1.1 * theirs else "more than"
    return (f"A learned alpha costs {ratio:.1f} times the training time of a fixed one here, {word} the published "
            f"{theirs:.1f}: "
            f"a fractional rung needs two integer logits, not a gathered and blended key.")


PLACES = {"probe_distances": "between rungs", "probe_rungs": "on rungs"}


def probe_cells(runs: pd.DataFrame, parameters: Any) -> dict[str, pd.DataFrame]:
    """Accuracy of every cell of the copy probe, between rungs and on rungs: one row a model, rate, depth and seed, one
    column a distance."""
    rows = runs[(runs["measure"] == "accuracy") & runs["step"].isna()]
    rows = rows.assign(distance=rows["split"].fillna("").str.extract(r"^distance=(\d+)$")[0]).dropna(subset="distance")
    settings = rows["setting"].str.removeprefix("copy probe, ")
    rows = rows.assign(model=rows["series"] + ", " + settings + ", seed " + rows["seed"].astype(str),
                       distance=rows["distance"].astype(int))
    found = {}
    for field, where in PLACES.items():
        own = rows[rows["distance"].isin(getattr(parameters, field))]
        if len(own):
            found[where] = own.pivot_table(index="model", columns="distance", values="value", sort=False)
    return found


def say_probe(cells: dict[str, pd.DataFrame], runs: pd.DataFrame, solved: float = 0.5) -> str:
    """Cells, not a mean: how many are found."""
    if not cells:
        return "The copy probe was not asked for (probe_depths is empty)."
    chance = float(runs.loc[runs["measure"] == "chance", "value"].iloc[0])
    parts = [f"{where} {int((table > solved).sum().sum())} of {table.size}" for where, table in cells.items()]
    return f"Cells of the copy probe with an accuracy above {solved:g} (chance {chance:.3f}): {', '.join(parts)}."


def say_landings(runs: pd.DataFrame, parameters: Any, solved: float = 0.5) -> str:
    """Whether the cells that are solved between rungs have a rung that alpha has moved there (layers may also add up)."""
    rows = runs[runs["setting"].fillna("").str.contains("probe") & runs["step"].isna()]
    alphas = rows[rows["measure"] == "alpha"].groupby("run")["value"].apply(list)
    said = []
    for distance in parameters.probe_distances:
        right = rows[(rows["measure"] == "accuracy") & (rows["split"] == f"distance={distance}") & (rows["value"] > solved)]
        landed = [run for run in right["run"] if lands(alphas.get(run, [1.0]), distance, parameters.probe_length)]
        rates = sorted({setting.rpartition(", ")[2] if "rate" in setting else "theta rate x1"
                        for setting in right["setting"]})
        how = f" ({listing(rates)})" if rates else ""
        said.append(f"distance {distance} is found by {len(right)} model{'' if len(right) == 1 else 's'}{how}, "
                    f"{len(landed)} of them with a rung within one token of it")
    return f"Between rungs, {'; '.join(said)}." if said else "No distance between rungs was asked for."


def lands(alphas: Sequence[float], distance: int, length: int) -> bool:
    """Whether some layer's alpha puts a rung of the Fibonacci base onto a distance (the nearer of its two rows)."""
    return any(abs(alpha * f - distance) < 1 for alpha in alphas for f in base_rungs("fibonacci", 15, length))


def published_cells() -> pd.DataFrame:
    """The published probe in the same form: one row a depth, start and seed."""
    table = published.marked_cells().query("mechanism == 'fib_blur'")
    start = table["staggered_init"].map({0: "start at 1", 1: "start at the ramp"})
    table = table.assign(model=[f"depth {d}, {s}, seed {seed}" for d, s, seed in
                                zip(table["depth"], start, table["seed"], strict=True)])
    return table.pivot_table(index="model", columns="distance", values="accuracy", sort=False)


def say_published_cells() -> str:
    """Audit rows 6 to 8, computed from the published cells."""
    table = published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0")
    alphas = [ast.literal_eval(text) for text in table["alphas"]]
    moved = max(abs(a - 1) for row in alphas for a in row)
    two = table[table["depth"] == 2]
    cells = [f"seed {seed}: {listing([f'{a:.3f}' for a in own['accuracy']])}" for seed, own in two.groupby("seed")]
    within = "stays" if moved <= 0.05 else "does not stay"
    return (f"Published: a uniform start {within} within 0.05 of 1 (it moves by up to {moved:.3f}), and its depth-2 "
            f"mean hides two "
            f"outcomes ({'; '.join(cells)}).")


def published_moves() -> str:
    """Audit row 6: how far alpha moves in the published blur probes, and whether a rung ends on the distance asked for."""
    table = published.read("retrieval_probe").query("mechanism in ('fib_blur', 'fib_blur_stag')")
    table = table.drop_duplicates(["experiment", "mechanism", "depth", "seed", "staggered_init", "trained_distance"])
    found = []
    for probe in table.itertuples():
        alphas = [a["alpha"] if isinstance(a, dict) else a for a in ast.literal_eval(probe.alphas)]
        ramp = probe.staggered_init == 1 or probe.mechanism == "fib_blur_stag"
        inner = range(1, len(alphas) - 1) if ramp else range(len(alphas))        # the ramp's ends have no finite theta
        moved = [abs(alphas[at] - (0.5 + at / (len(alphas) - 1) if ramp else 1)) for at in inner]
        landed = any(abs(a * f - probe.trained_distance) < 1.5 for a in alphas for f in base_rungs("fibonacci", 15, 1024))
        found.append((max(moved, default=0.0), landed and probe.trained_distance > 0))
    farthest, landed = max(found)
    word = "lands a rung on the distance that is asked for" if landed else "lands no rung on the distance that is asked for"
    return (f"In {len(found)} published blur probes alpha moves by up to {farthest:.3f} from its start, and the run "
            f"that moves most "
            f"{word}: under a task that rewards it, the scalar does learn.")


def landscapes(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Loss of a learned model as one layer's alpha is set to other values, by model: rows are alphas, columns layers (nats,
    minus the loss at the alphas that were learned; mean over seeds)."""
    rows = named(runs)
    rows = rows[(rows["measure"] == "alpha_nll_change") & rows["step"].isna()]
    rows = rows.assign(alpha=rows["variant"].str.removeprefix("alpha=").astype(float))
    return {name: own.pivot_table(index="alpha", columns="layer", values="value")
            for name, own in rows.groupby("name", sort=False)}


def say_landscape(table: pd.DataFrame, flat: float = 0.02) -> str:
    """Is the loss flat in alpha? (The paper's explanation of why alpha does not move.)"""
    span = table.max() - table.min()
    layers = [str(layer) for layer in span.index[span > flat]]
    lowest = float(table.min().min())
    return (f"Setting one layer's alpha to {table.index[0]:g} ... {table.index[-1]:g} changes the loss by at most "
            f"{span.max():.3f} nats "
            f"(median layer {span.median():.3f}); it is flat to {flat:g} nats in {len(span) - len(layers)} of "
            f"{len(span)} layers"
            f"{f', not in {listing(layers)}' if layers else ''}. No other value of one alpha gains more than "
            f"{max(0.0, -lowest):.3f} nats.")
