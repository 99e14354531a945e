"""The model and each of its element-wise parts, in every type and at odd sizes, against plain formulas in float64."""

import math
import pickle
import runpy

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib import patterns, rope
from lib.attention.cpu.vectors import exponential
from lib.config import DataConfig, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fused import kernels, ops
from lib.model import Transformer, build_model
from lib.patterns.learned import alpha_of

torch.set_num_threads(1)

TINY = dict(vocab=23, d_model=16, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=20)


def tiny(pattern="dense", seed=0, position="rope", **parameters) -> Transformer:
    return Transformer(ModelConfig(**TINY, position=position),
                       patterns.build(pattern, **{"layers": 2, "heads": 4, **parameters}), seed)


def tokens_of(count: int, length: int) -> torch.Tensor:
    return torch.randint(0, TINY["vocab"], (count, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("pattern, extra", [("dense", 0), ("learned", 16), ("adaptive_span", 16 * 8)])
def test_when_settings_are_the_papers_then_parameters_are_its_count(pattern, extra):
    with torch.device("meta"):
        model = Transformer(ModelConfig(), patterns.build(pattern, layers=16, heads=8))
    assert sum(p.numel() for p in model.parameters()) == 60_850_688 + extra


@pytest.mark.parametrize("message, call", [
    ("layers of pattern 'dense' = 3 .* 2", lambda x: tiny(layers=3)),
    ("heads of pattern 'local' = 2 .* 4", lambda x: tiny()(x, pattern=patterns.build("local", layers=2, heads=2))),
    ("'learned' needs a learned alpha; the model's: span",
     lambda x: tiny("adaptive_span")(x, pattern=patterns.build("learned", layers=2, heads=4))),
    ("targets .* at least one scored", lambda x: tiny().loss(x, torch.full((1, 4), -100))),
    ("did you mean 'yarn'", lambda x: tiny()(x, rope="yarm")),
    ("trained_length = None .* 'ntk'", lambda x: tiny()(x, rope="ntk")),
    ("rope = 'yarn' .* position is nope", lambda x: tiny(position="nope")(x, rope="yarn", trained_length=2))])
def test_when_pattern_options_or_targets_do_not_fit_then_error_names_them(message, call):
    with pytest.raises(SuiteError, match=message):
        call(tokens_of(1, 4))


def normed(x, gain, epsilon=1e-6):
    return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + epsilon)


def gated(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def turned(x):
    """The pairs of `[..., T, D]` as complex numbers, each times the one of its position's angle."""
    T, D = x.shape[-2:]
    angles = torch.arange(T).double()[:, None] * 10_000.0 ** (-torch.arange(0, D, 2).double() / D)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def plain_logits(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """The model's equations on one text `[T]`, in float64, with the pattern's oracle mask."""
    w, T, D, H, G, position = dict(model.state_dict()), len(tokens), 6, 4, 2, model.config.position
    at, turn = torch.arange(T, dtype=torch.float64)[:, None], turned if position == "rope" else lambda x: x
    alibi = -torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).view(H, 1, 1) * (at - at.T) * (position == "alibi")
    x = w["embedding.weight"][tokens]
    for layer, p in enumerate(("blocks.0.", "blocks.1.")):
        qkv = normed(x, w[p + "attention_norm.gain"]) @ w[p + "attention.qkv"].T
        q, k, v = qkv.view(T, H + 2 * G, D).transpose(0, 1).split([H, G, G])
        logits = turn(q) @ turn(k).repeat_interleave(H // G, 0).mT / math.sqrt(D) + alibi
        shares = logits.masked_fill(~torch.tensor(model.pattern.mask(layer, T)), -math.inf).softmax(-1)
        heads = shares @ v.repeat_interleave(H // G, 0)
        x = x + heads.transpose(0, 1).flatten(1) @ w[p + "attention.out"].T
        x = x + gated(normed(x, w[p + "mlp_norm.gain"]) @ w[p + "mlp.gate_up"].T) @ w[p + "mlp.out"].T
    return normed(x, w["norm.gain"]) @ w["embedding.weight"].T


def with_random_gains(model: Transformer) -> Transformer:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.rand(p.shape, generator=generator))
            p.mul_(1.7)                 # larger weights than at the start, so that attention is far from uniform
    return model


@pytest.mark.parametrize("position", ["rope", "alibi", "nope"])
@pytest.mark.parametrize("pattern, parameters", [("dense", {}), ("local", {"window": (1, (3, 2, 0, 3))})])
def test_when_computed_plainly_then_logits_agree(pattern, parameters, position):
    model, tokens = with_random_gains(tiny(pattern, position=position, **parameters)).double(), tokens_of(1, 9)
    torch.testing.assert_close(model(tokens)[0], plain_logits(model, tokens[0]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_when_loss_is_taken_in_slices_then_it_is_the_mean_cross_entropy_of_the_logits_with_its_gradient(
        rows, monkeypatch):
    monkeypatch.setattr(ops, "_slices", lambda tokens, *_: [slice(a, a + rows) for a in range(0, tokens, rows)])
    model, tokens, targets = with_random_gains(tiny()).double(), tokens_of(3, 7), tokens_of(3, 7).roll(1, 0)
    targets[0, :4] = -100
    parameters = list(model.parameters())
    mine = 3 * model.loss(tokens, targets)
    theirs = 3 * F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(torch.autograd.grad(mine, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        torch.testing.assert_close(a, b)
    each = model.token_losses(tokens, targets)
    assert each[0, :4].isnan().all() and not each[targets >= 0].isnan().any()
    torch.testing.assert_close(each[targets >= 0].double().mean(), theirs / 3, rtol=1e-6, atol=0)


def test_when_a_pattern_or_a_rope_variant_overrides_then_the_model_uses_it_the_variant_beyond_the_trained_length():
    dense, local = tiny("dense", seed=3), tiny("local", seed=3, window=2)
    tokens = tokens_of(2, 24)
    with torch.no_grad():
        assert torch.equal(dense(tokens, pattern=local.pattern), local(tokens))
        assert not torch.allclose(dense(tokens), local(tokens))
        for variant in ("interpolation", "ntk", "yarn"):
            assert not torch.allclose(dense(tokens, rope=variant, trained_length=6), dense(tokens), atol=1e-4)
            for trained_length in (24, 30):
                assert torch.equal(dense(tokens, rope=variant, trained_length=trained_length), dense(tokens))


def test_when_seeds_are_equal_then_so_are_the_weights_whatever_was_drawn_before_and_nothing_is_drawn():
    run = RunConfig(PatternSpec("dense"), ModelConfig(**TINY), TrainConfig(seed=4), DataConfig())
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = build_model(run).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    second, other = build_model(run).state_dict(), tiny(seed=5).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(not torch.equal(first[name], other[name]) for name in first if first[name].ndim == 2)
    learned = tiny("learned", seed=4, rungs=4).state_dict()             # patterns start from the same matrices
    assert all(torch.equal(first[name], learned[name]) for name in first)


def test_when_initialised_then_deviations_are_those_of_the_recipe():
    config = ModelConfig(vocab=512, d_model=64, layers=8, heads=4, kv_heads=1, head_dim=32, hidden=170)
    for name, tensor in Transformer(config, patterns.build("dense", layers=8, heads=4)).state_dict().items():
        if tensor.ndim < 2:
            assert (tensor == 1).all(), name
            continue
        expected = 64 ** -0.5 / (4.0 if name.endswith(".out") else 1.0)          # sqrt(2 x 8 layers) = 4
        error = 4 / math.sqrt(2 * tensor.numel())                               # four deviations of a sample deviation
        assert tensor.std().item() == pytest.approx(expected, rel=error), name
        assert abs(tensor.mean().item()) < 4 * expected / math.sqrt(tensor.numel()), name


@pytest.mark.parametrize("pattern, parameters, alphas, spans", [
    ("learned", {"window": 1, "rungs": 6}, [1.0, 1.0], []),
    ("learned", {"window": 1, "rungs": 6, "start": "ramp"}, [alpha_of(-4.0), alpha_of(4.0)], []),
    ("adaptive_span", {"window": 12, "ramp": 4}, [], [0.5, 0.5])])
def test_when_something_is_learned_then_it_starts_as_the_pattern_says_and_has_a_gradient(
        pattern, parameters, alphas, spans):
    model = tiny(pattern, **parameters)
    assert model.alphas() == pytest.approx(alphas) and model.spans() == spans
    rope.turns.cache_clear()
    with torch.inference_mode():            # the tables of an evaluation must serve training too
        model(tokens_of(2, 30))
    model.loss(tokens_of(2, 30), tokens_of(2, 30).roll(-1, 1)).backward()
    assert all((block.attention.theta.grad.abs() > 0).all() for block in model.blocks)


def test_when_interpolated_ntk_aware_or_alibi_then_turns_and_slopes_are_those_of_the_formula():
    turn = rope.turns(256, 16, 10_000.0, "interpolation", 128, torch.complex128)
    torch.testing.assert_close(turn[::2], rope.turns(128, 16, dtype=torch.complex128))
    plain, (ntk, factor) = rope.frequencies(16)[0], rope.frequencies(16, variant="ntk", length=512, trained_length=128)
    ratio = plain / ntk
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(4.0) and (ratio.diff() > 0).all() and factor == 1
    assert ratio[1].item() == pytest.approx(4 ** (2 / 14))
    assert rope.alibi_slopes(1).tolist() == [2.0 ** -8]
    assert rope.alibi_slopes(12).tolist() == pytest.approx([2.0 ** -n for n in (*range(1, 9), 0.5, 1.5, 2.5, 3.5)])


def test_when_yarn_then_pairs_are_split_by_the_rounds_they_make_and_logits_get_its_temperature():
    trained, s = 1024, 4
    plain = rope.frequencies(64)[0]
    yarn, factor = rope.frequencies(64, variant="yarn", length=s * trained, trained_length=trained)
    rounds = trained * plain / (2 * math.pi)
    assert torch.equal(yarn[rounds >= 32], plain[rounds >= 32]) and (rounds >= 32).any()
    torch.testing.assert_close(yarn[rounds <= 1], plain[rounds <= 1] / s)
    middle = ((rounds > 1) & (rounds < 32)).nonzero().flatten()
    for n in middle.tolist():
        keep = (rounds[n].item() - 1) / 31
        assert yarn[n].item() == pytest.approx(plain[n].item() * (keep + (1 - keep) / s))
    assert len(middle) > 5 and factor == pytest.approx(0.1 * math.log(4) + 1)
    assert rope.turns(s * trained, 64, 10_000.0, "yarn", trained).abs().mean().item() == pytest.approx(factor)


# The element-wise parts: values and gradients

# Largest relative error of storing a number, and of a few float32 operations on it (sums here are of up to 70 terms).
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0 ** -8, torch.float64: 0.0}
ARITHMETIC = {torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float64: 1e-12}
DTYPES = list(ROUNDING)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    return drawn.to(dtype).requires_grad_()


def agree(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """`got`, stored as `dtype`, is the exact value up to one rounding and the arithmetic's error."""
    torch.testing.assert_close(got.double(), exact, rtol=ROUNDING[dtype] + ARITHMETIC[dtype],
                               atol=ARITHMETIC[dtype] * exact.abs().amax().item())


def compare(function, formula, inputs: list[torch.Tensor], out: torch.dtype) -> None:
    """Values, and gradients against a random direction, of `function` and of `formula` in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    got, exact = function(*inputs), formula(*wide)
    agree(got, exact, out)
    along = numbers(*got.shape, seed=9, dtype=out).detach()
    assert got.dtype == out
    for x, mine, theirs in zip(inputs, torch.autograd.grad(got, inputs, along),
                               torch.autograd.grad(exact, wide, along.double()), strict=True):
        assert mine.dtype == x.dtype
        agree(mine, theirs, x.dtype)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 67, 37)])
def test_when_rms_norm_is_taken_then_it_agrees_with_the_formula(dtype, shape, autocast):
    def norm(x, gain):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return ops.rms_norm(x, gain, 0.1)
    given = [numbers(*shape, dtype=dtype), numbers(shape[-1], seed=1, dtype=dtype)]
    compare(norm, lambda *inputs: normed(*inputs, 0.1), given, torch.bfloat16 if autocast else dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 37])
def test_when_swiglu_is_taken_then_it_agrees_with_the_formula(dtype, width):
    compare(ops.swiglu, gated, [numbers(3, 5, 2 * width, dtype=dtype, scale=3.0)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("H, G, D", [(4, 1, 32), (6, 2, 10), (1, 1, 2)])
def test_when_heads_are_turned_then_each_pair_is_a_complex_product(dtype, H, G, D):
    B, T = 2, 19

    def formula(qkv):
        qk, v = qkv.view(B, T, H + 2 * G, D).transpose(1, 2).split([H + G, G], 1)
        return torch.cat([turned(qk), v], 1)

    def mine(qkv):
        turn = rope.turns(T, D, dtype=torch.promote_types(torch.complex64, dtype))
        q, k, v = rope.heads(qkv, turn, H, G)
        assert q.shape == (B, H, T, D) and k.shape == v.shape == (B, G, T, D)
        return torch.cat([q, k, v], 1)
    qkv = numbers(B, T, (H + 2 * G) * D, dtype=dtype)
    compare(mine, formula, [qkv], dtype)
    assert torch.equal(torch.cat(rope.heads(qkv, None, H, G), 1).transpose(1, 2).flatten(2), qkv)       # nothing turns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [2, 70])
def test_when_the_loss_of_logits_is_taken_then_it_and_its_gradient_are_the_formulas(dtype, vocab):
    logits, targets = numbers(9, vocab, dtype=dtype, scale=4.0), torch.arange(9) % vocab
    exact = logits.detach().double().requires_grad_()
    theirs = F.cross_entropy(exact, targets, reduction="none")
    losses, gradient = ops.surprise(logits.detach().clone(), targets)
    assert losses.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(losses.double(), theirs, rtol=ARITHMETIC[dtype], atol=ARITHMETIC[dtype])
    agree(gradient, torch.autograd.grad(theirs.sum(), exact)[0], dtype)


def test_when_numbers_are_on_a_cpu_then_the_kernels_compute_unless_they_cannot():
    assert ops.fused(torch.ones(1)) and ops.fused(torch.ones(1, dtype=torch.bfloat16))
    assert not ops.fused(torch.ones(1, dtype=torch.float64)) and not ops.fused(torch.ones(1, device="meta"))
    with torch.autocast("cpu", torch.float16):
        assert not ops.fused(torch.ones(1))


def test_when_torch_has_more_threads_then_results_are_the_same_bit_for_bit(three_threads):
    x, gain, turn = numbers(3, 67, 48), numbers(48, seed=1), rope.turns(67, 12)

    def results() -> list[torch.Tensor]:
        outputs = [ops.rms_norm(x, gain, 0.1), ops.swiglu(x), *rope.heads(x, turn, 2, 1)]
        gradients = torch.autograd.grad(outputs, (x, gain), [out.detach() + 1 for out in outputs])
        return [*outputs, *gradients, *ops.surprise(x.detach().view(-1, 48).clone(), torch.arange(201) % 48)]
    several = results()
    torch.set_num_threads(1)
    one = results()
    assert kernels.ROWS < 201 and all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


def test_when_a_number_is_far_from_zero_not_finite_or_no_target_then_the_result_is_right_or_says_so():
    """So that training stops: a loss that looks fine would let a diverged run go on."""
    for target in (-1, 7):
        with pytest.raises(IndexError, match="outside the vocabulary"):
            ops.cross_entropy(numbers(1, 3), numbers(7, 3, seed=1), torch.tensor([target]))
    assert ops.cross_entropy(torch.tensor([[300.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([1])) == 600
    x = torch.tensor([[300.0, -300.0, 2.0, 3.0]], requires_grad=True)
    out, nothing = ops.swiglu(x), pytest.approx(0, abs=1e-30)
    assert out.tolist() == [[600.0, nothing]]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [[2.0, nothing, 300.0, nothing]]
    for bad in (math.nan, math.inf):
        x = torch.tensor([[1.0] * 40, [1.0] * 33 + [bad] + [1.0] * 6])
        assert ops.surprise(x.clone(), torch.tensor([0, 0]))[0].isnan().tolist() == [False, True]
        for result in (ops.swiglu(x), ops.rms_norm(x, torch.ones(40), 0.0)):
            assert torch.isfinite(result).all(-1).tolist() == [True, False]


@pytest.mark.parametrize("exp, greatest, error", [
    (kernels.exp, 88, 3 * 2.0 ** -24), (numba.njit(lambda x: exponential(x)), 0, 2 * 2.0 ** -23)])
def test_when_the_exponential_is_approximated_then_it_is_exact_to_a_few_units_in_the_last_place(exp, greatest, error):
    x = np.linspace(-87, greatest, 20_011, dtype=np.float32)
    found = np.array([exp(value) for value in x])
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < error
    assert [exp(np.float32(end)) for end in (0, -87.1, -math.inf)] == [1, 0, 0]
    assert math.isnan(exp(np.float32(math.nan)))


@pytest.mark.parametrize("function", [lambda x: ops.rms_norm(x, torch.ones(8), 0.1), ops.swiglu,
                                      lambda x: ops.cross_entropy(x, torch.eye(8), torch.arange(3)[None]),
                                      *(lambda x, n=n: rope.heads(x, rope.turns(3, 2), 2, 1)[n] for n in range(3))])
def test_when_a_gradient_of_a_gradient_is_asked_for_then_it_is_refused(function):
    x = numbers(1, 3, 8)
    with pytest.raises(SuiteError, match="create_graph = True.*first derivatives only.*torch.func"):
        torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    exact = torch.func.hessian(lambda x: function(x).square().sum())(x.detach())
    assert exact.isfinite().all() and exact.any()


def test_when_compiled_then_the_formulas_are_traced_and_agree():
    def block(x, gain):
        return ops.swiglu(ops.rms_norm(x, gain, 0.1))
    x, gain = numbers(4, 10), numbers(10, seed=1)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, gain), block(x, gain))
    mine, theirs = (torch.autograd.grad(f(x, gain).square().sum(), (x, gain)) for f in (block, compiled))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damaged", [b"", b"\x80\x04", b"no pickle", pickle.dumps(numba.__version__) + pickle.dumps(1)])
def test_when_a_kept_kernel_cannot_be_read_then_it_is_compiled_and_kept_again(tmp_path, suffix, damaged):
    source = tmp_path / "doubling.py"
    source.write_text("from numba import njit\n\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n")

    def hits() -> int:
        twice = runpy.run_path(str(source))["twice"]
        assert twice(3.0) == 6.0
        return sum(twice.stats.cache_hits.values())
    assert (hits(), hits()) == (0, 1)
    next((tmp_path / "__pycache__").glob(f"*.{suffix}")).write_bytes(damaged)
    assert (hits(), hits()) == (0, 1)
