"""Part 4: does training get faster?"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from lib import patterns
from lib.config import ModelConfig, TrainConfig
from lib.model import Transformer
from suite.bench.gpu import Bench, about
from suite.bench.rows import Row
from suite.bench.steps import step
from suite.bench.timing import Spread, ratio


def train(bench: Bench) -> Iterator[Row]:
    """Rounds of one step of each model; the first rounds compile and are not counted."""
    config, recipe, rounds = ModelConfig(), TrainConfig(), 25
    if bench.tiny:
        config = ModelConfig(vocab=64, d_model=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=48)
        recipe, rounds = TrainConfig(steps=1, batch=2, length=16, warmup=0), 3
    size = {"layers": config.layers, "heads": config.heads}
    models = {name: Transformer(config, patterns.build(pattern, **size), recipe.seed, backend).to(bench.device)
              for name, pattern, backend in (("fixed", "scaled_base", "gpu"), ("learned", "learned", "gpu"),
                                             ("dense", "dense", "masked"))}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=recipe.lr, fused=True)
                  for name, model in models.items()}
    random = torch.Generator(bench.device).manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in models}
    losses, peaks = {}, {}
    for number in range(rounds):
        tokens = torch.randint(config.vocab, (recipe.batch, recipe.length + 1), generator=random, device=bench.device)
        for name, model in models.items():
            bench.wait()
            if not bench.tiny:
                torch.cuda.reset_peak_memory_stats()
            held, begin = 0 if bench.tiny else torch.cuda.memory_allocated(), time.perf_counter()
            losses[name] = step(model, optimizers[name], recipe, tokens)
            bench.wait()
            times[name] += [time.perf_counter() - begin] if number >= rounds // 5 else []
            peaks[name] = None if bench.tiny else (torch.cuda.max_memory_allocated() - held) / 2 ** 20
    shape = recipe.batch, config.heads, config.kv_heads, recipe.length, config.head_dim
    for name, taken in times.items():
        spread, median = ratio(times["dense"], taken), Spread.of(taken).median
        yield Row("training_step", models[name].backend, "dense", "step", pattern=name, **about(shape, torch.bfloat16),
                  ratio=spread.median, spread=(spread.low, spread.high), rounds=spread.rounds, ms=1e3 * median,
                  against_ms=1e3 * Spread.of(times["dense"]).median, mib=peaks[name],
                  tokens_per_s=recipe.batch * recipe.length / median,
                  note=f"loss {losses[name]:.3f} nats at the end; {models[name].parameter_count():,} parameters")
