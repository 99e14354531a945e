"""What is measured: attention at one setting, by the suite's backends and by what one would use without them; and a
whole training step (loss, backward pass, clipping and optimiser) of the model that a profile trains."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from lib import patterns
from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import CACHE, Call, checked
from lib.config import PatternSpec, RunConfig, TrainConfig
from lib.model import Transformer, build_model
from lib.patterns import Pattern
from lib.step import autocast

if TYPE_CHECKING:
    from suite.settings.profiles import Profile

ALPHA = 1.03                    # of learned distances: no rung of the default base is whole then, none leaves T = 1024
MOVES = 1e-6                    # what alpha moves by from call to call: five thousand calls lose no rung
SPAN = 8.0                      # of learned spans, tokens
LEARNED = " learned"            # what the name of a backend ends with when its distances are learned
OTHERS = ("dense", "masked", "gather", "flex")
BASELINE = "dense fp32"             # eager; what the others are measured against
MEMORY = {"cpu": 2 * 2**30, "cuda": 32 * 2**30}    # estimated bytes above which a call is left out


@dataclass(frozen=True)
class Setting:
    """Shape of the tensors and the pattern: by default batch x heads 8, head size 64, 23 keys."""
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    window: int = 12
    rungs: int = 15
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    @classmethod
    def here(cls) -> "Setting":
        """float32 on a CPU; on a GPU, which is made for it, bfloat16."""
        return cls(dtype=torch.bfloat16, device=torch.device("cuda")) if torch.cuda.is_available() else cls()

    @property
    def fixed(self) -> Pattern:
        return patterns.build("scaled_base", heads=self.heads, window=self.window, rungs=self.rungs)

    @property
    def learned(self) -> Pattern:
        return patterns.build("learned", heads=self.heads, window=self.window, rungs=self.rungs)

    def keys(self, T: int) -> int:
        """C, keys of a query that has all of them."""
        return len(self.fixed.plan(0, T).distances)

    def bytes(self, T: int) -> tuple[int, int]:
        """Size of q and of k."""
        a_head = self.batch * T * self.head_dim * self.dtype.itemsize
        return a_head * self.heads, a_head * self.kv_heads

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Tensors:
    """q and d_out `[B, H, T, D]`, k and v `[B, G, T, D]`."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor

    @classmethod
    def random(cls, setting: Setting, T: int, grad: bool) -> "Tensors":
        draws, heads = torch.Generator().manual_seed(0), (setting.heads, setting.kv_heads, setting.kv_heads)
        *inputs, d_out = (torch.randn(setting.batch, H, T, setting.head_dim, generator=draws).to(
            setting.device, setting.dtype) for H in (*heads, setting.heads))
        return cls(*(x.requires_grad_(grad) for x in inputs), d_out)


@dataclass(frozen=True)
class Attention:
    """One way to attend, and what it learns beside q, k and v (alpha, or spans)."""
    attend: Callable[[Tensors], torch.Tensor]
    learned: tuple[torch.Tensor, ...] = ()


def dense(x: Tensors) -> torch.Tensor:
    return F.scaled_dot_product_attention(x.q, x.k, x.v, is_causal=True, enable_gqa=x.q.shape[1] != x.k.shape[1])


def gather(setting: Setting, T: int) -> Callable[[Tensors], torch.Tensor]:
    """The textbook way: the keys and values of every query side by side, `[B, H, T, C, D]`."""
    i = torch.arange(T, device=setting.device)
    index = i[:, None] - torch.tensor(setting.fixed.plan(0, T).distances, device=setting.device)           # (T, C)
    hidden, index = index < 0, index.clamp(min=0)
    repeats = setting.heads // setting.kv_heads

    def attend(x: Tensors) -> torch.Tensor:
        k, v = (y.repeat_interleave(repeats, dim=1)[:, :, index] for y in (x.k, x.v))            # (B, H, T, C, D)
        scores = torch.einsum("bhtd,bhtcd->bhtc", x.q, k) * x.q.shape[-1] ** -0.5
        return torch.einsum("bhtc,bhtcd->bhtd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    return attend


def flex(setting: Setting, T: int) -> Callable[[Tensors], torch.Tensor]:
    """FlexAttention with the pattern's `mask_mod`, compiled for this length."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch.compiler.reset()
    mask = create_block_mask(setting.fixed.mask_mod(0, T), None, None, T, T, device=str(setting.device))
    compiled, grouped = torch.compile(flex_attention, dynamic=False), setting.heads != setting.kv_heads
    return lambda x: compiled(x.q, x.k, x.v, block_mask=mask, enable_gqa=grouped)


def learned_of(pattern: Pattern, setting: Setting, grad: bool) -> dict[str, torch.Tensor]:
    """What `sparse_attention` needs beside the pattern: alpha, or the spans of the heads."""
    starts = {"alpha": torch.tensor(ALPHA), "span": torch.full((setting.heads,), SPAN)}
    return {name: start.to(setting.device).requires_grad_(grad) for name, start in starts.items()
            if name == pattern.learned}


def by_backend(name: str, pattern: Pattern, setting: Setting, layer: int, grad: bool) -> Attention:
    """`sparse_attention` as a caller uses it, checks included.

    With gradients alpha moves a little from call to call, as in training, so that what depends on it is built anew.
    """
    learned = learned_of(pattern, setting, grad)

    def attend(x: Tensors) -> torch.Tensor:
        if grad and "alpha" in learned:
            with torch.no_grad():
                learned["alpha"] += MOVES
        return sparse_attention(x.q, x.k, x.v, pattern, layer, backend=name, **learned)
    return Attention(attend, tuple(learned.values()))


def attention(name: str, setting: Setting, T: int, grad: bool) -> Attention:
    """The attention called `name`: one of `OTHERS`, or a backend, with `LEARNED` or without."""
    if name in ("dense", "gather", "flex"):
        return Attention(dense if name == "dense" else (gather if name == "gather" else flex)(setting, T))
    pattern = setting.learned if name.endswith(LEARNED) else setting.fixed
    return by_backend(name.removesuffix(LEARNED), pattern, setting, 0, grad)


def prepared(how: Attention, setting: Setting, T: int, pass_: str) -> Callable[[], object]:
    """One call on random tensors; `forward+backward` takes the gradients of q, k, v and of what is learned."""
    x = Tensors.random(setting, T, grad=pass_ != "forward")
    if pass_ == "forward":
        return torch.no_grad()(lambda: how.attend(x))
    return lambda: torch.autograd.grad(how.attend(x), [x.q, x.k, x.v, *how.learned], x.d_out)


def call_of(name: str, setting: Setting, T: int, pass_: str) -> Callable[[], object]:
    return prepared(attention(name, setting, T, pass_ != "forward"), setting, T, pass_)


def checked_call(pattern: Pattern, setting: Setting, T: int = 32, layer: int = 0) -> Call:
    """A call with gradients, by which backends say whether they can do it."""
    x, learned = Tensors.random(setting, T, grad=True), learned_of(pattern, setting, True)
    return checked(x.q, x.k, x.v, pattern, layer, learned.get("alpha"), learned.get("span"), None)


def backends(setting: Setting) -> dict[str, str]:
    """Every backend with why it cannot be measured in this setting; empty: it can."""
    call = checked_call(setting.fixed, setting)
    return {name: backend.missing() or ("" if backend.supports(call) else f"does not do this on {setting.device.type}")
            for name, backend in BACKENDS.items()}


def needed(name: str, setting: Setting, T: int, pass_: str) -> int:
    """Bytes that a call needs beyond its inputs, estimated: only what grows as T x T or T x C counts.

    `masked` and `flex` build a mask through `[T, T]` integers; `reference` holds float64 scores, weights and gradients;
    `gather` holds keys and values, with gradients twice.
    """
    heads, square = setting.batch * setting.heads, T * T
    backward = pass_ != "forward"
    return {"masked": 3 * 8 * square, "flex": 3 * 8 * square,
            "reference": (6 if backward else 3) * 8 * heads * square,
            "gather": (4 if backward else 2) * setting.keys(T) * setting.bytes(T)[0]}.get(name, 0)


def forget() -> None:
    """Drop every plan and mask, so that the next call builds its own."""
    CACHE.clear()
    Pattern.plan.cache_clear()


def step_runs(profile: "Profile", length: int, window: int) -> dict[str, RunConfig]:
    """A dense and a sparse run: model and recipe of a profile at a length, with about as many tokens a step."""
    batch = max(1, profile.train.batch * profile.train.length // length)
    specs = {"dense": PatternSpec.of("dense"), "sparse": PatternSpec.of(
        "scaled_base", schedule="linear", window=window, rungs=profile.rungs)}
    train = replace(profile.train, length=length, batch=batch)
    return {name: RunConfig(spec, profile.model, train) for name, spec in specs.items()}


def steps(runs: dict[str, RunConfig], device: torch.device) -> dict[str, Callable[[], float]]:
    """A step of each run by name, in fp32 and, where the machine computes in it, bf16."""
    from lib.training import build_optimizer
    from suite.settings.profiles import has_bf16
    made = {}
    for precision in ("fp32", "bf16") if has_bf16() else ("fp32",):
        for name, run in runs.items():
            model, train = build_model(run).to(device), replace(run.train, precision=precision)
            made[f"{name} {precision}"] = step_of(model, build_optimizer(model, train), train, device)
    return made


def step_of(model: Transformer, optimizer: torch.optim.Optimizer, recipe: TrainConfig,
            device: torch.device) -> Callable[[], float]:
    """One step on random tokens, always the same. It returns the loss in nats; reading that waits for a GPU."""
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab, (recipe.batch, recipe.length + 1), generator=draws).to(device)

    def step() -> float:
        with autocast(recipe, str(device)):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return step
