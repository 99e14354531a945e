"""The alpha of every layer of a finished model: where learning has put it."""

from dataclasses import dataclass

from lib.errors import SuiteError
from suite.evals.base import EvalResult, Evaluator, Metric


@dataclass(frozen=True, kw_only=True)
class Alphas(Evaluator):
    """Measure `alpha`, one a layer."""
    name = "alphas"

    def measure(self, model, run, corpus, device):
        alphas = model.alphas()
        if not alphas:
            raise SuiteError(f"evaluation {self.name} needs a pattern that learns alpha; {run.pattern.name!r} has none")
        return EvalResult([Metric("alpha", float(alpha), layer=layer) for layer, alpha in enumerate(alphas)])
