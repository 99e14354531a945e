"""What a run is: pattern, model, training recipe and data, all frozen, all in its fingerprint.

The defaults are the Fibonacci paper's (Section 3): 16 layers, width 512, 13,000 steps of 32 windows of 1024 tokens.
Wrong values are a `SuiteError`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from lib.errors import require
from lib.registry import tuples

Items = tuple[tuple[str, Any], ...]


def freeze(parameters: dict[str, Any]) -> Items:
    """A dictionary as sorted, hashable items; lists become tuples."""
    return tuple(sorted((name, tuples(value)) for name, value in parameters.items()))


@dataclass(frozen=True)
class Named:
    """Something by name with the parameters that differ from its defaults."""
    name: str
    parameters: Items = ()

    @classmethod
    def of(cls, name: str, **parameters: Any) -> Any:
        return cls(name, freeze(parameters))


class PatternSpec(Named):
    """A pattern (`lib.patterns`). Depth and heads come from the model."""


class Evaluation(Named):
    """One evaluation of a finished run (`suite.evals`)."""


@dataclass(frozen=True)
class ModelConfig:
    vocab: int = 32_768
    d_model: int = 512
    layers: int = 16
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 1366             # SwiGLU width, 8/3 of d_model
    position: str = "rope"         # rope | alibi | nope
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("vocab", "d_model", "layers", "heads", "kv_heads", "head_dim", "hidden"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "an integer of at least 1")
        require(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"a divisor of heads = {self.heads}")
        require(self.position in ("rope", "alibi", "nope"), "position", self.position, "one of rope, alibi, nope")
        require(self.position != "rope" or self.head_dim % 2 == 0, "head_dim", self.head_dim,
                "even, as RoPE turns pairs")

    @property
    def matrix_weights(self) -> int:
        """Weights in a matrix product for every token; the embedding counts once, as the output matrix."""
        attention = self.d_model * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.d_model * self.hidden) + self.vocab * self.d_model


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 13_000
    batch: int = 32                # windows a step
    length: int = 1024             # tokens a window
    lr: float = 3e-4               # peak
    warmup: int = 300              # steps
    final_lr: float = 0.1          # of the peak, at the end of the cosine
    weight_decay: float = 0.1      # on matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    precision: str = "bf16"        # bf16 (autocast) | fp32
    theta_lr: float = 1.0          # multiplies the learning rate of a pattern's own parameters
    eval_every: int = 500          # steps between light evaluations; 0: only at the end
    seed: int = 42                 # initialisation and order of the data

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "an integer of at least 1")
        require(self.lr > 0, "lr", self.lr, "a number above 0")
        require(0 <= self.warmup <= self.steps, "warmup", self.warmup, f"0 to steps = {self.steps}")
        require(0 <= self.final_lr <= 1, "final_lr", self.final_lr, "0 to 1")
        require(self.precision in ("bf16", "fp32"), "precision", self.precision, "bf16 or fp32")
        require(self.eval_every >= 0, "eval_every", self.eval_every, "0 or more")
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    @property
    def tokens(self) -> int:
        """Training tokens of the whole run."""
        return self.steps * self.batch * self.length


@dataclass(frozen=True)
class DataConfig:
    """Source `text`, with `mixture` (pairs of domain and weight) or `domains` (equal weights); or a task by name."""
    source: str = "text"
    parameters: Items = ()

    @classmethod
    def of(cls, source: str, **parameters: Any) -> DataConfig:
        return cls(source, freeze(parameters))


@dataclass(frozen=True)
class RunConfig:
    pattern: PatternSpec
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> RunConfig:
        """The run of `to_dict`, also after JSON, which turns tuples into lists."""
        return cls(PatternSpec.of(d["pattern"]["name"], **dict(d["pattern"]["parameters"])), ModelConfig(**d["model"]),
                   TrainConfig(**d["train"]), DataConfig.of(d["data"]["source"], **dict(d["data"]["parameters"])))


@dataclass(frozen=True)
class Metric:
    """One measured value. The other fields tell values of one measure apart (`suite.experiments.base.COLUMNS`)."""
    measure: str
    value: float
    split: str = ""                 # held-out domain or task
    variant: str = ""               # how the model was changed for the evaluation
    length: int | None = None       # evaluation length, tokens
    position: int | None = None     # first position (or distance) of a bin, tokens
    layer: int | None = None        # from 0
    step: int | None = None         # optimiser step; None: after training


def fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of the parts' canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=vars)       # vars: of the data classes here
    return hashlib.sha256(text.encode()).hexdigest()[:16]
