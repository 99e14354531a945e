"""The model against a plain re-computation of it, its parameter counts, and what a position option must do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lib import patterns, rope
from lib.config import DataConfig, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fused import ops
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
    assert model.parameter_count() == 60_850_688 + extra


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


def plain_logits(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """The model's equations on one text `[T]`, in float64, with the pattern's oracle mask."""
    w, T, D, H, G, position = dict(model.state_dict()), len(tokens), 6, 4, 2, model.config.position
    at = torch.arange(T, dtype=torch.float64)[:, None]
    angles = at * 10_000.0 ** (-torch.arange(0, D, 2).double() / D) * (position == "rope")
    alibi = -torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).view(H, 1, 1) * (at - at.T) * (position == "alibi")

    def norm(x, gain):
        return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def turn(x):                                                                       # (heads, T, D)
        a, b, cos, sin = x[..., ::2], x[..., 1::2], angles.cos(), angles.sin()
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    x = w["embedding.weight"][tokens]
    for layer, p in enumerate(("blocks.0.", "blocks.1.")):
        qkv = norm(x, w[p + "attention_norm.gain"]) @ w[p + "attention.qkv"].T
        q, k, v = qkv.view(T, H + 2 * G, D).transpose(0, 1).split([H, G, G])
        logits = turn(q) @ turn(k).repeat_interleave(H // G, 0).mT / math.sqrt(D) + alibi
        shares = logits.masked_fill(~torch.tensor(model.pattern.mask(layer, T)), -math.inf).softmax(-1)
        heads = shares @ v.repeat_interleave(H // G, 0)
        x = x + heads.transpose(0, 1).flatten(1) @ w[p + "attention.out"].T
        gate, up = (norm(x, w[p + "mlp_norm.gain"]) @ w[p + "mlp.gate_up"].T).chunk(2, -1)
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ w[p + "mlp.out"].T
    return norm(x, w["norm.gain"]) @ w["embedding.weight"].T


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


def test_when_a_pattern_overrides_then_it_is_as_if_the_model_had_been_built_with_it():
    dense, local = tiny("dense", seed=3), tiny("local", seed=3, window=2)
    tokens = tokens_of(2, 11)
    with torch.no_grad():
        assert torch.equal(dense(tokens, pattern=local.pattern), local(tokens))
        assert not torch.allclose(dense(tokens), local(tokens))


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


def test_when_the_variant_changes_then_the_model_uses_it_beyond_the_trained_length_only():
    model, tokens = tiny(), tokens_of(1, 24)
    with torch.no_grad():
        for variant in ("interpolation", "ntk", "yarn"):
            assert not torch.allclose(model(tokens, rope=variant, trained_length=6), model(tokens), atol=1e-4)
            for trained_length in (24, 30):
                assert torch.equal(model(tokens, rope=variant, trained_length=trained_length), model(tokens))
