"""`torch.compile` around the model's layers: the same numbers, and a run that goes on where it does not work."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace

import pytest
import torch
from small_run import RUN, trained, values, weights, with_recipe

from lib import compiled
from lib.clock import Clock
from lib.config import PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.ranks import Ranks, Step
from lib.training import build_optimizer
from suite.settings.fingerprints import run_fingerprint
from suite.tasks import make_source

EPS = torch.finfo(torch.float32).eps


def first_step(run: RunConfig) -> tuple[Step, float, dict[str, torch.Tensor]]:
    """The first step as training takes it: loss and gradients."""
    model, batch = build_model(run), make_source(run.data, None).batch(1, 0, run.train.batch, run.train.length)
    step = Step(model, run, Ranks(), "cpu")
    step.prepare(*batch, build_optimizer(model, run.train))
    return step, step.gradients(*batch, Clock({}, "cpu")), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
def test_when_a_step_is_compiled_then_loss_gradients_and_names_of_weights_are_those_without_it(monkeypatch):
    _, wanted, gradients = first_step(RUN)
    monkeypatch.setenv("SUITE_COMPILE", "1")
    step, loss, found = first_step(RUN)
    assert step.loss.hidden is not step.model.hidden, "it was not compiled"
    assert list(step.model.state_dict()) == list(build_model(RUN).state_dict())
    rounding = 4 * RUN.train.batch * RUN.train.length * EPS         # the sums over tokens, in another order
    assert loss == pytest.approx(wanted, rel=rounding)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=rounding, atol=rounding * gradient.abs().max().item(),
                                   msg=lambda text, name=name: f"{name}: {text}")


def broken(model, dynamic):
    def call(*_):
        raise RuntimeError("\nno compiler is installed\nand much more")
    return call


def test_when_compiling_fails_then_one_line_says_so_and_the_run_is_the_one_without_it(tmp_path, monkeypatch, caplog):
    plain = trained(RUN, tmp_path / "plain")
    monkeypatch.setenv("SUITE_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", broken)
    result = trained(RUN, tmp_path / "broken")
    assert weights(tmp_path / "broken") == weights(tmp_path / "plain") and values(result) == values(plain)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "torch.compile does not work here (RuntimeError: no compiler is installed): the run goes on without it; "
        "SUITE_COMPILE=0 does not try"]


def test_when_memory_ends_in_a_compiled_program_then_it_is_not_the_compilers_fault(monkeypatch):
    def small(hidden, dynamic):
        def call(tokens):
            if len(tokens) > 1:
                raise torch.OutOfMemoryError("simulated")
            return hidden(tokens)
        return call
    monkeypatch.setenv("SUITE_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", small)
    step, _, _ = first_step(RUN)
    assert step.at_once == 1 and step.loss.hidden is not step.model.hidden


PAPER = RunConfig(PatternSpec("dense"))


@pytest.mark.parametrize("run, device, asked, reason", [
    (PAPER, "cuda", "", ""), (PAPER, "cuda", "0", "SUITE_COMPILE=0"), (PAPER, "cpu", "1", ""),
    (PAPER, "cpu", "", "on a cpu the suite has kernels of its own"), (RUN, "cuda", "", "too short"), (RUN, "cuda", "1", ""),
    (with_recipe(PAPER, steps=300), "cuda", "", "too short"),
    (replace(PAPER, pattern=PatternSpec("blurred")), "cuda", "1", "changes from step to step")])
def test_when_a_run_is_long_enough_and_on_a_gpu_then_it_is_compiled_unless_the_variable_says_otherwise(
        run, device, asked, reason):
    found = compiled.why_not(run, device, asked)
    assert reason in found if reason else found == ""


def test_when_a_run_is_not_compiled_then_the_log_says_why(caplog, monkeypatch):
    monkeypatch.delenv("SUITE_COMPILE", raising=False)
    with caplog.at_level(logging.INFO):
        assert compiled.compiled(build_model(RUN), RUN, "cpu") is None
    assert caplog.messages == ["run without torch.compile: on a cpu the suite has kernels of its own; SUITE_COMPILE=1 compiles "
                               "all the same"]


def test_when_the_variable_is_set_then_the_fingerprint_stays_and_a_wrong_value_is_refused(monkeypatch):
    before = run_fingerprint(RUN, None)
    monkeypatch.setenv("SUITE_COMPILE", "1")
    assert run_fingerprint(RUN, None) == before
    with pytest.raises(SuiteError, match="unknown value of SUITE_COMPILE 'yes'"):
        compiled.why_not(RUN, "cuda", "yes")
