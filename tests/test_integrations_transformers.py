"""Patterns in transformers' models: equal to the same weights with the dense mask, in training and generation."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib.attention import sparse_attention
from lib.errors import SuiteError
from lib.integrations.cached import attend_rows, first_rows
from lib.patterns import build, expand, names, pattern_class

transformers = pytest.importorskip("transformers", reason="not installed: pip install -e '.[transformers]'")
from lib.integrations.transformers import add_learned, register  # noqa: E402

torch.set_num_threads(1)
N = 48                          # length of the registrations: the longest sequence
VOCAB = 61
SMALL = {"vocab_size": VOCAB, "intermediate_size": 24}
CAUSAL = [pytest.param(example, id=f"{name}-{n}") for name in names()
          for n, example in enumerate(pattern_class(name).examples()) if example.causal]
BIDIRECTIONAL = [pytest.param(example, id=f"{name}-{n}") for name in names()
                 for n, example in enumerate(pattern_class(name).examples()) if not example.causal]
CLOSE = 1e-5                    # in float64 models too, transformers' norms, rotations and eager softmax are float32


def registered(pattern, length=N, backend="auto"):
    """A name of its own for every pattern, as equal ones may be registered again."""
    name = f"sparse:test-{pattern!r}-{length}-{backend}".replace("/", "")
    return register(pattern, length=length if pattern.causal else None, name=name, backend=backend)


def llama(attention, layers, heads, kv_heads=None, seed=0, **options):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **SMALL, hidden_size=4 * heads, num_hidden_layers=layers, num_attention_heads=heads, initializer_range=0.3,
        num_key_value_heads=kv_heads or heads, max_position_embeddings=N, pad_token_id=0, eos_token_id=None,
        bos_token_id=1, **options)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()


def densely(model, pattern, length=N):
    """The same model with eager attention and, in each layer, the pattern's oracle mask at `length`, additive."""
    twin = type(model)(copy.deepcopy(model.config)).double().eval()
    twin.load_state_dict(model.state_dict())
    twin.set_attn_implementation("eager")
    for layer, block in enumerate(twin.model.layers):
        allowed = torch.tensor(pattern.mask(layer, length))
        additive = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)[None]

        def masked(module, args, kwargs, additive=additive):
            T = kwargs["hidden_states"].shape[1]
            return args, {**kwargs, "attention_mask": additive[:, :, :T, :T]}
        block.self_attn.register_forward_pre_hook(masked, with_kwargs=True)
    return twin


def tokens(*shape, seed=0):
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))      # 0 is padding


def generated(model, prompt, new, **options):
    """Tokens, and the logits that chose them."""
    out = model.generate(prompt, max_new_tokens=new, do_sample=False, suppress_tokens=[0], return_dict_in_generate=True,
                         output_logits=True, **options)
    return out.sequences, torch.stack(out.logits, 1)


def pair(pattern, kv_heads=None, **options):
    """A Llama that has the pattern as its attention, and its dense twin."""
    model = llama(registered(pattern, **options), pattern.layers, pattern.heads, kv_heads)
    return model, densely(model, pattern)


def two_layers(name="scaled_base", **parameters):
    return build(name, layers=2, heads=4, **{"window": 2, **parameters})


# Training

@pytest.mark.parametrize("pattern", [two_layers(rungs=6, schedule="linear"), two_layers("mswa", window=9),
                                     two_layers("power_law", budget=6)], ids=lambda pattern: pattern.name)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_when_a_llama_trains_with_a_pattern_then_loss_and_all_gradients_are_those_of_the_dense_mask(pattern, backend):
    model, dense = pair(pattern, kv_heads=2, backend=backend)
    x = tokens(2, 41)
    losses = [m(x, labels=x).loss for m in (model, dense)]
    sum(losses).backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=CLOSE)
    grads = {name: p.grad for name, p in dense.named_parameters()}
    for name, p in model.named_parameters():
        assert p.grad.abs().max() > 0 and (p.grad - grads[name]).abs().max() < CLOSE, name


@pytest.mark.parametrize("pattern", [p for p in CAUSAL if p.values[0].learned is None])
def test_when_any_pattern_generates_with_a_cache_then_its_logits_are_the_dense_mask_s_without_one(pattern):
    model, dense = pair(pattern)
    text, logits = generated(model, tokens(1, 9), 25)
    assert text.shape == (1, 34)
    assert (dense(text).logits[:, 8:-1] - logits).abs().max() < CLOSE


# Generation

STATIC, CHUNKS = {"cache_implementation": "static"}, {"prefill_chunk_size": 5}


@pytest.mark.parametrize(("name", "options"), [("scaled_base", STATIC), ("streaming_sinks", CHUNKS),
                                               ("random_keys", {"use_cache": False}), ("random_keys", STATIC)], ids=str)
def test_when_the_prompt_comes_in_chunks_or_the_cache_is_static_or_there_is_none_then_the_logits_stay(name, options):
    model, _ = pair(two_layers(name), kv_heads=2)
    expected, found = (generated(model, tokens(2, 13), 9, **how) for how in ({}, options))
    assert torch.equal(expected[0], found[0]) and (expected[1] - found[1]).abs().max() < CLOSE


@pytest.mark.parametrize(("name", "options"), [
    ("scaled_base", {}), ("streaming_sinks", STATIC), ("random_keys", CHUNKS), ("longnet", STATIC)], ids=str)
def test_when_a_batch_is_padded_on_the_left_then_each_sequence_is_generated_as_if_alone(name, options):
    model, _ = pair(build(name, layers=2, heads=4), kv_heads=2)
    prompts = [tokens(1, n, seed=n) for n in (13, 6, 1)]
    batch = torch.cat([F.pad(p, (13 - p.shape[1], 0)) for p in prompts])
    text, logits = generated(model, batch, 9, attention_mask=(batch != 0).long(), **options)
    for b, prompt in enumerate(prompts):
        alone, its_logits = generated(model, prompt, 9)
        assert torch.equal(text[b, 13 - prompt.shape[1]:], alone[0])
        assert (logits[b] - its_logits[0]).abs().max() < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
def test_when_a_padded_batch_trains_then_losses_and_gradients_are_those_of_each_sequence_alone(side):
    model, dense = pair(two_layers("streaming_sinks", sinks=2), kv_heads=2)
    rows = [tokens(1, n, seed=n) for n in (17, 11)]
    batch = torch.cat([F.pad(r, (17 - r.shape[1], 0) if side == "left" else (0, 17 - r.shape[1])) for r in rows])
    seen = (batch != 0).long()
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    model(batch, attention_mask=seen, position_ids=positions).logits[seen.bool()].square().sum().backward()
    sum(dense(row).logits.square().sum() for row in rows).backward()
    for (name, p), q in zip(model.named_parameters(), dense.parameters(), strict=True):
        assert p.grad.isfinite().all() and (p.grad - q.grad).abs().max() < CLOSE * max(1, q.grad.abs().max()), name


def test_when_beams_reorder_the_cache_then_the_result_is_that_without_a_cache():
    model, _ = pair(two_layers(), kv_heads=2)
    with_cache, without = (model.generate(tokens(2, 7), max_new_tokens=8, num_beams=3, do_sample=False, use_cache=use,
                                          suppress_tokens=[0]) for use in (True, False))
    assert torch.equal(with_cache, without)


def test_when_weights_are_bfloat16_then_prompt_and_cached_steps_agree_to_its_precision():
    pattern = two_layers()
    model = pair(pattern, kv_heads=2)[0].to(torch.bfloat16)
    text, logits = generated(model, tokens(1, 9), 12)
    whole = model(text).logits[:, 8:-1]
    assert whole.dtype == torch.bfloat16 and (logits - whole).abs().max() < 2 ** -6 * whole.abs().max()


def test_when_a_model_scales_its_logits_itself_then_that_scale_counts():
    pattern = two_layers()
    model, dense = pair(pattern)
    before = model(tokens(1, 11)).logits
    for m in (model, dense):
        for block in m.model.layers:
            block.self_attn.scaling = 0.9
    text, logits = generated(model, tokens(1, 11), 5)
    assert (before - model(tokens(1, 11)).logits).abs().max() > 1e-3
    assert (dense(text).logits[:, 10:-1] - logits).abs().max() < CLOSE


@pytest.mark.parametrize("kind", ["gpt2", "modernbert"])
def test_when_another_architecture_has_the_dense_pattern_then_it_is_what_it_was(kind):
    if kind == "gpt2":
        make, config = transformers.AutoModelForCausalLM, transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=N, bos_token_id=1, eos_token_id=None,
            pad_token_id=0)
    else:
        make, config = transformers.AutoModel, transformers.ModernBertConfig(
            **SMALL, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0, bos_token_id=1,
            eos_token_id=1, cls_token_id=1, sep_token_id=1, layer_types=["full_attention"] * 2)
    model = make.from_config(config, attn_implementation="sdpa").eval()
    x = tokens(2, 17)
    x[1, :5] = 0
    seen = (x != 0).long()
    expected = model(x, attention_mask=seen)[0]
    model.set_attn_implementation(registered(build("dense", layers=2, heads=4, causal=kind == "gpt2")))
    assert (model(x, attention_mask=seen)[0] - expected)[seen.bool()].abs().max() < CLOSE


# Patterns that learn

@pytest.mark.parametrize("name", ["learned", "adaptive_span"])
def test_when_a_pattern_learns_then_its_parameters_get_gradients_and_steps_with_a_cache_are_those_without(name):
    pattern = two_layers(name, window=5, **({"rungs": 7, "start": "ramp"} if name == "learned" else {"ramp": 3}))
    model = llama(registered(pattern), 2, 4, 2)
    thetas = add_learned(model, pattern)
    assert [theta.shape for theta in thetas] == [() if name == "learned" else (4,)] * 2
    named = [n for n, _ in model.named_parameters() if "theta" in n]
    assert named == [f"model.layers.{layer}.self_attn.sparse_theta" for layer in (0, 1)]
    with torch.no_grad():
        for layer, theta in enumerate(thetas):
            theta.add_(torch.linspace(-0.7, 0.9, theta.numel()).view(theta.shape) + layer)
    text, logits = generated(model, tokens(2, 9), 20)
    assert (model(text).logits[:, 8:-1] - logits).abs().max() < CLOSE
    model(text, labels=text).loss.backward()
    assert all(theta.grad.abs().min() > 0 for theta in thetas)


def test_when_a_learned_pattern_runs_then_it_is_the_reference_at_the_alpha_of_each_layer(monkeypatch):
    pattern, seen = two_layers("learned", rungs=7, start="ramp"), {}
    model = llama(registered(pattern), 2, 4, 2)
    add_learned(model, pattern)

    def spy(q, k, v, keys, layer, **given):
        seen[layer] = q, k, v, sparse_attention(q, k, v, keys, layer, **given)
        return seen[layer][3]
    monkeypatch.setattr("lib.integrations.transformers.sparse_attention", spy)
    model(tokens(2, 33))
    for layer, (q, k, v, found) in seen.items():
        alpha = torch.tensor(0.5) + torch.sigmoid(torch.tensor(pattern.thetas[layer]))
        expected = sparse_attention(q, k, v, pattern, layer, alpha=alpha, backend="reference")
        assert (expected - found).abs().max() < 1e-6
    assert sorted(seen) == [0, 1]


# Encoders

def bert(attention, pattern):
    torch.manual_seed(1)
    config = transformers.BertConfig(
        **SMALL, hidden_size=4 * pattern.heads, num_hidden_layers=pattern.layers, num_attention_heads=pattern.heads,
        max_position_embeddings=N, hidden_dropout_prob=0, attention_probs_dropout_prob=0, initializer_range=0.3)
    return transformers.AutoModel.from_config(config, attn_implementation=attention).double().eval()


@pytest.mark.parametrize("pattern", BIDIRECTIONAL)
def test_when_an_encoder_has_padding_then_each_sequence_is_that_alone_with_the_dense_mask(pattern):
    model = bert(registered(pattern), pattern)
    lengths = (23, 9, 23)
    rows = [tokens(1, n, seed=n + b) for b, n in enumerate(lengths)]
    batch = torch.cat([F.pad(row, (0, 23 - row.shape[1])) for row in rows])
    found = model(batch, attention_mask=(batch != 0).long()).last_hidden_state
    eager = bert("eager", pattern)
    for layer, block in enumerate(eager.encoder.layer):
        def masked(module, args, kwargs, layer=layer):
            allowed = torch.tensor(pattern.mask(layer, args[0].shape[1]))
            return args[:1], {"attention_mask": torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[None]}
        block.attention.self.register_forward_pre_hook(masked, with_kwargs=True)
    for b, (n, row) in enumerate(zip(lengths, rows, strict=True)):
        assert (eager(row).last_hidden_state - found[b, :n]).abs().max() < CLOSE


def test_when_a_row_is_all_padding_then_nothing_is_nan_and_the_others_are_as_without_it():
    one_way, both_ways = two_layers("streaming_sinks"), two_layers("random_keys", window=0, causal=False)
    x, seen = tokens(2, 9), torch.tensor([[1] * 9, [0] * 9])
    for model in (llama(registered(one_way), 2, 4).model, bert(registered(both_ways), both_ways)):
        found = model(x, attention_mask=seen).last_hidden_state
        assert found.isfinite().all() and (found[:1] - model(x[:1]).last_hidden_state).abs().max() < CLOSE


def test_when_an_encoder_trains_then_gradients_flow_and_padding_has_none():
    pattern = two_layers("local", causal=False)
    model = bert(registered(pattern), pattern)
    x = torch.randn(2, 19, 16, dtype=torch.float64, requires_grad=True)
    seen = torch.ones(2, 19, dtype=torch.long)
    seen[1, 12:] = 0
    model(inputs_embeds=x, attention_mask=seen).last_hidden_state[:, :12].square().sum().backward()
    assert (x.grad[1, 12:] == 0).all() and (x.grad[1, :12] != 0).any(-1).all() and (x.grad[0, 12:15] != 0).any()


# What is refused

def refusal(model, *args, **kwargs):
    with pytest.raises(SuiteError) as caught:
        model(*args, **kwargs)
    return str(caught.value)


def test_when_pattern_and_model_differ_then_the_error_names_both():
    one_way, both_ways = two_layers("local"), two_layers("local", causal=False)
    assert "build it with causal=True" in refusal(llama(registered(both_ways), 2, 4), tokens(1, 5))
    assert "build it with causal=False" in refusal(bert(registered(one_way), one_way), tokens(1, 5))
    name = registered(two_layers())
    assert "layers of pattern 'scaled_base' = 2 is not valid: the model's 3" in refusal(llama(name, 3, 4), tokens(1, 5))
    assert "heads of pattern 'scaled_base' = 4 is not valid: the model's 2" in refusal(llama(name, 2, 2), tokens(1, 5))


def test_when_a_text_outgrows_the_registered_length_then_the_error_says_so():
    model = llama(registered(two_layers(), length=12), 2, 4)
    assert model.generate(tokens(1, 9), max_new_tokens=4, do_sample=False).shape == (1, 13)     # the last is not fed
    with pytest.raises(SuiteError, match="length = 12 is not valid"):
        model.generate(tokens(1, 9), max_new_tokens=5, do_sample=False)
    assert "length = 12" in refusal(model, tokens(1, 13))


def test_when_masks_say_more_than_padding_then_they_are_refused():
    model = llama(registered(two_layers()), 2, 4)
    hole = torch.tensor([[1, 1, 0, 1, 1]])
    assert "padding between tokens" in refusal(model, tokens(1, 5), attention_mask=hole)
    assert "2-D mask" in refusal(model, tokens(1, 5), attention_mask=torch.zeros(1, 1, 5, 5))
    packed = torch.tensor([[0, 1, 2, 0, 1]])
    assert "packed sequences" in refusal(model, tokens(1, 5), position_ids=packed, use_cache=False)


def test_when_a_model_has_dropout_a_window_or_is_asked_for_weights_then_it_is_refused_with_the_remedy():
    pattern = two_layers()
    model = llama(registered(pattern), 2, 4, attention_dropout=0.1)
    assert model(tokens(1, 5)).logits.isfinite().all()                      # none in evaluation
    assert "attention dropout is 0.1; set it to 0" in refusal(model.train(), tokens(1, 5))
    assert "output_attentions" in refusal(model.eval(), tokens(1, 5), output_attentions=True)
    config = transformers.MistralConfig(
        **SMALL, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, sliding_window=8)
    windowed = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=registered(pattern))
    assert "sliding_window = None" in refusal(windowed, tokens(1, 5))
    config.sliding_window = None
    free = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=registered(pattern))
    assert free(tokens(1, 5)).logits.isfinite().all()


def test_when_a_model_leaves_the_attention_interface_aside_then_it_fails_and_never_attends_without_a_mask():
    config = transformers.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=4)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=registered(two_layers()))
    with pytest.raises(RuntimeError, match="must match"):
        model(tokens(1, 9))


def test_when_learned_parameters_are_missing_or_unwanted_then_the_error_names_the_helper():
    pattern = two_layers("learned", rungs=6)
    assert "add_learned(model, pattern)" in refusal(llama(registered(pattern), 2, 4), tokens(1, 5))
    with pytest.raises(SuiteError, match="one attention in each of the pattern's 2 layers"):
        add_learned(llama("eager", 3, 4), pattern)
    with pytest.raises(SuiteError, match="learns something"):
        add_learned(llama("eager", 2, 4), two_layers())


def test_when_a_registration_cannot_be_then_nothing_is_registered():
    pattern = two_layers()
    for bad, match in (({"length": None}, "length"), ({"length": 9, "name": "sdpa"}, "name"),
                       ({"length": 9, "name": "a/b"}, "name"), ({"length": 9, "backend": "cuda"}, "backend")):
        with pytest.raises(SuiteError, match=match):
            register(pattern, **{"name": "sparse:refused", **bad})
    with pytest.raises(SuiteError, match="length"):
        register(two_layers("local", causal=False), length=9)
    assert "sparse:refused" not in transformers.AttentionInterface()
    assert register(pattern, length=9, name="sparse:taken") == register(pattern, length=9, name="sparse:taken")
    with pytest.raises(SuiteError, match="taken by"):
        register(pattern, length=10, name="sparse:taken")
    assert register(build("dense"), length=9) == "sparse:dense"


# Rows of a plan

@pytest.mark.parametrize("pattern", CAUSAL)
def test_when_a_plan_is_cut_then_it_is_the_first_rows_of_the_longest(pattern):
    for layer in range(0, pattern.layers, 3):
        full = expand(pattern.plan(layer, N), N, pattern.heads)
        for T in (1, 2, 17, N):
            assert np.array_equal(expand(first_rows(pattern, layer, N, T), T, pattern.heads), full[:, :T, :T])
            assert first_rows(pattern, layer, N, T) is first_rows(pattern, layer, N, T)     # so that its plan is kept


def test_when_lengths_change_the_keys_then_only_patterns_that_say_so_differ_from_the_longest_plan():
    differing = set()
    for pattern in (p.values[0] for p in CAUSAL):
        for T in (7, 17, 31):
            of_length, of_longest = (expand(keys, T, pattern.heads) for keys in (
                pattern.plan(0, T), first_rows(pattern, 0, N, T)))
            if not np.array_equal(of_length, of_longest):
                differing.add((pattern.name, getattr(pattern, "base", ""), getattr(pattern, "reach", "")))
    assert differing == {("random_offsets", "", None)} | {d for d in differing if d[:2] == ("scaled_base", "pow2")}


@pytest.mark.parametrize("pattern", CAUSAL)
def test_when_rows_are_gathered_in_parts_then_values_and_gradients_are_the_reference_s(pattern, monkeypatch):
    heads, layer = (pattern.heads if pattern.heads > 1 else 4), pattern.layers - 1
    random = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, h, N, 6, generator=random, dtype=torch.float64) for h in (heads, heads // 2, heads // 2))
    values = {"alpha": torch.tensor(0.77), "span": torch.arange(heads) + 1.3}
    learned = {pattern.learned: values[pattern.learned]} if pattern.learned else {}
    wanted = [x.requires_grad_() for x in (q, k, v, *learned.values())]
    whole = sparse_attention(q, k, v, pattern, layer, backend="reference", **learned)
    for first, Q in ((0, 1), (5, 12), (N - 1, 1)):
        monkeypatch.setattr("lib.integrations.cached.GATHERED", 1 if Q > 1 else 2 ** 22)
        rows = slice(first, first + Q)
        positions = torch.arange(first, first + Q)[None]
        found = attend_rows(q[:, :, rows], k, v, pattern.plan(layer, N), positions, **learned)
        dout = torch.randn(found.shape, generator=random, dtype=torch.float64)
        gradients = (torch.autograd.grad(out, wanted, dout, retain_graph=True) for out in (found, whole[:, :, rows]))
        for a, b in zip((found, *next(gradients)), (whole[:, :, rows], *next(gradients)), strict=True):
            assert (a - b).abs().max() < (1e-5 if learned else 1e-12)           # alpha and span are float32
