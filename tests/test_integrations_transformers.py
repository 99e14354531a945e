"""Patterns in transformers' models: equal to the same weights with the dense mask, in training and generation."""

import copy
import re

import pytest
import torch
from attention_cases import EXAMPLES
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.utils.rnn import pad_sequence

from lib.attention import sparse_attention
from lib.errors import SuiteError
from lib.patterns import build

transformers = pytest.importorskip("transformers", reason="not installed: pip install -e '.[transformers]'")
from lib.integrations.transformers import add_learned, attend_rows, first_rows, register  # noqa: E402

N = 48                          # length of the registrations: the longest sequence
VOCAB = 61
CAUSAL = [example for example in EXAMPLES if example.values[0].causal]
BIDIRECTIONAL = [example for example in EXAMPLES if not example.values[0].causal]
CLOSE = 1e-5                    # in float64 models too, transformers' norms, rotations and eager softmax are float32
STATIC, CHUNKS = {"cache_implementation": "static"}, {"prefill_chunk_size": 5}


def registered(pattern, length=N, backend="auto"):
    """A name of its own for every pattern, as equal ones may be registered again."""
    name = f"sparse:test-{pattern!r}-{length}-{backend}".replace("/", "")
    return register(pattern, length=length if pattern.causal else None, name=name, backend=backend)


def model_of(kind, attention, layers=2, heads=4, **options):
    """A small model with random weights, in float64."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{
        "vocab_size": VOCAB, "hidden_size": 4 * heads, "intermediate_size": 24, "num_hidden_layers": layers,
        "num_attention_heads": heads, "max_position_embeddings": N, "initializer_range": 0.3, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": None, **options})
    make = transformers.AutoModel if "Bert" in kind else transformers.AutoModelForCausalLM
    return make.from_config(config, attn_implementation=attention).double().eval()


def llama(attention=None, layers=2, heads=4, kv_heads=2, **options):
    attention = attention or registered(two_layers())
    return model_of("Llama", attention, layers, heads, num_key_value_heads=kv_heads, **options)


def bert(pattern):
    no_dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return model_of("Bert", registered(pattern), pattern.layers, pattern.heads, **no_dropout)


def densely(model, pattern, length=None):
    """The same model with eager attention and, in each layer, the pattern's oracle mask, which is additive, at `length`
    or at the text's own length."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    blocks = [module for name, module in twin.named_modules() if name.endswith(("self_attn", "attention.self"))]
    for layer, block in enumerate(blocks):
        def hook(module, args, kwargs, layer=layer):
            T = (args[0] if args else kwargs["hidden_states"]).shape[1]
            allowed = torch.tensor(pattern.mask(layer, length or T))[:, :T, :T]
            additive = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -torch.inf)[None]
            return args[:1], {**kwargs, "attention_mask": additive}
        block.register_forward_pre_hook(hook, with_kwargs=True)
    return twin


def tokens(*shape, seed=0):
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))      # 0 is padding


def padded(rows, side="right"):
    """Rows of different lengths as one batch, and its attention mask."""
    batch = pad_sequence([row[0] for row in rows], batch_first=True, padding_side=side)
    return batch, (batch != 0).long()


def generated(model, prompt, new, **options):
    """Tokens, and the logits that chose them."""
    out = model.generate(prompt, max_new_tokens=new, do_sample=False, suppress_tokens=[0], return_dict_in_generate=True,
                         output_logits=True, **options)
    return out.sequences, torch.stack(out.logits, 1)


def pair(pattern, kv_heads=2, **options):
    """A Llama that has the pattern as its attention, and its dense twin."""
    model = llama(registered(pattern, **options), pattern.layers, pattern.heads, kv_heads)
    return model, densely(model, pattern, N)


def assert_same_gradients(model, dense):
    for (name, p), q in zip(model.named_parameters(), dense.parameters(), strict=True):
        if q.grad is not None:
            assert (p.grad - q.grad).abs().max() < CLOSE * max(1, q.grad.abs().max()), name


def two_layers(name="scaled_base", **parameters):
    return build(name, layers=2, heads=4, **{"window": 2, **parameters})


@pytest.mark.parametrize("pattern", [two_layers(rungs=6, schedule="linear"), two_layers("mswa", window=9),
                                     two_layers("power_law", budget=6)], ids=lambda pattern: pattern.name)
@pytest.mark.parametrize("backend, scale", [("auto", 0.5), ("torch", 0.9)])         # 4 ** -0.5, and a scale of its own
def test_when_a_llama_trains_with_a_pattern_then_loss_and_all_gradients_are_those_of_the_dense_mask(
        pattern, backend, scale):
    model, dense = pair(pattern, backend=backend)
    for block in (*model.model.layers, *dense.model.layers):
        block.self_attn.scaling = scale
    x = tokens(2, 41)
    losses = [m(x, labels=x).loss for m in (model, dense)]
    sum(losses).backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=CLOSE)
    assert_same_gradients(model, dense)


@pytest.mark.parametrize("pattern", [p for p in CAUSAL if p.values[0].learned is None])
def test_when_any_pattern_generates_with_a_cache_then_its_logits_are_the_dense_mask_s_without_one(pattern):
    model, dense = pair(pattern, kv_heads=pattern.heads)
    text, logits = generated(model, tokens(1, 9), 25)
    assert text.shape == (1, 34)
    assert (dense(text).logits[:, 8:-1] - logits).abs().max() < CLOSE


@pytest.mark.parametrize(("name", "options"), [
    ("scaled_base", STATIC), ("streaming_sinks", CHUNKS), ("random_keys", {"use_cache": False}),
    ("random_keys", CHUNKS), ("longnet", STATIC), ("scaled_base", {})], ids=str)
def test_when_a_batch_is_padded_on_the_left_then_each_sequence_is_generated_as_if_alone_with_a_cache(name, options):
    model = llama(registered(build(name, layers=2, heads=4)))
    prompts = [tokens(1, n, seed=n) for n in (13, 6, 1)]
    batch, seen = padded(prompts, "left")
    text, logits = generated(model, batch, 9, attention_mask=seen, **options)
    for b, prompt in enumerate(prompts):
        alone, its_logits = generated(model, prompt, 9)
        assert torch.equal(text[b, 13 - prompt.shape[1]:], alone[0])
        assert (logits[b] - its_logits[0]).abs().max() < CLOSE


@pytest.mark.parametrize("side", ["left", "right"])
def test_when_a_padded_batch_trains_then_losses_and_gradients_are_those_of_each_sequence_alone(side):
    model, dense = pair(two_layers("streaming_sinks", sinks=2))
    rows = [tokens(1, n, seed=n) for n in (17, 11)]
    batch, seen = padded(rows, side)
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    model(batch, attention_mask=seen, position_ids=positions).logits[seen.bool()].square().sum().backward()
    sum(dense(row).logits.square().sum() for row in rows).backward()
    assert_same_gradients(model, dense)


def test_when_beams_reorder_the_cache_or_weights_are_bfloat16_then_the_result_is_that_without_a_cache():
    model = llama()
    with_cache, without = (model.generate(tokens(2, 7), max_new_tokens=8, num_beams=3, do_sample=False, use_cache=use,
                                          suppress_tokens=[0]) for use in (True, False))
    assert torch.equal(with_cache, without)
    model = model.to(torch.bfloat16)
    text, logits = generated(model, tokens(1, 9), 12)
    whole = model(text).logits[:, 8:-1]
    assert whole.dtype == torch.bfloat16 and (logits - whole).abs().max() < 2 ** -6 * whole.abs().max()


@pytest.mark.parametrize(("kind", "options"), [
    ("GPT2", {}), ("ModernBert", {"cls_token_id": 1, "sep_token_id": 1, "layer_types": ["full_attention"] * 2})])
def test_when_another_architecture_has_the_dense_pattern_then_it_is_what_it_was(kind, options):
    model, x = model_of(kind, "sdpa", **options), tokens(2, 17)
    x[1, :5] = 0
    seen = (x != 0).long()
    expected = model(x, attention_mask=seen)[0]
    model.set_attn_implementation(registered(build("dense", layers=2, heads=4, causal=kind == "GPT2")))
    assert (model(x, attention_mask=seen)[0] - expected)[seen.bool()].abs().max() < CLOSE


@pytest.mark.parametrize("name", ["learned", "adaptive_span"])
def test_when_a_pattern_learns_then_its_parameters_get_gradients_and_steps_with_a_cache_are_those_without(name):
    pattern = two_layers(name, window=5, **({"rungs": 7, "start": "ramp"} if name == "learned" else {"ramp": 3}))
    model = llama(registered(pattern))
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


@pytest.mark.parametrize("pattern", BIDIRECTIONAL)
def test_when_an_encoder_has_padding_then_states_and_gradients_are_those_of_each_sequence_with_the_dense_mask(pattern):
    model = bert(pattern)
    eager = densely(model, pattern)
    rows = [tokens(1, n, seed=n + b) for b, n in enumerate((23, 9, 23))]
    batch, seen = padded(rows)
    found = model(batch, attention_mask=seen).last_hidden_state[seen.bool()]
    wanted = torch.cat([eager(row).last_hidden_state[0] for row in rows])
    assert (found - wanted).abs().max() < CLOSE
    side = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape)
    for m, out in ((model, found), (eager, wanted)):
        (out * side).sum().backward()
    assert_same_gradients(model, eager)


def mistral(sliding_window):
    return model_of("Mistral", registered(two_layers()), num_key_value_heads=2, sliding_window=sliding_window)


def registering(**given):
    return lambda: register(**{"pattern": two_layers(), "length": 9, "name": "sparse:refused", **given})


# What is said, the model, and the options of its call on five tokens
REFUSED = {
    "build it with causal=True": (lambda: llama(registered(two_layers("local", causal=False))), {}),
    "build it with causal=False": (lambda: bert(two_layers("local")), {}),
    "layers of pattern 'scaled_base' = 2 is not valid: the model's 3": (lambda: llama(registered(two_layers()), 3), {}),
    "heads of pattern 'scaled_base' = 4 is not valid": (lambda: llama(registered(two_layers()), 2, 2), {}),
    "length = 4 is not valid": (lambda: llama(registered(two_layers(), length=4)), {}),
    "padding between tokens": (llama, {"attention_mask": torch.tensor([[1, 1, 0, 1, 1]])}),
    "2-D mask": (llama, {"attention_mask": torch.zeros(1, 1, 5, 5)}),
    "packed sequences": (llama, {"position_ids": torch.tensor([[0, 1, 2, 0, 1]]), "use_cache": False}),
    "start again within a row": (llama, {"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}),
    "output_attentions": (llama, {"output_attentions": True}),
    "attention dropout is 0.1; set it to 0": (lambda: llama(attention_dropout=0.1).train(), {}),
    "sliding_window = None": (lambda: mistral(sliding_window=4), {}),
    "add_learned(model, pattern)": (lambda: llama(registered(two_layers("learned"))), {}),
    "in each of the pattern's 2 layers": (lambda: add_learned(llama("eager", 3), two_layers("learned")), {}),
    "learns something": (lambda: add_learned(llama("eager"), two_layers()), {}),
    "length = None": (registering(length=None), {}), "name = 'sdpa'": (registering(name="sdpa"), {}),
    "length = 9": (registering(pattern=two_layers("local", causal=False)), {}),
    "name = 'a/b'": (registering(name="a/b"), {}), "backend 'cuda'": (registering(backend="cuda"), {}),
    "taken by": (lambda: [registering(name="sparse:taken", length=length)() for length in (9, 9, 10)], {}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_when_pattern_mask_or_model_do_not_fit_then_the_error_names_the_remedy_and_nothing_is_registered(words):
    make, options = REFUSED[words]
    with pytest.raises(SuiteError, match=re.escape(words)):
        make()(tokens(1, 5), **options)
    assert "sparse:refused" not in transformers.AttentionInterface()


OTHER_MASKS = [                 # what is said, and options that mean another mask than the pattern's, for five tokens
    *(("start again within a row", {"position_ids": torch.tensor([ids])}) for ids in (
        [0, 0, 0, 1, 2], [0, 0, 1, 2, 3], [0, 1, 2, 3, 0], [5, 6, 7, 0, 1], [3, 4, 5, 7, 8], [0, 0, 0, 0, 0])),
    ("start again within a row", {"position_ids": torch.tensor([[0, 0, 0, 1, 2]]), "attention_mask": torch.ones(1, 5)}),
    *(("one column a token", {"attention_mask": torch.ones(1, columns), "use_cache": cache})
      for columns in (4, 9) for cache in (True, False)),
    *(("packs sequences into one row", {name: torch.tensor([0, 2, 5])}) for name in (
        "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")),
    ("head_mask", {"head_mask": torch.ones(4)}),
    *(("2-D mask", {"attention_mask": mask}) for mask in (
        torch.ones(1, 1, 1, 5).long(), torch.ones(1, 1, 5, 5).bool(), torch.ones(1, 4, 5, 5),
        create_block_mask(lambda b, h, q, k: q >= k, 1, None, 5, 5, device="cpu")))]


@pytest.mark.parametrize(("words", "options"), OTHER_MASKS)
def test_when_an_input_means_another_mask_than_the_pattern_s_then_it_is_refused(words, options):
    with pytest.raises(SuiteError, match=words):
        llama()(tokens(1, 5), **options)


def test_when_other_inputs_only_look_like_another_mask_then_the_result_is_that_without_them():
    model, x = llama(), tokens(2, 5)
    expected = model(x, labels=x)
    for options in ({"attention_mask": torch.ones(2, 5)}, {"num_items_in_batch": torch.tensor(8)}, {"seq_idx": None},
                    {"position_ids": torch.arange(5)[None]}, {"position_ids": torch.arange(5).expand(2, 5)},
                    {"position_ids": torch.arange(7, 12)[None]}):       # RoPE is relative: an offset changes nothing
        assert (model(x, labels=x, **options).logits - expected.logits).abs().max() < CLOSE
    with pytest.raises(SuiteError, match="build it with causal=False"):
        llama(is_causal=False)(x)
    for three in (torch.ones(1, 1, 1, 3), torch.ones(1, 1, 3, 3)):      # as wide as what `Registered.mask` says
        with pytest.raises(SuiteError, match="2-D mask"):
            model(tokens(1, 3), attention_mask=three.long())


def test_when_a_model_does_not_use_what_is_refused_or_a_row_is_all_padding_then_it_runs_and_nothing_is_nan():
    for ids, seen in ([[1, 1, 0, 1, 2]], [[0, 0, 1, 1, 1]]), ([[0, 1, 2, 1, 1]], [[1, 1, 1, 0, 0]]):     # of padding
        llama()(tokens(1, 5), position_ids=torch.tensor(ids), attention_mask=torch.tensor(seen))
    model = llama(registered(two_layers(), length=12), attention_dropout=0.1)                   # none in evaluation
    assert model.generate(tokens(1, 9), max_new_tokens=4, do_sample=False).shape == (1, 13)     # the last is not fed
    with pytest.raises(SuiteError, match="length = 12 is not valid"):
        model.generate(tokens(1, 9), max_new_tokens=5, do_sample=False)
    assert mistral(sliding_window=None)(tokens(1, 5)).logits.isfinite().all()
    with pytest.raises(RuntimeError, match="must match"):           # a model without the interface never lacks a mask
        model_of("Bloom", registered(two_layers()))(tokens(1, 9))
    assert register(build("dense"), length=9) == "sparse:dense"
    one_way, both_ways = two_layers("streaming_sinks"), two_layers("random_keys", window=0, causal=False)
    x, seen = tokens(2, 9), torch.tensor([[1] * 9, [0] * 9])                                    # a row of padding
    for model in (llama(registered(one_way)).model, bert(both_ways)):
        found = model(x, attention_mask=seen).last_hidden_state
        assert found.isfinite().all() and (found[:1] - model(x[:1]).last_hidden_state).abs().max() < CLOSE


@pytest.mark.parametrize("pattern", CAUSAL)
def test_when_rows_are_gathered_in_parts_then_values_and_gradients_are_the_reference_s(pattern, monkeypatch):
    heads, layer = (pattern.heads if pattern.heads > 1 else 4), pattern.layers - 1
    random = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, h, N, 6, generator=random, dtype=torch.float64) for h in (heads, heads // 2, heads // 2))
    values = {"alpha": torch.tensor(0.77), "span": torch.arange(heads) + 1.3}
    learned = {pattern.learned: values[pattern.learned]} if pattern.learned else {}
    wanted = [x.requires_grad_() for x in (q, k, v, *learned.values())]
    whole = sparse_attention(q, k, v, pattern, layer, backend="reference", **learned)
    assert first_rows(pattern, layer, N, 17) is first_rows(pattern, layer, N, 17)           # so that its plan is kept
    for first, Q in ((0, 1), (5, 12), (N - 1, 1)):
        monkeypatch.setattr("lib.integrations.transformers.GATHERED", 1 if Q > 1 else 2 ** 22)
        rows = slice(first, first + Q)
        positions = torch.arange(first, first + Q)[None]
        found = attend_rows(q[:, :, rows], k, v, pattern.plan(layer, N), positions, **learned)
        dout = torch.randn(found.shape, generator=random, dtype=torch.float64)
        gradients = (torch.autograd.grad(out, wanted, dout, retain_graph=True) for out in (found, whole[:, :, rows]))
        for a, b in zip((found, *next(gradients)), (whole[:, :, rows], *next(gradients)), strict=True):
            assert (a - b).abs().max() < (1e-5 if learned else 1e-12)           # alpha and span are float32
