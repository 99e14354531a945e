"""The loss by each layer's alpha: against a model whose theta is set by hand, and the model is left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eval_fakes import CORPUS, real, values

from lib.config import Evaluation
from lib.data import heldout_windows
from lib.errors import SuiteError
from suite.evals import build, evaluate


def learned(**own):
    return real(pattern="learned", rungs=8, window=2, **own)


def mean_loss(model, tokens):
    windows = [heldout_windows(CORPUS, domain, 48, tokens) for domain in CORPUS.domains]
    return float(torch.stack([model.token_losses(*pair).double().mean() for pair in windows]).mean())


def test_when_one_alpha_is_changed_then_the_loss_is_that_of_a_model_with_that_alpha():
    model, run = learned()
    result = evaluate(Evaluation.of("alpha_landscape", alphas=(0.7, 1.3), tokens=240), model, run, CORPUS)
    before = mean_loss(model, 240)
    for layer in (0, 1):
        for alpha in (0.7, 1.3):
            other, _ = learned()
            with torch.no_grad():
                other.blocks[layer].attention.theta.fill_(float(torch.logit(torch.tensor(alpha - 0.5))))
            assert other.alphas()[layer] == pytest.approx(alpha)
            [change] = values(result, "alpha_nll_change", layer=layer, variant=f"alpha={alpha:g}")
            assert change == pytest.approx(mean_loss(other, 240) - before, abs=2e-6)
    assert len({round(value, 9) for value in values(result, "alpha_nll_change")}) == 4
    changes = result.arrays["change"]
    assert changes.shape == (2, 2, 10)
    assert np.allclose(changes[1, 0].mean(), values(result, "alpha_nll_change", layer=1)[0])


def test_when_alpha_is_set_to_what_it_is_then_nothing_changes_and_the_model_is_left_alone():
    model, run = learned()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    result = evaluate(Evaluation.of("alpha_landscape", alphas=(1.0,), tokens=96), model, run, CORPUS)
    assert values(result, "alpha_nll_change") == [0.0, 0.0]
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_when_there_is_no_alpha_or_none_that_theta_reaches_then_the_error_says_so():
    model, run = real(pattern="local", window=3)
    with pytest.raises(SuiteError, match="local"):
        evaluate(Evaluation.of("alpha_landscape"), model, run, CORPUS)
    with pytest.raises(SuiteError, match="alphas"):
        build("alpha_landscape", alphas=(0.5, 1.0))
