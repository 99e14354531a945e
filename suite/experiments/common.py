"""What the experiments share: run configurations from a profile, the models by name, and controls of equal edges.

Experiments that ask for the same model get the same `RunConfig`, so that it is trained once for the whole suite.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import one_of, require
from lib.patterns import Pattern, build, names
from lib.patterns.matching import match_edges
from lib.patterns.rungs import fibonacci
from suite.experiments.base import Job, Parameters
from suite.settings.profiles import OFFLINE, Profile

Described = tuple[PatternSpec, dict[str, Any]]      # a pattern, and the `Labels` that its jobs have

BASES = {"fibonacci": "Fibonacci", "pow2": "Powers of two", "matched_pow2": "Matched powers of two"}
SCHEDULES = {"fixed": "fixed", "linear": "linear ramp", "coprime": "coprime ramp", "descending": "descending ramp",
             "permuted": "permuted ramp", "learned": "learned", "learned_ramp": "learned from the ramp",
             "blurred": "learned with a blur", "blurred_ramp": "learned with a blur from the ramp"}
CONTROLS = {"local": "Local window", "random_offsets": "Random offsets", "random_keys": "Random keys",
            "strided": "Fixed stride"}
TOLERANCE = 0.01            # of equal pairs, a fraction
DRAW = 1000                 # from the seed of a draw to that of the next one of the same run
DENSE: Described = (PatternSpec.of("dense"), {"series": "Dense", "role": "baseline"})
RAMP = "fibonacci/linear"                           # the model whose attended pairs most controls have
ACCURACY = Evaluation.of("task", count=256, seed=0)


def spec_of(pattern: Pattern) -> PatternSpec:
    """The pattern by name, with the parameters that differ from its defaults; depth and heads belong to the model."""
    parameters = {f.name: getattr(pattern, f.name) for f in dataclasses.fields(pattern)
                  if f.name not in ("layers", "heads") and getattr(pattern, f.name) != f.default}
    return PatternSpec.of(pattern.name, **parameters)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Model, training and data of one notebook at one profile, or at its own depth, width, length (0: the profile's),
    positions or text (empty: the profile's)."""
    parameters: Parameters
    profile: Profile
    layers: int = 0
    width: int = 0
    tokens_a_window: int = 0
    domains: Sequence[str] = ()     # trained and evaluated on these alone
    position: str = ""

    @property
    def length(self) -> int:
        return self.tokens_a_window or self.profile.train.length

    @property
    def model(self) -> ModelConfig:
        """At another width: heads of the same size, the same shares of key/value heads and of the hidden layer."""
        model = self.profile.model
        model = dataclasses.replace(model, layers=self.layers or model.layers, position=self.position or model.position)
        if self.width in (0, model.d_model):
            return model
        heads = self.width // model.head_dim
        require(heads * model.head_dim == self.width and heads >= 1, "width", self.width,
                f"a multiple of head_dim = {model.head_dim}")
        most = max(1, heads * model.kv_heads // model.heads)
        groups = max(g for g in range(1, most + 1) if heads % g == 0)
        return dataclasses.replace(model, d_model=self.width, heads=heads, kv_heads=groups,
                                   hidden=round(8 * self.width / 3))

    @property
    def data(self) -> DataConfig:
        """The profile's mixture, or `domains`; a person's own folder has domains of its own, weighted alike."""
        if self.parameters.corpus:
            return DataConfig.of("text")
        for domain in self.domains:
            one_of(domain, self.profile.corpus.domains or OFFLINE, "domain of the corpus")
        mixture = {"mixture": tuple(sorted(self.profile.mixture))} if self.profile.mixture else {}
        return DataConfig.of("text", **{"domains": tuple(self.domains)} if self.domains else mixture)

    def train(self, seed: int, **changes: Any) -> TrainConfig:
        """The profile's recipe with this seed, the same tokens a step at any length, steps as `tokens` asks for."""
        train, T = self.profile.train, self.length
        batch = max(1, train.batch * train.length // T)
        train = dataclasses.replace(train, seed=seed, length=T, batch=batch, **changes)
        return train if self.parameters.tokens == 0 else shortened(train, self.parameters.tokens)

    def run(self, spec: PatternSpec, seed: int, **train: Any) -> RunConfig:
        """A language model with the pattern `spec`, drawn by the run's seed; `train` changes single fields."""
        return RunConfig(drawn_by(seed, spec, self.pattern, self.length), self.model, self.train(seed, **train),
                         self.data)

    def jobs(self, models: Sequence[Described], *evaluations: Evaluation, seeds: Sequence[int] = ()) -> list[Job]:
        """Each model at each seed (the notebook's); its rate of theta is what its labels say."""
        usual = self.profile.train.theta_lr
        return [Job.of(self.run(spec, seed, theta_lr=labels.get("theta_lr", usual)), *evaluations, **labels)
                for seed in seeds or self.parameters.seeds for spec, labels in models]

    def named(self, models: Iterable[tuple[str, Described]], *evaluations: Evaluation) -> list[Job]:
        """Jobs of models by their names in the parameters; what `once` names has the first seed alone."""
        once = {"/".join(split_model(name)) if "/" in name else one_of(name, (*names(), "alibi", "nope"), "model")
                for name in self.parameters.once}
        return [job for name, model in models for job in self.jobs(
            [model], *evaluations, seeds=self.parameters.seeds[:1] if name in once else ())]

    def pattern(self, spec: PatternSpec) -> Pattern:
        """The pattern at the model's depth and heads."""
        return build(spec.name, layers=self.model.layers, heads=self.model.heads, **dict(spec.parameters))

    def scaled(self, model: str, window: int, rungs: int = 0) -> PatternSpec:
        """`base/schedule`, for instance `fibonacci/linear`, with a window W. rungs: 0 for the profile's number."""
        base, schedule = split_model(model)
        require(window < self.length, "window", window, f"less than length = {self.length}")
        own: dict[str, Any] = {"window": window, "base": base}
        if base != "pow2":                                   # powers of two go on to T - 1, at any T
            own["rungs"] = rungs or self.profile.rungs
        if base == "matched_pow2":
            own["trained_length"] = self.length
        if schedule.startswith("learned"):
            name, own["start"] = "learned", "ramp" if "ramp" in schedule else "one"
        else:
            name, own["schedule"] = "scaled_base", schedule
        return spec_of(self.pattern(PatternSpec.of(name, **own)))

    def described(self, model: str, window: int, **labels: Any) -> Described:
        """`base/schedule` with a window W. labels: further fields of `Labels`."""
        return self.scaled(model, window), model_labels(model, window, **labels)

    def controls(self, like: PatternSpec, window: int | None = None, **labels: Any) -> list[Described]:
        """The notebook's comparators with as many attended pairs as `like` at the training length, within 1 %."""
        pattern = self.pattern(like)
        return [equal_edges(name, pattern, self.length, window, **labels) for name in self.parameters.controls]

    def perplexity(self, *lengths: int, **parameters: Any) -> tuple[Evaluation, ...]:
        """One evaluation a length (the training length without any), so that experiments share them."""
        tokens, longest = self.profile.evaluation_tokens, max(lengths, default=self.length)
        require(tokens >= longest, "evaluation_tokens", tokens, f"at least one evaluated window of {longest} tokens")
        return tuple(Evaluation.of("perplexity", lengths=(length,), tokens=tokens, **parameters)
                     for length in lengths or (self.length,))


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """A model of width 64 trained on a synthetic task: what the task decides shows at any width."""
    length: int
    steps: int
    layers: int = 4
    batch: int = 16
    lr: float = 2e-3

    def jobs(self, model: Described, data: DataConfig, seeds: Sequence[int], *evaluations: Evaluation,
             **own_labels: Any) -> list[Job]:
        """The model at each seed, asked for its accuracy too; with the task's vocabulary."""
        from suite.tasks import task
        spec, labels = model[0], model[1] | own_labels
        vocab = task(data.source, **dict(data.parameters)).vocab
        sizes = ModelConfig(vocab=vocab, d_model=64, layers=self.layers, heads=2, kv_heads=1, head_dim=32, hidden=171)
        train = TrainConfig(steps=self.steps, batch=self.batch, length=self.length, lr=self.lr, precision="fp32",
                            warmup=min(50, self.steps // 4), eval_every=0,
                            theta_lr=labels.get("theta_lr", 1.0))
        return [Job.of(RunConfig(drawn_by(seed, spec, self.pattern, self.length), sizes,
                                 dataclasses.replace(train, seed=seed), data), ACCURACY, *evaluations, **labels)
                for seed in seeds]

    def pattern(self, spec: PatternSpec) -> Pattern:
        return build(spec.name, layers=self.layers, heads=2, **dict(spec.parameters))

    def mask(self, name: str, like: PatternSpec, window: int) -> Described:
        """Dense attention, or the comparator `name` with the attended pairs of `like` at the task's length."""
        return DENSE if name == "dense" else equal_edges(name, self.pattern(like), self.length, window)


def drawn_by(seed: int, spec: PatternSpec, pattern: Callable[[PatternSpec], Pattern], length: int) -> PatternSpec:
    """A pattern that is drawn at random, with a draw of the run's seed that has the attended pairs of `spec` (within
    0.1 %; draws that have not are drawn anew); any other pattern as it is."""
    own, drawn = dict(spec.parameters), pattern(spec)
    if not hasattr(drawn, "seed") or (spec.name == "scaled_base" and own.get("schedule") != "permuted"):
        return spec
    pairs = drawn.pairs(length)
    draws = (PatternSpec.of(spec.name, **own | {"seed": seed + DRAW * n}) for n in itertools.count())
    return next(draw for draw in draws if abs(pattern(draw).pairs(length) - pairs) <= 0.001 * pairs)


def equal_edges(name: str, like: Pattern, length: int, window: int | None = None, **labels: Any) -> Described:
    """The comparator `name` with the attended pairs of `like` at `length`, within 1 %, and the same local window where
    it has one besides far keys: what differs is where the far keys are. window: W of the proposal, a label."""
    one_of(name, CONTROLS, "control")
    own = {} if name in ("local", "random_keys") else {"window": getattr(like, "window", 0)}
    return spec_of(match_edges(name, like, length, **own)), {
        "series": f"{CONTROLS[name]}, equal edges", "role": "control", "window": window,
        "equal_pairs": like.pairs(length), **labels}


def shortened(train: TrainConfig, tokens: int) -> TrainConfig:
    """The recipe for about `tokens` training tokens: whole steps, and the same share of them as warm-up."""
    a_step = train.batch * train.length
    require(tokens >= a_step, "tokens", tokens,
            f"at least one step of {a_step} tokens, or 0 for the profile's {train.tokens}")
    steps = round(tokens / a_step)
    return dataclasses.replace(train, steps=steps, warmup=round(train.warmup * steps / train.steps))


def split_model(model: str) -> tuple[str, str]:
    """Base and schedule of `base/schedule`."""
    base, _, schedule = model.partition("/")
    return one_of(base, BASES, "base"), one_of(schedule, SCHEDULES, "schedule")


def title(model: str) -> str:
    """What figures and tables call `base/schedule`."""
    base, schedule = split_model(model)
    return f"{BASES[base]}, {SCHEDULES[schedule]}"


def model_labels(model: str, window: int, **labels: Any) -> dict[str, Any]:
    """How the table describes `base/schedule` at a window W; what the Fibonacci paper does not propose is a control."""
    base, schedule = split_model(model)
    proposed = base == "fibonacci" and schedule not in ("descending", "permuted", "learned_ramp", "blurred_ramp")
    start = ("ramp" if "ramp" in schedule else "one") if schedule.startswith(("learned", "blurred")) else None
    return {"series": title(model), "role": "model" if proposed else "control", "base": base, "schedule": schedule,
            "window": window, "start": start, **labels}


def rungs_within(length: int) -> int:
    """How many Fibonacci numbers 1, 2, 3, 5, ... a text of `length` tokens has room for as distances."""
    return sum(f < length for f in fibonacci(length.bit_length() * 2))
