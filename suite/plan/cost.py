"""What runs cost, counted from their configurations alone: operations of training and evaluation, memory of training.

Operations are matrix products of the weights, and attention by attended pairs. Memory is what a training holds at its
peak, between the forward and the backward pass. `suite.plan.gpus` and `suite.plan.estimate` turn operations into time.
"""

from functools import lru_cache

from lib.config import Evaluation, ModelConfig, PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.patterns import build
from suite import evals

STATE_BYTES = 16            # a parameter: weight, gradient and AdamW's two moments, in float32
ITEM_BYTES = {"bf16": 2, "fp32": 4}
LOGITS = 2 ** 27            # logits of a slice of tokens on a GPU (`lib.fused.ops.cross_entropy`)
UNKNOWN_SHARE = 0.05        # of the training's operations, for an evaluation that is not known here


# Operations

def attention_flops(model: ModelConfig, pairs: float) -> float:
    """Forward: a logit and a weighted value a pair and head, 2 operations an element. pairs: summed over layers."""
    return 4.0 * model.heads * model.head_dim * pairs


def forward_flops(model: ModelConfig, pairs: float, length: int, tokens: float) -> float:
    """Forward over `tokens` in windows of `length`; `pairs` is of one such window."""
    return tokens / length * (2.0 * model.matrix_weights * length + attention_flops(model, pairs))


def training_flops(run: RunConfig, pairs: float, tokens: float | None = None) -> float:
    """Forward and backward (twice the forward) over `tokens` (default: all of the run's); `pairs` is of one window."""
    return 3.0 * forward_flops(run.model, pairs, run.train.length, run.train.tokens if tokens is None else tokens)


def attention_training_flops(run: RunConfig, pairs: float) -> float:
    """Those of attention for one token."""
    return 3.0 * (1 / run.train.length) * attention_flops(run.model, pairs)


@lru_cache(maxsize=None)
def attended_pairs(spec: PatternSpec, layers: int, heads: int, length: int) -> float:
    """Expected attended pairs of a window, summed over layers; a plan asks for those of one pattern again and again."""
    return build(spec.name, layers=layers, heads=heads, **dict(spec.parameters)).expected_pairs(length)


def pairs_of(run: RunConfig) -> float:
    return attended_pairs(run.pattern, run.model.layers, run.model.heads, run.train.length)


def run_flops(run: RunConfig, tokens: float | None = None) -> float:
    return training_flops(run, pairs_of(run), tokens)


@lru_cache(maxsize=None)
def evaluation_flops(run: RunConfig, evaluation: Evaluation, domains: int) -> float:
    """Operations of an evaluation on text of `domains` domains, or of the domains that the run names itself."""
    domains, model = len(dict(run.data.parameters).get("domains", ())) or domains, run.model
    passes = forward_passes(run, evaluation, domains)
    if passes is None:
        return UNKNOWN_SHARE * run_flops(run)
    return sum(forward_flops(model, attended_pairs(spec, model.layers, model.heads, length), length, tokens)
               for spec, length, tokens in passes)


def forward_passes(run: RunConfig, evaluation: Evaluation, domains: int) -> list[tuple[PatternSpec, int, float]] | None:
    """Pattern, tokens a window and tokens of the forward passes of an evaluation, a backward one as two of them; None
    for one that is not known here."""
    try:
        own, T = evals.build(evaluation.name, **dict(evaluation.parameters)), run.train.length
    except SuiteError:                                      # it cannot be built: the run that asks for it will say so
        return None
    match evaluation.name:
        case "alphas" | "attention_memory":                 # they read weights, or call attention once
            return []
        case "perplexity":
            spec = PatternSpec(*own.pattern) if own.pattern else run.pattern
            return [(spec, length, own.tokens * domains) for length in own.lengths or (T,)]
        case "recurrence":
            return [(run.pattern, T, own.tokens * domains)]
        case "task":
            return [(run.pattern, T, own.count * T)]
        case "battery":                                     # no item is longer than a window; most are shorter
            return [(run.pattern, T, own.count * T * len(own.tasks))]
        case "alpha_landscape":
            return [(run.pattern, T, max(own.tokens, T) * domains * (1 + run.model.layers * len(own.alphas)))]
        case "gradient_flow":                               # one backward pass a query, then one of the loss
            return [(run.pattern, T, own.windows * T * (1 + 2 * own.queries + 3))]
    return None


# Memory

def parameters(model: ModelConfig) -> int:
    """Weights of products and gains of norms; the few parameters that a pattern learns are left out."""
    return model.matrix_weights + (2 * model.layers + 1) * model.d_model


def activation_bytes(model: ModelConfig, precision: str, tokens: int) -> int:
    """What the forward pass of a micro-batch of `tokens` keeps for the backward pass, attention by the suite's kernels.

    A layer keeps, a token: the residual stream in float32 at each norm, and in the type of the products both norms'
    outputs, queries, keys and values before and after RoPE, attention's output and its logarithms, gate, up, silu(gate)
    and their product. After the layers: the last norm's, and the gradient that the loss has taken already.
    """
    item, C = ITEM_BYTES[precision], model.d_model
    heads = 3 * item * (model.heads + model.kv_heads) * model.head_dim
    layer = 2 * (4 + item) * C + heads + 4 * model.heads + 4 * item * model.hidden
    return tokens * (model.layers * layer + (4 + 2 * item) * C)


def peak_bytes(model: ModelConfig, precision: str, tokens: int) -> int:
    """Most memory that a training holds on a GPU: state, the weights in the type of the products, activations of a
    micro-batch of `tokens`, and the larger of what is there for a moment: logits of a slice with their softmax, or the
    gradients of the layer at work, twice what it keeps (as measured on a CPU)."""
    item, weights = ITEM_BYTES[precision], parameters(model)
    copies, activations = item * weights if item != 4 else 0, activation_bytes(model, precision, tokens)
    logits = (2 * item + 4) * min(LOGITS, tokens * model.vocab)
    return STATE_BYTES * weights + copies + activations + max(logits, 2 * activations // model.layers)

