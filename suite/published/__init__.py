"""Numbers published with the Fibonacci paper (arxiv.org/abs/2606.28560, experiment database), to stand beside ours.

They were measured at 426 M training tokens of other text with another tokeniser and a model of 61 M parameters:
the order and the size of differences can be compared with ours, the perplexities themselves cannot.
"""

import numpy as np
import pandas as pd

from lib import paths
from suite.experiments.common import title

TOKENS_A_STEP = 32_768          # of all runs
REMARK = ("Published: 61 M parameters, 426 M tokens of web text, T = 1024, another tokeniser. "
          "Compare differences and directions, not perplexities.")


def read(name: str) -> pd.DataFrame:
    """A published table; where rows are models, with the suite's names of schedules and of the model (`series`), and
    where they are perplexities with their logarithm (`nll`)."""
    table = pd.read_csv(paths.PUBLISHED / f"{name}.csv")
    if "schedule" in table:
        table["schedule"] = table["schedule"].replace("staggered", "linear")
        table["series"] = ["Dense" if base == "dense" else title(f"{base}/{schedule}")
                           for base, schedule in zip(table["base"], table["schedule"], strict=True)]
    return table.assign(nll=np.log(table["perplexity"])) if "perplexity" in table else table


def window(ours: int) -> int:
    """The published window that is put beside ours: the same where the paper has it, else 8."""
    return ours if ours in (6, 8, 10, 12) else 8


def ramp_gain(by: str) -> pd.DataFrame:
    """Gain of the ramp over fixed rungs at W = 8, nats a token, by dataset and by training `tokens` or by `position`,
    the first of a bin of 128."""
    name, index, scale = {"tokens": ("training_curves", "step", TOKENS_A_STEP),
                          "position": ("position_loss", "bin", 128)}[by]
    table = read(name).query("window == 8 and seed == 42 and base == 'fibonacci'")
    losses = table.pivot_table(index=index, columns=["schedule", "dataset"], values="nll")
    gain = losses["fixed"] - losses["linear"]
    return gain.set_axis(pd.Index(scale * gain.index, name=by))


def spread_over_seeds() -> pd.DataFrame:
    """Published W = 12 replicates: mean over seeds, and both formulas of the standard deviation (audit row 18)."""
    found = read("perplexity").query("window == 12").groupby(["series", "dataset"])["perplexity"].agg(
        seeds="count", mean="mean", population_std=lambda v: v.std(ddof=0), sample_std=lambda v: v.std(ddof=1))
    return found[found["seeds"] > 1].reset_index()


def learned_cost() -> float:
    """Published training time of learned runs over that of fixed ones, a mean over windows."""
    seconds = read("cost").groupby(["base", "schedule"])["wall_seconds"].mean()
    return float(seconds["fibonacci", "learned"] / seconds["fibonacci", "fixed"])


def dense_inference() -> float:
    """Published inference speed of dense attention over that of fixed keys, means over models."""
    rates = read("battery").query("metric == 'tokens_per_sec_infer'")
    dense, learned = rates["schedule"] == "dense", rates["schedule"] == "learned"
    return float(rates.loc[dense, "value"].mean() / rates.loc[~dense & ~learned, "value"].mean())


def marked_cells() -> pd.DataFrame:
    """Each cell of the published two-distance probe: mechanism, depth, start, seed, distance, accuracy, alphas."""
    return read("retrieval_probe").query("experiment == 'marked' and kind == 'target'").reset_index(drop=True)
