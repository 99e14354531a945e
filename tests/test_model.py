"""The model against a plain re-computation of it, its parameter counts, and what a position option must do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lib import patterns, rope
from lib.config import (DataConfig, ModelConfig, PatternSpec, RunConfig,
                        TrainConfig)
from lib.errors import SuiteError
from lib.fused import ops
from lib.model import Transformer, build_model

torch.set_num_threads(1)

TINY = dict(vocab=23, d_model=16, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=20)


def tiny(pattern="dense", seed=0, position="rope", **parameters) -> Transformer:
    config = ModelConfig(**TINY, position=position)
    return Transformer(config, patterns.build(pattern, layers=config.layers, heads=config.heads, **parameters), seed)


def tokens_of(count: int, length: int, vocab: int = TINY["vocab"]) -> torch.Tensor:
    return torch.randint(0, vocab, (count, length), generator=torch.Generator().manual_seed(5))


# Size


@pytest.mark.parametrize("pattern, extra", [("dense", 0), ("local", 0), ("scaled_base", 0), ("learned", 16),
                                            ("adaptive_span", 16 * 8)])
def test_when_settings_are_the_papers_then_parameters_are_its_count(pattern, extra):
    with torch.device("meta"):
        model = Transformer(ModelConfig(), patterns.build(pattern, layers=16, heads=8))
    assert model.parameter_count() == 60_850_688 + extra
    assert model.parameter_count(embedding=False) == 44_073_472 + extra


def test_when_the_pattern_is_for_another_stack_then_error_names_both():
    with pytest.raises(SuiteError, match="layers of pattern 'dense' = 3 .* 2"):
        Transformer(ModelConfig(**TINY), patterns.build("dense", layers=3, heads=4))
    with pytest.raises(SuiteError, match="heads of pattern 'local' = 2 .* 4"):
        tiny()(tokens_of(1, 4), pattern=patterns.build("local", layers=2, heads=2))


# Values


def plain_logits(weights: dict[str, torch.Tensor], tokens: list[int], attends) -> torch.Tensor:
    """The model's equations, one position and one head at a time, in float64; `attends(layer, i)` lists keys."""
    c = ModelConfig(**TINY)
    D, half = c.head_dim, c.head_dim // 2
    w = {name: tensor.double() for name, tensor in weights.items()}

    def norm(x, gain):
        return gain * x / torch.sqrt((x * x).sum() / len(x) + 1e-6)

    def turn(x, position):
        out = x.clone()
        for n in range(half):
            angle = position * 10_000.0 ** (-2 * n / D)
            a, b = x[2 * n], x[2 * n + 1]
            out[2 * n] = a * math.cos(angle) - b * math.sin(angle)
            out[2 * n + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    x = [w["embedding.weight"][t] for t in tokens]
    for layer in range(c.layers):
        p = f"blocks.{layer}."
        qkv = [w[p + "attention.qkv"] @ norm(one, w[p + "attention_norm.gain"]) for one in x]
        part = [[row[h * D:(h + 1) * D] for h in range(c.heads + 2 * c.kv_heads)] for row in qkv]
        for i in range(len(x)):
            heads = []
            for h in range(c.heads):
                g = h // (c.heads // c.kv_heads)
                keys = attends(layer, i)
                q = turn(part[i][h], i)
                logits = torch.stack([q @ turn(part[j][c.heads + g], j) for j in keys]) / math.sqrt(D)
                shares = torch.exp(logits) / torch.exp(logits).sum()
                heads.append(sum(s * part[j][c.heads + c.kv_heads + g] for s, j in zip(shares, keys)))
            x[i] = x[i] + w[p + "attention.out"] @ torch.cat(heads)
        for i in range(len(x)):
            h = norm(x[i], w[p + "mlp_norm.gain"])
            gate, up = (w[p + "mlp.gate_up"] @ h).chunk(2)
            x[i] = x[i] + w[p + "mlp.out"] @ (gate / (1 + torch.exp(-gate)) * up)
    return torch.stack([w["embedding.weight"] @ norm(one, w["norm.gain"]) for one in x])


def with_random_gains(model: Transformer) -> Transformer:
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.rand(p.shape, generator=generator))
            p.mul_(1.7)                 # larger weights than at the start, so that attention is far from uniform
    return model


@pytest.mark.parametrize("pattern, parameters, attends", [
    ("dense", {}, lambda layer, i: range(i + 1)),
    ("local", {"window": (1, 3)}, lambda layer, i: range(max(0, i - (1, 3)[layer]), i + 1)),
])
def test_when_computed_plainly_then_logits_agree(pattern, parameters, attends):
    model = with_random_gains(tiny(pattern, **parameters)).double()
    tokens = tokens_of(1, 9)
    expected = plain_logits(dict(model.state_dict()), tokens[0].tolist(), attends)
    torch.testing.assert_close(model(tokens)[0], expected, rtol=1e-9, atol=1e-9)


def test_when_loss_is_taken_then_it_is_the_mean_cross_entropy_of_the_logits_with_its_gradient():
    model, tokens, targets = with_random_gains(tiny()).double(), tokens_of(3, 7), tokens_of(3, 7).roll(1, 0)
    targets[0, :4] = -100
    parameters = list(model.parameters())
    mine = model.loss(tokens, targets)
    theirs = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(torch.autograd.grad(mine, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        torch.testing.assert_close(a, b)
    each = model.token_losses(tokens, targets)
    assert each[0, :4].isnan().all() and not each[targets >= 0].isnan().any()
    torch.testing.assert_close(each[targets >= 0].double().mean(), theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_when_cross_entropy_works_in_slices_then_value_and_gradients_do_not_change(monkeypatch, rows):
    monkeypatch.setattr(ops, "_slices", lambda tokens, *_: [slice(a, a + rows) for a in range(0, tokens, rows)])
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(13, 5, generator=g, dtype=torch.float64, requires_grad=True)
    table = torch.randn(11, 5, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (13,), generator=g)
    mine = torch.autograd.grad(3 * ops.cross_entropy(hidden, table, targets), (hidden, table))
    theirs = torch.autograd.grad(3 * F.cross_entropy(hidden @ table.T, targets), (hidden, table))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_when_a_logit_towers_over_the_target_then_the_loss_is_their_gap_and_not_infinite():
    table = torch.tensor([[1.0], [-1.0]])
    loss = ops.cross_entropy(torch.tensor([[300.0]]), table, torch.tensor([1]))
    assert loss.item() == 600.0


def test_when_no_target_is_scored_then_error_says_so():
    with pytest.raises(SuiteError, match="targets .* at least one scored"):
        tiny().loss(tokens_of(1, 4), torch.full((1, 4), -100))


def test_when_rms_norm_is_differentiated_then_it_agrees_with_the_formula():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 7, generator=g, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(7, generator=g, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, gain: ops.rms_norm(x, gain, 0.1), (x, gain))
    expected = gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 0.1)
    torch.testing.assert_close(ops.rms_norm(x, gain, 0.1), expected)


def test_when_autocast_is_on_then_products_are_bf16_and_the_loss_stays_near_that_in_float32():
    model, tokens, targets = tiny(), tokens_of(4, 16), tokens_of(4, 16).roll(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(tokens).dtype == torch.bfloat16
        low = model.loss(tokens, targets)
    low.backward()
    assert low.dtype == torch.float32 and all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert abs(low.item() - model.loss(tokens, targets).item()) < 0.02
    assert low.item() != model.loss(tokens, targets).item()


# What may influence what


def causal_examples():
    examples = [example for name in patterns.names() for example in patterns.pattern_class(name).examples()]
    return [pytest.param(p, id=f"{n}-{p.name}") for n, p in enumerate(examples) if p.causal]


@pytest.mark.parametrize("pattern", causal_examples())
def test_when_a_future_token_changes_then_earlier_logits_do_not(pattern):
    config = ModelConfig(23, 12, pattern.layers, pattern.heads, kv_heads=1, head_dim=4, hidden=8)
    model, tokens = Transformer(config, pattern), tokens_of(1, 21)
    changed = tokens.clone()
    changed[0, 13] = (changed[0, 13] + 1) % 23
    with torch.no_grad():
        before, after = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(before[:13], after[:13], rtol=0, atol=1e-6)
    assert (before[13:] - after[13:]).abs().amax() > 1e-3


def test_when_a_pattern_overrides_then_it_is_as_if_the_model_had_been_built_with_it():
    dense, local = tiny("dense", seed=3), tiny("local", seed=3, window=2)
    tokens = tokens_of(2, 11)
    with torch.no_grad():
        assert torch.equal(dense(tokens, pattern=local.pattern), local(tokens))
        assert not torch.allclose(dense(tokens), local(tokens))


def test_when_an_override_needs_what_was_not_learned_then_error_names_it():
    for name, kind in (("learned", "alpha"), ("adaptive_span", "span")):
        with pytest.raises(SuiteError, match=f"'{name}' needs a learned {kind}; the model's: None"):
            tiny()(tokens_of(1, 5), pattern=patterns.build(name, layers=2, heads=4))


# Start


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


def test_when_patterns_differ_then_they_start_from_the_same_matrices():
    one, other = tiny("dense").state_dict(), tiny("learned", rungs=4).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


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


def test_when_alpha_is_learned_then_it_starts_at_one_or_on_the_ramp_and_has_a_gradient():
    model = tiny("learned", window=1, rungs=6)
    assert model.alphas() == [1.0, 1.0] and model.spans() == []
    model.loss(tokens_of(2, 30), tokens_of(2, 30).roll(-1, 1)).backward()
    assert all(block.attention.theta.grad.abs() > 0 for block in model.blocks)
    config = ModelConfig(**{**TINY, "layers": 5})
    ramp = Transformer(config, patterns.build("learned", layers=5, heads=4, start="ramp")).alphas()
    assert ramp[1:4] == pytest.approx([0.75, 1.0, 1.25]) and 0.5 < ramp[0] < 0.6 and 1.4 < ramp[4] < 1.5


def test_when_spans_are_learned_then_each_head_has_a_gradient():
    model = tiny("adaptive_span", window=12, ramp=4)
    assert model.spans() == [0.5, 0.5] and model.alphas() == []
    model.loss(tokens_of(2, 30), tokens_of(2, 30).roll(-1, 1)).backward()
    assert all((block.attention.theta.grad.abs() > 0).all() for block in model.blocks)


def test_when_a_model_was_first_evaluated_in_inference_mode_then_it_still_trains():
    rope.turns.cache_clear()
    model = tiny("learned", rungs=5)
    with torch.inference_mode():
        model(tokens_of(1, 19))
    model.loss(tokens_of(1, 19), tokens_of(1, 19)).backward()


# Positions


def test_when_both_positions_shift_then_rotated_products_do_not_change():
    g = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=g, dtype=torch.float64)
    turn = rope.turns(40, 8, dtype=torch.complex128)

    def product(i, j):
        return (rope.rotate(q, turn[i:i + 1]) * rope.rotate(k, turn[j:j + 1])).sum().item()
    assert product(5, 2) == pytest.approx(product(35, 32), abs=1e-12)
    assert abs(product(5, 2) - product(6, 2)) > 1e-3
    assert product(0, 0) == pytest.approx((q * k).sum().item())


@pytest.mark.parametrize("variant", rope.VARIANTS)
@pytest.mark.parametrize("length", [128, 100])
def test_when_length_is_at_most_the_trained_one_then_every_variant_is_rope(variant, length):
    assert torch.equal(rope.turns(length, 16, 10_000.0, variant, 128), rope.turns(length, 16))


def test_when_interpolated_then_twice_the_position_turns_as_the_position_did():
    turn = rope.turns(256, 16, 10_000.0, "interpolation", 128, torch.complex128)
    torch.testing.assert_close(turn[::2], rope.turns(128, 16, dtype=torch.complex128))


def test_when_ntk_aware_then_the_fastest_pair_stays_and_the_slowest_is_interpolated():
    plain, (ntk, factor) = rope.frequencies(16)[0], rope.frequencies(16, variant="ntk", length=512, trained_length=128)
    ratio = plain / ntk
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(4.0) and (ratio.diff() > 0).all() and factor == 1
    assert ratio[1].item() == pytest.approx(4 ** (2 / 14))


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
    x = torch.ones(1, 1, 1, 64, dtype=torch.float64)
    turned = rope.rotate(x, rope.turns(s * trained, 64, 10_000.0, "yarn", trained, torch.complex128)[:1])
    assert (turned * turned).sum().item() == pytest.approx(64 * factor ** 2)


def test_when_a_variant_is_unknown_or_lacks_the_trained_length_then_error_names_it():
    with pytest.raises(SuiteError, match="did you mean 'yarn'"):
        tiny()(tokens_of(1, 4), rope="yarm")
    with pytest.raises(SuiteError, match="trained_length = None .* 'ntk'"):
        tiny()(tokens_of(1, 4), rope="ntk")
    with pytest.raises(SuiteError, match="rope = 'yarn' .* position is nope"):
        tiny(position="nope")(tokens_of(1, 4), rope="yarn", trained_length=2)


def test_when_the_variant_changes_then_the_model_uses_it_beyond_the_trained_length_only():
    model, tokens = tiny(), tokens_of(1, 24)
    with torch.no_grad():
        for variant in ("interpolation", "ntk", "yarn"):
            assert not torch.allclose(model(tokens, rope=variant, trained_length=6), model(tokens), atol=1e-4)
            assert torch.equal(model(tokens, rope=variant, trained_length=24), model(tokens))


def test_when_heads_are_a_power_of_two_or_not_then_slopes_are_those_of_alibi():
    assert rope.alibi_slopes(8).tolist() == [2.0 ** -n for n in range(1, 9)]
    assert rope.alibi_slopes(4).tolist() == [2.0 ** -n for n in (2, 4, 6, 8)]
    assert rope.alibi_slopes(1).tolist() == [2.0 ** -8]
    assert rope.alibi_slopes(12).tolist() == pytest.approx([2.0 ** -n for n in (*range(1, 9), 0.5, 1.5, 2.5, 3.5)])


def test_when_there_is_no_position_then_the_order_of_earlier_tokens_does_not_matter_and_otherwise_it_does():
    config = {**TINY, "layers": 1}
    tokens = tokens_of(1, 8)
    mixed = tokens[:, [3, 0, 5, 1, 6, 2, 4, 7]]
    for position, same in (("nope", True), ("rope", False), ("alibi", False)):
        model = Transformer(ModelConfig(**config, position=position), patterns.build("dense", layers=1, heads=4))
        with torch.no_grad():
            assert torch.allclose(model(tokens)[0, -1], model(mixed)[0, -1], atol=1e-5) == same, position


def test_when_alibi_then_logits_fall_by_the_slope_with_distance():
    """Without queries and keys the weights are the softmax of `-slope * distance`."""
    model = with_random_gains(Transformer(ModelConfig(**{**TINY, "layers": 1}, position="alibi"),
                                          patterns.build("dense", layers=1, heads=4))).double()
    tokens = tokens_of(1, 10)
    model.blocks[0].attention.qkv.data[:4 * 6 + 2 * 6] = 0           # queries and keys: the weights are ALiBi's alone
    x = model.embedding(tokens)[0]
    h = ops.rms_norm(x, model.blocks[0].attention_norm.gain, 1e-6)
    v = (h @ model.blocks[0].attention.qkv[36:].T).view(10, 2, 6)
    distance = torch.arange(9, -1, -1, dtype=torch.float64)
    heads = [torch.softmax(-2.0 ** (-2.0 * (n + 1)) * distance, 0) @ v[:, n // 2] for n in range(4)]
    expected = torch.cat(heads) @ model.blocks[0].attention.out.T
    block = model.blocks[0]
    y = block.attention(block.attention_norm(x[None]), model.pattern, None, rope.alibi_slopes(4), "auto")
    torch.testing.assert_close(y[0, -1], expected, rtol=1e-6, atol=1e-8)
