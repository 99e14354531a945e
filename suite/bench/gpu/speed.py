"""Parts 2 to 4: how fast are attention and training? The comparisons of `make bench`, at the paper's size.

Attention is timed by the GPU's clock, so that no launch counts; a learned alpha makes each call wait, and that counts.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from lib import patterns
from lib.config import ModelConfig, TrainConfig
from lib.model import Transformer
from lib.resources import PeakMemory
from suite.bench.cases import Setting, step_of
from suite.bench.counting import PASSES
from suite.bench.measure import Bench, Scope
from suite.bench.rows import Row
from suite.bench.timing import Spread, by_events

TOKENS = 32_768
MODELS = (("fixed", "scaled_base", "gpu"), ("learned", "learned", "gpu"), ("dense", "dense", "masked"))


def contests(tiny: bool, names: tuple[str, ...]) -> Iterator[Row]:
    """Each of `names` against the others and the peak, a length and a pass at a time."""
    torch.compiler.set_stance("force_eager" if tiny else "default")
    for T in (16,) if tiny else (1024, 4096, 16384):
        setting = Setting(kv_heads=2) if tiny else replace(Setting.here(), batch=TOKENS // T, kv_heads=2)
        scope = Scope((T,), rounds=1, seconds=0, names=names) if tiny else Scope((T,), seconds=4.0, names=names)
        bench = Bench(setting, scope, print, None if tiny else by_events)
        for pass_ in PASSES:
            yield from bench.contest(T, pass_)


def train(tiny: bool) -> Iterator[Row]:
    """A step of each model in turn. Memory is what a step takes beyond weights and the optimiser's state."""
    config, recipe = ModelConfig(), TrainConfig()
    if tiny:
        config = ModelConfig(vocab=64, d_model=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=48)
        recipe = TrainConfig(steps=1, batch=2, length=16, warmup=0)
    setting = Setting(recipe.batch, config.heads, config.kv_heads, config.head_dim, dtype=torch.bfloat16,
                      device=torch.device("cpu" if tiny else "cuda"))
    bench = Bench(setting, Scope((recipe.length,), rounds=3 if tiny else 20, seconds=40.0), print)
    calls, peaks = {}, {}
    for name, pattern, backend in MODELS:
        built = patterns.build(pattern, layers=config.layers, heads=config.heads)
        model = Transformer(config, built, recipe.seed, backend).to(setting.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, fused=True)
        calls[name] = step_of(model, optimizer, recipe, setting.device)
        calls[name]()                                   # compiles, and fills the optimiser's state
        held, peak = 0 if tiny else torch.cuda.memory_allocated(), PeakMemory(str(setting.device))
        calls[name]()
        peaks[name] = None if tiny else peak.mib() - held / 2 ** 20
    samples = bench.interleaved("training steps", calls)
    for name, _, backend in MODELS:
        speed = recipe.batch * recipe.length / Spread.of(samples[name]).median
        yield bench.compared("training_step", backend, "dense", "step", recipe.length, samples[name], samples["dense"],
                             pattern=name, keys=None, mib=peaks[name], tokens_per_s=speed,
                             note=f"loss {calls[name]():.3f} nats at the end")
