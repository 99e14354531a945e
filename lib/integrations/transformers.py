"""Patterns as attention implementations of Hugging Face transformers: training, prefill, and generation with a cache.

    name = register(build("scaled_base", layers=16, heads=8, schedule="coprime"), length=1024)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=name)

A batch with padding, on either side, is attended as if each sequence stood alone. What a pattern cannot keep is
refused, never dropped: windows and masks of the model's own, packed sequences, attention dropout, attention weights as
an output.

While a text grows, query `i` has the keys of `pattern.plan(layer, length)` at one fixed `length`, the longest sequence;
a few patterns would answer otherwise at another length (`random_offsets` without a reach, scaled powers of two). Of a
few queries over a cache (`attend_rows`) the keys are gathered, and no `[T, T]` object is made.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import torch
from torch import nn

from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import arithmetic, cached, span_bias
from lib.errors import SuiteError, one_of, require
from lib.patterns.base import EdgeTable, Keys, LearnedOffsets, Pattern, offsets_by_head
from lib.patterns.learned import fractional_rungs

RESERVED = ("/", "|", "eager", "flash", "flex_attention", "sdpa")       # names with a meaning in transformers
REFUSED = {option: remedy for options, remedy in {
    "sliding_window": "this layer has a window of its own; set sliding_window = None in its config, or layer_types all "
                      "to 'full_attention'",
    "softcap": "it caps its attention logits; set that option of its config to None",
    "s_aux sinks": "it has learned attention sinks, which patterns do not have",
    "indices block_indices": "it chooses its keys by itself, as a pattern does; take a model that attends all of them",
    "head_mask": "all heads of a pattern count; leave it out",
    "position_bias": "it adds a position bias to its attention logits, which patterns do not have",
    "cu_seq_lens_q cu_seq_lens_k seq_idx": "it packs sequences into one row; give each a row of its own, padded, with "
                                           "a 2-D attention_mask",
    "output_attentions": "attention weights are never all formed; use attn_implementation='eager' to see them",
}.items() for option in options.split()}

# What `mask` says, by how many numbers it has for a sequence. Never None: a model that leaves the attention interface
# aside would then attend without any mask; so it fails on the shape.
PLAIN, PLACES, OTHER = 2, 3, 4

GATHERED = 2 ** 22                          # numbers of gathered keys at a time: 16 MiB in float32
Rungs = tuple[torch.Tensor, torch.Tensor]   # nearer of the two distances, and share of the farther one, `[R]` each

_registered: dict[str, "Registered"] = {}


def register(pattern: Pattern, *, length: int | None = None, name: str | None = None, backend: str = "auto") -> str:
    """Make `pattern` an attention implementation of transformers; the name for `attn_implementation=` comes back.

    pattern: made for the model's layers and heads. Decoders take causal patterns, encoders those with causal=False.
    length: of causal patterns, the longest sequence in tokens, prompt and generated text together. The keys of a query
    are those at this length, however short the sequence is. Bidirectional patterns have those of each sequence's own
    length. name: by default `sparse:` and the pattern's name. backend: of `lib.attention`, for all but cached decoding.
    A learned pattern also needs its parameters: `add_learned(model, pattern)`.
    """
    require(isinstance(pattern, Pattern), "pattern", pattern, "a Pattern, as lib.patterns.build makes it")
    name = f"sparse:{pattern.name}" if name is None else name
    require(not any(word in name for word in RESERVED), "name", name, f"a name without {', '.join(RESERVED)}")
    fits = (length or 0) >= 1 if pattern.causal else length is None
    require(fits, "length", length, "for a causal pattern, the longest sequence in tokens; for a bidirectional one, "
            "whose keys follow each sequence's own length, None")
    one_of(backend, [*BACKENDS, "auto"], "backend")
    new = Registered(name, pattern, length, backend)
    require(_registered.get(name, new) == new, "name", name, f"taken by {_registered.get(name)}; give another name")
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise SuiteError("transformers is not installed, or too old; get it with the extra of this suite: "
                         "pip install -e '.[transformers]'") from error
    free = name in _registered or name not in AttentionInterface()
    require(free, "name", name, "an attention of transformers; give another name")
    AttentionInterface.register(name, new.attend)
    AttentionMaskInterface.register(name, new.mask)
    _registered[name] = new
    return name


def add_learned(model: nn.Module, pattern: Pattern) -> list[nn.Parameter]:
    """Give each attention layer of `model` the parameter of a learned pattern, `sparse_theta`; returns them by layer.

    alpha is `0.5 + sigmoid(theta)`, theta `[]` as the pattern starts it; spans are `window * sigmoid(theta)`, theta
    `[H]`, 0 at start. For a fixed alpha, set the values and `requires_grad_(False)`. Call it before the optimiser is
    made, and again on a model that is to load such weights (`load_state_dict`; `from_pretrained` leaves out what it
    does not know).
    """
    require(pattern.learned is not None, "pattern", pattern.name,
            "a pattern that learns something: learned or adaptive_span")
    modules = [m for m in model.modules() if getattr(m, "layer_idx", None) is not None and hasattr(m, "is_causal")]
    modules.sort(key=lambda module: module.layer_idx)
    layers = [module.layer_idx for module in modules]
    require(layers == [*range(pattern.layers)], "model", f"attention in layers {layers}",
            f"a model with one attention in each of the pattern's {pattern.layers} layers")
    for module in modules:
        start = torch.tensor(pattern.thetas[module.layer_idx], dtype=torch.float32)
        module.sparse_theta = nn.Parameter(start.to(next(module.parameters()).device))
    return [module.sparse_theta for module in modules]


@dataclass(frozen=True)
class Registered:
    """A pattern under a name of transformers. `mask` is called once a forward pass, `attend` once a layer."""
    name: str
    pattern: Pattern
    length: int | None
    backend: str

    def mask(self, batch_size: int, q_length: int, kv_length: int, q_offset: int | torch.Tensor = 0, kv_offset: int = 0,
             mask_function=None, attention_mask: torch.Tensor | None = None, device="cpu", **_) -> torch.Tensor:
        """What `attend` must know beyond shapes, in place of a `[B, 1, Q, S]` mask: int64 `[B, 1, PLACES, 1]`.

        Of each sequence: the column where it starts, the column after its last token (padding is outside), and the
        column of the first query; without that, `[B or 1, 1, PLAIN, 1]`, if queries are last and would see no padding.
        """
        from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
        own = causal_mask_function if self.pattern.causal else bidirectional_mask_function
        tokens = q_offset + q_length if isinstance(q_offset, int) else None         # a static cache has a tensor
        fits = tokens is None or attention_mask is None or attention_mask.shape[1] == tokens
        if mask_function is not own or kv_offset != 0 or not fits:
            return torch.zeros(1, 1, OTHER, 1, dtype=torch.int64, device=device)    # refused, if a layer uses it
        if attention_mask is None:
            if tokens == kv_length:
                return torch.tensor([0, tokens], device=device).view(1, 1, PLAIN, 1)
            attention_mask = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
        columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        start = attention_mask.int().argmax(-1)                     # the first of equal values: 0 of padding alone
        end = start + attention_mask.sum(-1)
        inside = (columns >= start[:, None]) & (columns < end[:, None])
        if not bool((inside == attention_mask).all()):
            raise self.refusal("attention_mask has padding between tokens; pad a batch on one side, and for generation "
                               "on the left (tokenizer.padding_side = 'left')")
        numbers = [start, end]
        if tokens != kv_length or bool(start.any() if self.pattern.causal else (end - start < kv_length).any()):
            numbers.append(torch.as_tensor(q_offset, device=device).expand(batch_size))
        return torch.stack(numbers, -1)[:, None, :, None]

    def attend(self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
               **kwargs) -> tuple[torch.Tensor, None]:
        """`[B, Q, H, D]`, and no weights; query `[B, H, Q, D]`, key and value `[B, G, S, D]`; mask from `mask`."""
        self.check_module(module, query, kwargs, dropout)
        Q, S, D = query.shape[2], key.shape[2], query.shape[3]
        if scaling is not None and scaling != D ** -0.5:
            query = query * (scaling * D ** 0.5)                    # `lib.attention` divides by sqrt(D)
        places, learned = self.places(attention_mask), self.learned(module)
        first = S - Q if places is None else places[0, 2]
        self.check_positions(kwargs.get("position_ids"), attention_mask, first)
        if not self.pattern.causal:
            require(Q == S, "key", tuple(key.shape), f"keys of the {Q} queries: a bidirectional pattern has no cache")
            return self.whole_sequences(module.layer_idx, query, key, value, places).transpose(1, 2).contiguous(), None
        require(S <= self.length, "length", self.length, f"below the {S} columns of this call; register a longer one")
        if Q > 1 and int(first) == 0:           # a prompt, behind which a static cache is empty; Q = 1 reads nothing
            out = self.prompt(module.layer_idx, query, key[:, :, :Q], value[:, :, :Q], places, learned)
        else:
            out = self.continuation(module.layer_idx, query, key, value, first, places, learned)
        return out.transpose(1, 2).contiguous(), None

    def prompt(self, layer: int, q, k, v, places, learned) -> torch.Tensor:
        """The first T tokens. Rows are turned until the padding on their left stands behind the tokens, unseen."""
        T = q.shape[2]
        keys = first_rows(self.pattern, layer, self.length, T)
        if places is None:
            return sparse_attention(q, k, v, keys, layer, backend=self.backend, **learned)
        columns, start = torch.arange(T, device=q.device), places[:, :1]                # (T), (B, 1)
        turned, back = (((columns + by) % T)[:, None, :, None] for by in (start, -start))
        q, k, v = (x.take_along_dim(turned, 2) for x in (q, k, v))
        return sparse_attention(q, k, v, keys, layer, backend=self.backend, **learned).take_along_dim(back, 2)

    def continuation(self, layer: int, q, k, v, first, places, learned) -> torch.Tensor:
        """Queries from column `first` on, over all the keys in the cache."""
        start = torch.zeros(1, dtype=torch.int64, device=q.device) if places is None else places[:, 0]
        positions = first + torch.arange(q.shape[2], device=q.device) - start[:, None]      # (1 or B, Q)
        keys = self.pattern.plan(layer, self.length)
        return attend_rows(q, k, v, keys, positions.clamp(min=0), start, **learned)     # padding: as place 0, unused

    def whole_sequences(self, layer: int, q, k, v, places) -> torch.Tensor:
        """A bidirectional pattern: sequences of the same columns together, without padding (its output is 0)."""
        if places is None:
            return sparse_attention(q, k, v, self.pattern, layer, backend=self.backend)
        out = torch.zeros_like(q)
        spans = [tuple(span) for span in places[:, :2].tolist()]
        for start, end in sorted(span for span in set(spans) if span[0] < span[1]):
            rows = [b for b, span in enumerate(spans) if span == (start, end)]
            part = (x[rows, :, start:end] for x in (q, k, v))
            out[rows, :, start:end] = sparse_attention(*part, self.pattern, layer, backend=self.backend).to(out.dtype)
        return out

    def learned(self, module: nn.Module) -> dict[str, torch.Tensor]:
        if self.pattern.learned is None:
            return {}
        if not hasattr(module, "sparse_theta"):
            raise self.refusal(f"pattern {self.pattern.name!r} learns its {self.pattern.learned}; give the model the "
                               "parameters first: add_learned(model, pattern)")
        return self.pattern.arguments(module.sparse_theta.float(), module.layer_idx)

    def places(self, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
        """`[B, 3]` from `mask`, or None where there is nothing to know (or the model makes no mask)."""
        if attention_mask is None:
            return None
        ours = getattr(attention_mask, "dtype", None) == torch.int64 and attention_mask.shape[1::2] == (1, 1)
        kind = attention_mask.shape[2] if ours else None
        if kind == OTHER:
            raise self.refusal("the model asks for another mask than the pattern's: a sliding window or chunks (turn "
                               "them off in its config: sliding_window, layer_types), packed sequences (give each a "
                               "row), the other direction (is_causal), or an attention_mask without one column a token")
        if kind not in (PLAIN, PLACES):
            raise self.refusal(f"attention_mask {tuple(attention_mask.shape)}: the pattern decides which keys are "
                               "seen; give the tokenizer's 2-D mask, [batch, columns], or none")
        return attention_mask[:, 0, :, 0] if kind == PLACES else None

    def check_module(self, module: nn.Module, query: torch.Tensor, kwargs: dict, dropout: float) -> None:
        kind, config = type(module).__name__, getattr(module, "config", None)
        if dropout > 0:
            raise self.refusal(f"attention dropout is {dropout}; set it to 0 in the config (attention_dropout, or "
                               "attention_probs_dropout_prob)")
        for option, remedy in REFUSED.items():
            if kwargs.get(option) is not None and kwargs[option] is not False:
                raise self.refusal(f"{kind} was given {option}: {remedy}")
        if getattr(module, "layer_idx", None) is None:
            raise self.refusal(f"{kind} does not know its layer, and keys differ by layer; set layer_idx on each")
        for name, in_model in (("layers", getattr(config, "num_hidden_layers", None)), ("heads", query.shape[1])):
            value = getattr(self.pattern, name)
            agrees = in_model in (None, value)
            require(agrees, f"{name} of pattern {self.pattern.name!r}", value, f"the model's {in_model}")
        causal = kwargs.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        if causal != self.pattern.causal:
            raise self.refusal(f"{kind} is {'a causal decoder' if causal else 'a bidirectional encoder'} and pattern "
                               f"{self.pattern.name!r} is not for one; build it with causal={causal}")

    def check_positions(self, ids: torch.Tensor | None, mask: torch.Tensor | None, first: int | torch.Tensor) -> None:
        """Refuse packed sequences: positions `[B, Q]` that do not go on by 1 among a row's tokens. Once a pass."""
        if ids is None or ids.ndim != 2 or ids.shape[1] == 1 or getattr(ids, "checked_with", ids) is mask:
            return
        again = ids.diff() != 1
        if mask is not None:                            # what stands in padding does not count
            start, end = mask[:, 0, 0], mask[:, 0, 1]                                   # (B or 1, 1)
            column = first + torch.arange(again.shape[1], device=ids.device)
            again = again & (column >= start) & (column + 1 < end)
        if bool(again.any()):
            raise self.refusal("position_ids start again within a row, or jump: packed sequences; give each a row")
        ids.checked_with = mask                         # the layers of a pass are given the same two tensors

    def refusal(self, why: str) -> SuiteError:
        return SuiteError(f"attention {self.name!r}: {why}")


# A few queries over a cache

@lru_cache(maxsize=1024)
def first_rows(pattern: Pattern, layer: int, length: int, T: int) -> Keys:
    """Keys of the first `T` queries of a causal pattern at `length` tokens. Cached: plans are kept by object."""
    keys = pattern.plan(layer, length)
    if isinstance(keys, EdgeTable) and T < length:
        return EdgeTable(np.ascontiguousarray(keys.keys[..., :T, :]))
    return keys                                     # of all other forms, what does not fit T tokens drops out


def attend_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: Keys, positions: torch.Tensor,
                start: torch.Tensor | int = 0, *, alpha: torch.Tensor | None = None,
                span: torch.Tensor | None = None) -> torch.Tensor:
    """`softmax(q.k / sqrt(D)) v` over the rows `positions` of a causal pattern's keys: `[B, H, Q, D]`, q's dtype.

    q `[B, H, Q, D]`, its places in their sequences `positions` `[B or 1, Q]`; k and v `[B, G, S, D]`, whose column
    `start` (`[B or 1]`, for sequences with padding on the left) holds place 0. alpha and span as in `sparse_attention`.
    """
    (B, _, _, D), G = q.shape, k.shape[1]
    rungs = _rungs(keys, alpha) if isinstance(keys, LearnedOffsets) else None
    index = _key_places(keys, rungs, positions)                                         # (P, H or 1, Q, C)
    start = torch.as_tensor(start, device=q.device).view(-1, 1, 1, 1)
    bias = None if span is None else span_bias(span.to(arithmetic(q)), keys.ramp, keys.window + 1)      # (H, C)
    step = max(1, GATHERED // (B * max(G, index.shape[1]) * index.shape[3] * D))
    return torch.cat([_attend(part, k, v, places, start, rungs, bias)
                      for part, places in zip(q.split(step, 2), index.split(step, 2), strict=True)], 2)


def _rungs(keys: LearnedOffsets, alpha: torch.Tensor) -> Rungs:
    """All rungs of the base that exist at alpha: those that reach beyond a sequence's start have no key there."""
    rungs = fractional_rungs(keys.base, keys.window, float(alpha.detach()), 2 * max(keys.base) + 1)
    lo, t, f = (torch.tensor([r[at] for r in rungs], dtype=torch.float32, device=alpha.device) for at in range(3))
    return lo.long(), t + (alpha - alpha.detach()) * f             # t is from float64: alpha * 987 in float32 loses it


def _key_places(keys: Keys, rungs: Rungs | None, positions: torch.Tensor) -> torch.Tensor:
    """Places of the keys of queries at `positions` `[P, Q]`: `[P, H or 1, Q, C]`, negative where there is none."""
    if isinstance(keys, EdgeTable):
        table = cached(("rows", keys, positions.device), lambda: torch.from_numpy(keys.keys).to(positions.device))
        table = table if table.ndim == 3 else table[None]
        return table[:, positions].transpose(0, 1).long()
    back, leading = distances(keys, positions.device)
    back = back if rungs is None else torch.cat([back, rungs[0][None]], -1)
    query = positions[:, None, :, None]
    near = query - back[:, None]                                                        # (P, H or 1, Q, C)
    lead = torch.arange(max(offsets.leading for offsets in offsets_by_head(keys)), device=positions.device)
    missed = (query - lead)[..., None].ne(back[:, None, None]).all(-1)                  # no distance reaches it already
    seen = missed & (lead <= query) & (lead < leading[:, None, None])
    return torch.cat([near, lead.where(seen, -1)], -1)


@lru_cache(maxsize=1024)
def distances(keys: Keys, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances of each head, or of one for all, `[H or 1, C]`, and numbers of leading keys, `[H or 1]`."""
    heads = offsets_by_head(keys, rungs=False)
    beyond = torch.iinfo(torch.int32).max               # a distance that no query reaches
    filled = zip(*zip_longest(*(offsets.distances for offsets in heads), fillvalue=beyond), strict=True)
    return torch.tensor([*filled], device=device), torch.tensor([offsets.leading for offsets in heads], device=device)


def _attend(q, k, v, index, start, rungs: Rungs | None, bias) -> torch.Tensor:
    B, H, Q, D = q.shape
    G, dtype = k.shape[1], arithmetic(q)
    R = H // G
    keys, values = (_gathered(x, index, start, rungs, dtype) for x in (k, v))           # (B, G, R or 1, Q, C, D)
    logits = torch.einsum("bgrqd,bgrqcd->bgrqc", q.to(dtype).view(B, G, R, Q, D), keys) * D ** -0.5
    if bias is not None:
        logits = logits + bias.view(G, R, 1, -1)
    none = (index < 0).unflatten(1, (G, R) if index.shape[1] == H else (1, 1))          # (P, G or 1, R or 1, Q, C)
    weights = logits.masked_fill(none, -math.inf).softmax(-1)
    return torch.einsum("bgrqc,bgrqcd->bgrqd", weights, values).reshape(B, H, Q, D).to(q.dtype)


def _gathered(x, index, start, rungs: Rungs | None, dtype: torch.dtype) -> torch.Tensor:
    """Rows of `[B, G, S, D]` at the places `[P, H or 1, Q, C]` (any row where there is none), rungs interpolated."""
    B, G = x.shape[:2]
    heads = index.shape[1]
    batch = torch.arange(B, device=x.device).view(-1, 1, 1, 1, 1)
    group = torch.arange(G, device=x.device).view(-1, 1, 1, 1)

    def take(places: torch.Tensor) -> torch.Tensor:
        columns = places.clamp(min=0) + start
        return x[batch, group, columns.unflatten(1, (G, heads // G) if heads > 1 else (1, 1))].to(dtype)
    near = take(index)
    if rungs is None:
        return near
    _, t = rungs
    C = index.shape[-1] - len(t)
    far = take(index[..., C:] - 1)                  # clamped at the sequence's start, as in `lib.attention`
    return torch.cat([near[..., :C, :], near[..., C:, :].lerp(far, t.to(dtype)[:, None])], -2)
