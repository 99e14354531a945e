"""How many windows fit: what is measured of a model, and what is free, against numbers known beforehand."""

from __future__ import annotations

import psutil
import pytest
import torch
from small_run import RUN, with_recipe

from lib import fit, ranks
from lib.model import build_model
from lib.ranks import Ranks, Step
from lib.training import build_optimizer
from suite.tasks import make_source

IN, MIDDLE = 32, 48


class Two(torch.nn.Module):
    """Of each row a backward pass needs the input, what the sine had, and what it gave; the weights are there anyway."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(IN, MIDDLE), torch.nn.Linear(MIDDLE, 1)
        self.calls = []

    def forward(self, rows: int) -> torch.Tensor:
        self.calls.append(rows)
        return self.down(torch.sin(self.up(torch.ones(rows, IN)))).sum()


A_ROW = 4 * (IN + 2 * MIDDLE)


def test_when_a_model_is_known_then_what_it_keeps_a_row_is_measured_exactly():
    model = Two()
    assert fit.kept_bytes(model, model, 8) == (0, A_ROW)
    assert model.calls == [1, 2]
    assert fit.kept_bytes(model, model, 1) == (0, A_ROW) and model.calls == [1, 2, 1]


def test_when_something_is_kept_of_any_batch_then_it_is_not_counted_by_row():
    model, fixed = Two(), torch.ones(1000, requires_grad=True)
    assert fit.kept_bytes(lambda rows: model(rows) + (fixed * 2).square().sum(), model, 8) == (4000, A_ROW)


@pytest.mark.parametrize("fitting, rows", [(100, 16), (16, 16), (15.9, 8), (7.9, 6), (6, 6), (1, 1), (0.1, 1)])
def test_when_memory_is_short_then_the_batch_is_taken_in_parts_of_equal_size(monkeypatch, fitting, rows):
    model = Two()
    still = 3 * sum(p.nbytes for p in model.parameters())
    free = (fitting * A_ROW * (1.1 + 2) + still + fit.WORK["cpu"]) / fit.SHARE["cpu"]
    monkeypatch.setattr(fit, "free_memory", lambda device: free + 1)
    assert fit.rows_at_once(model, 16, model, 0, "cpu") == rows


def test_when_the_optimiser_holds_its_moments_already_then_they_are_not_set_aside_again(monkeypatch):
    model, asked = build_model(RUN), {}
    optimizer, batch = build_optimizer(model, RUN.train), make_source(RUN.data, None).batch(1, 0, 4, 16)
    monkeypatch.setattr(ranks, "rows_at_once", lambda loss, rows, model, held, device, copies: asked.update(
        held=held, copies=copies) or rows)
    step = Step(model, RUN, Ranks(), "cpu")
    step.prepare(*batch, optimizer)
    assert asked == {"held": 0, "copies": 3}
    model.loss(*batch).backward()
    optimizer.step()
    step.prepare(*batch, optimizer)
    moments = 2 * sum(p.nbytes for p in model.parameters())
    assert moments <= asked["held"] <= moments + 8 * len(list(model.parameters()))         # and a counter each


def test_when_memory_is_short_then_what_a_part_keeps_fits_into_it(monkeypatch):
    """By the layers' own count: 2 layers of some KiB a token cannot be taken 64 windows at once in 8 MiB."""
    run = with_recipe(batch=64, length=128)
    model = build_model(run)
    room = 8 * 2 ** 20
    monkeypatch.setattr(fit, "free_memory", lambda device: 2 * (room + fit.WORK["cpu"]))
    step = Step(model, run, Ranks(), "cpu")
    batch = make_source(run.data, None).batch(1, 0, 64, 128)
    step.prepare(*batch, build_optimizer(model, run.train))
    assert 1 <= step.at_once < 64
    assert fit.kept_by(lambda: step.forward(*(x[:step.at_once] for x in batch)), model) < room
    assert fit.kept_by(lambda: step.forward(*batch), model) > room


def groups(folder, monkeypatch, *limits: tuple[str, int]):
    """Control groups one in another, each with a limit and bytes in use, 100 of which are files that can be dropped."""
    at, own = folder / "cgroup", ""
    monkeypatch.setattr(fit, "CGROUPS", at)
    monkeypatch.setattr(fit, "OWN_CGROUP", folder / "own")
    for number, (limit, used) in enumerate(limits):
        own += f"/{number}" if number else ""
        here = at / own.lstrip("/")
        here.mkdir(parents=True, exist_ok=True)
        for name, text in (("max", limit), ("current", used), ("stat", "anon 5\nactive_file 60\ninactive_file 40\nfile 999\n")):
            (here / f"memory.{name}").write_text(f"{text}\n")
    (folder / "own").write_text(f"0::{own or '/'}\n")


def test_when_a_batch_system_limits_memory_then_the_least_of_all_limits_counts(tmp_path, monkeypatch):
    groups(tmp_path, monkeypatch, ("max", 5), ("3000", 1000), ("5000", 1000))
    assert sorted(fit.allowed()) == [2100, 4100]
    assert fit.free_memory("cpu") == 2100


def test_when_nothing_limits_memory_then_what_the_machine_has_counts(tmp_path, monkeypatch):
    groups(tmp_path, monkeypatch, ("max", 5))
    assert fit.allowed() == []
    monkeypatch.setattr(fit, "OWN_CGROUP", tmp_path / "absent")
    assert 0 < fit.free_memory("cpu") <= psutil.virtual_memory().total
