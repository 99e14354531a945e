"""Notebook 4: the law of the edges and its graph, and the loss by sigma and by compute."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from lib.patterns import Pattern, build
from suite.study import graph
from suite.study.comparisons import compute_share
from suite.study.frames import Model, Study, as_table

POWER_LAW, DRAWS = "Power law", "Power law, draws"      # exact budgets; the document's own draws with replacement


def law(sigma: float, window: int, reach: int) -> np.ndarray:
    """q(d) for d = window + 1 ... reach, the long-range part of the document's distribution, float64."""
    d = np.arange(window + 1, reach + 1)
    return d ** -(1.0 + sigma) / (d ** -(1.0 + sigma)).sum()


def realised(sigmas: Sequence[float], length: int = 1024, radius: int = 8, draws: int = 48) -> pd.DataFrame:
    """Audit row 20: new neighbours a query beyond the window from the document's draws, far from the text's start."""
    rows = []
    for sigma in sigmas:
        pattern = build("power_law", mode="draws", sigma=sigma, draws=draws, window=radius)
        degree = (pattern.plan(0, length).keys >= 0).sum(axis=-1)[length // 2:].mean()
        rows.append({"sigma": sigma, "draws": draws, "new neighbours": degree - radius - 1, "keys a query": degree})
    return pd.DataFrame(rows).set_index("sigma")


def octaves(reach: int) -> np.ndarray:
    """Edges 1, 2, 4, ... of bins of distances, up to and with `reach`."""
    return np.array([*(2 ** n for n in range(reach.bit_length()) if 2 ** n < reach), reach + 1])


def distance_counts(pattern: Pattern, length: int) -> np.ndarray:
    """Edges of the first layer by octave of distance, of queries that have `reach` predecessors."""
    queries, keys = graph.edges(pattern, 0, length)
    distance = (queries - keys)[queries >= pattern.reach]
    return np.histogram(distance[distance > pattern.window], octaves(pattern.reach))[0].astype(float)


def graph_table(study: Study) -> pd.DataFrame:
    """Of the first layer's graph: its diameter in hops, edges taken both ways, and its spectral gap; dense left out."""
    rows = [{"name": model.name, "diameter, hops": graph.diameter(model.pattern, 0, model.length),
             "spectral gap": graph.spectral_gap(model.pattern, 0, model.length)}
            for model in study.language_models if model.run.pattern.name != "dense"]
    return pd.DataFrame(rows).set_index("name")


def by_sigma(study: Study) -> pd.DataFrame:
    """Loss by sigma: rows are sigmas, one column a series and budget (nats a token, mean over domains and seeds)."""
    loss = study.losses()
    rows = [{"sigma": model.labels.sigma, "loss": loss[model.name],
             "column": f"{model.labels.series}, B={model.labels.budget}"}
            for model in study.language_models if model.labels.sigma is not None]
    return pd.DataFrame(rows).pivot_table(index="sigma", columns="column", values="loss")


def levels(study: Study) -> dict[str, float]:
    """Loss of the models without a sigma, by name."""
    loss = study.losses()
    return {model.name: loss[model.name] for model in study.language_models if model.labels.sigma is None}


def modes_table(study: Study) -> pd.DataFrame:
    """Loss of the document's draws minus that of the exact budget, the draws that give it, and the pairs of both."""
    pairs = [(model, study.model(POWER_LAW, sigma=model.labels.sigma, budget=model.labels.budget))
             for model in study.language_models if model.labels.series == DRAWS]
    table = as_table({model.name: study.difference(model, exact) for model, exact in pairs}).drop(columns="df")
    return table.assign(draws=[model.pattern.draws for model, _ in pairs],
                        **{"pairs, draws": [model.pairs for model, _ in pairs],
                           "pairs, budget": [exact.pairs for _, exact in pairs]})


def curves_over(study: Study, a_step: Callable[[Model], float]) -> pd.DataFrame:
    """Training loss of every language model (mean over seeds) over `a_step` units a step, by units and model."""
    curves = study.curves(*study.language_models, measure="train_loss")
    columns = [(curves[model.name].dropna(), a_step(model)) for model in study.language_models]
    return pd.concat([curve.set_axis(curve.index * step) for curve, step in columns], axis=1).sort_index()


def shares_of_dense(study: Study) -> pd.DataFrame:
    """Attended pairs and training operations of every model for the same tokens, per cent of dense's."""
    dense = study.find("Dense")[0]
    rows = [{"name": model.name, "pairs, %": 100 * model.pairs / dense.pairs,
             "operations, %": 100 * compute_share(model, dense)}
            for model in study.language_models if model != dense]
    return pd.DataFrame(rows).set_index("name")
