"""Every kind of tensor and transform that PyTorch has, on every backend: it gives what the reference gives to plain
tensors, values and gradients, or a SuiteError says what to do.
"""

import copy
import pickle
import threading
from functools import partial

import pytest
import torch
from attention_cases import alibi, qkv, true_in_a_child
from torch.autograd import forward_ad, functional, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from lib import patterns, rope
from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import CACHE
from lib.config import ModelConfig
from lib.errors import SuiteError
from lib.model import Transformer
from lib.patterns import LearnedOffsets, SoftWindow

SOFT, ALPHA, SPAN = SoftWindow(6, 3), torch.tensor(1.21), torch.tensor([0.5, 1.5, 4.0, 6.0])
every_backend = pytest.mark.parametrize(
    "backend", [*(name for name, backend in BACKENDS.items() if name != "reference" and not backend.missing()), "auto"])


SMALL = dict(vocab=24, d_model=16, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=20)


class Own(torch.Tensor):
    pass


class Model(torch.nn.Module):
    """Attention as a module; what it learns is the span."""

    def __init__(self, backend):
        super().__init__()
        self.span, self.slopes, self.backend = torch.nn.Parameter(SPAN.clone()), alibi(4), backend

    def forward(self, q, k, v):
        return sparse_attention(q, k, v, SOFT, span=self.span, slopes=self.slopes, backend=self.backend)


def attended(call, *given, dout=None):
    """The output of a call, and the gradients of the tensors that ask for one."""
    out = call(*given)
    wanted = [x for x in (*given, *getattr(call, "parameters", tuple)()) if x.requires_grad]
    dout = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device="cpu").view(out.shape) if dout is None else dout
    return [out, *torch.autograd.grad(out, wanted, dout)]


def same(found, expected, rtol=1e-4, atol=1e-5):
    assert type(found[0]) is torch.Tensor
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor), b, rtol=rtol, atol=atol)


GIVEN = {       # of a plain tensor, one that has its numbers, or other ones, in another way
    "of a subclass": lambda x: x.as_subclass(Own), "a parameter": lambda x: torch.nn.Parameter(x.detach()),
    "not contiguous": lambda x: x.mT.contiguous().mT, "every second": lambda x: torch.stack([x, -x], -1)[..., 0],
    "of one head": lambda x: x[:, :1].expand_as(x), "of one token": lambda x: x[:, :, :1].expand_as(x),
    "of one number": lambda x: x[..., :1].expand_as(x), "from an odd place": lambda x: torch.cat(
        [x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "overlapping": lambda x: x.flatten().as_strided(x.shape, (3, 5, 2, 1)),
    "negated later": lambda x: torch.complex(x, -x).conj().imag, "in float64": lambda x: x.double(),
    "negated in place": lambda x: torch._neg_view(-x),
    "made in inference": lambda x: torch.inference_mode()(x.clone)()}


@every_backend
@pytest.mark.parametrize("how", GIVEN)
def test_when_tensors_are_given_in_another_way_then_values_and_gradients_are_the_reference_s(how, backend):
    given = [GIVEN[how](x.requires_grad_()) for x in qkv(2, T=19, D=16)]        # whole rows, which are not copied
    plain = [torch.tensor(x.tolist(), dtype=x.dtype, requires_grad=x.requires_grad) for x in given]
    same(attended(Model(backend), *given), attended(Model("reference"), *plain))


@every_backend
def test_when_a_gradient_comes_in_another_way_or_for_some_tensors_only_then_it_is_the_reference_s(backend):
    for asking in range(4):
        data, results = qkv(2, T=19), []
        for name in ("reference", backend):
            model, given = Model(name), [x.clone() for x in data]
            model.span.requires_grad_(False)
            (*given, model.span)[asking].requires_grad_()
            results.append(attended(model, *given))
        same(*results)
    plain = [x.requires_grad_() for x in qkv(2, T=19, D=16)]
    for how in ("negated later", "of one number", "overlapping", "from an odd place"):
        dout = GIVEN[how](torch.randn(2, 4, 19, 16, generator=torch.Generator().manual_seed(1)))
        plainly = torch.tensor(dout.tolist())
        same(attended(Model(backend), *plain, dout=dout), attended(Model("reference"), *plain, dout=plainly))


def quantised(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


def nested(layout):
    return lambda x: torch.nested.nested_tensor([x[0], x[0]], layout=layout)


def distributed(x):
    import torch.distributed as dist
    import torch.distributed.tensor
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.tensor.distribute_tensor(x, dist.device_mesh.init_device_mesh("cpu", (1,)))


REFUSED = {     # of q, k and v; what is said
    "sparse": (lambda x: x.to_sparse(), "q = 'Tensor in torch.sparse_coo'.*to_dense"),
    "nested": (nested(torch.strided), "q = 'Tensor in torch.strided'.*to_padded_tensor"),
    "jagged": (nested(torch.jagged), "q = 'NestedTensor in torch.jagged'.*to_padded_tensor"),
    "distributed": (distributed, "q = 'DTensor in torch.strided'.*full_tensor"),
    "quantised": (quantised, "q = torch.qint8.*floating"),
    "complex": (lambda x: x * 1j, "q = torch.complex64.*floating"),
    "integers": (lambda x: x.int(), "q = torch.int32.*floating"),
    "of eight bits": (lambda x: x.to(torch.float8_e4m3fn), "q = torch.float8_e4m3fn.*16, 32 or 64 bits"),
    "of no batch": (lambda x: x[:0], r"q = \(0, .*at least 1"),
    "of no token": (lambda x: x[:, :, :0], "q = .*at least 1"),
    "numpy": (lambda x: x.numpy(), "q = 'ndarray'.*torch.Tensor"),
    "nothing": (lambda x: None, "q = 'NoneType'.*torch.Tensor")}


@pytest.mark.parametrize("kind", REFUSED)
def test_when_tensors_are_of_a_kind_that_no_backend_knows_then_the_error_says_what_to_give(kind):
    make, message = REFUSED[kind]
    for backend in ("reference", "auto", "cpu"):
        with pytest.raises(SuiteError, match=message):
            sparse_attention(*map(make, qkv(T=19)), SOFT, span=SPAN, backend=backend)


def test_when_tensors_do_not_belong_together_then_the_error_says_so():
    q, k, v = qkv(T=19)
    pairs = {"k = device.type='meta'.*device of q, cpu": (q, k.to("meta"), v),
             "k = torch.bfloat16.*dtype of q": (q, k.bfloat16(), v)}
    for message, given in pairs.items():
        with pytest.raises(SuiteError, match=message):
            Model("auto")(*given)
    with torch.autocast("cpu"), pytest.raises(SuiteError, match="k = torch.float64.*dtype of q"):
        Model("auto")(q, k.double(), v)
    for name, keys in (("alpha", LearnedOffsets(1, (4,))), ("span", SOFT)):
        learned = {"alpha": ALPHA, "span": SPAN}[name]
        for wrong, message in ((1.0, "float.*torch.Tensor"), (learned.to("meta"), "are read: give real numbers")):
            with pytest.raises(SuiteError, match=f"{name}.*{message}"):
                sparse_attention(q, k, v, keys, **{name: wrong})
        with pytest.raises(SuiteError, match=f"{name}.* are read: .*a loop in place of vmap"):
            torch.func.vmap(lambda x: sparse_attention(q, k, v, keys, **{name: x}))(learned.expand(2, *learned.shape))


# Transforms: derivatives of every order and mode, recomputation, programs

@every_backend
def test_when_torch_transforms_attention_then_every_backend_gives_what_the_reference_gives(backend):
    q, k, v = qkv(2, 4, 2, 19, 8)
    pattern, alpha = patterns.build("learned", heads=4), ALPHA

    def loss(q, alpha, backend=backend):
        return sparse_attention(q, k, v, pattern, alpha=alpha, backend=backend).square().sum()
    plain = [x.clone().requires_grad_() for x in (q, alpha)]
    expected = torch.autograd.grad(loss(*plain, "reference"), plain, create_graph=True)
    for found in (torch.func.grad(loss, (0, 1))(q, alpha), torch.func.vjp(loss, q, alpha)[1](torch.ones(())),
                  torch.func.jacrev(loss, (0, 1))(q, alpha), torch.func.jacfwd(loss, 1)(q, alpha)):
        torch.testing.assert_close(found, expected if isinstance(found, tuple) else expected[1])
    along = sum((a * b).sum() for a, b in zip(expected, (q, alpha), strict=True))
    torch.testing.assert_close(torch.func.jvp(loss, (q, alpha), (q, alpha))[1], along)
    with forward_ad.dual_level():
        dual = loss(*(forward_ad.make_dual(x, x) for x in (q, alpha)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, along)
    over = torch.func.vmap(lambda scale: loss(q * scale, alpha))(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(over, torch.stack([loss(q * scale, alpha, "reference") for scale in (0.5, 2.0)]))
    second, = torch.autograd.grad(expected[1], plain[1])
    for twice in (torch.func.hessian, lambda f, at: torch.func.grad(torch.func.grad(f, at), at)):
        torch.testing.assert_close(twice(loss, 1)(q, alpha), second)


SECOND = {      # ways to a second derivative, or to many first ones at once, of a function of q
    "create_graph": lambda f, q: torch.autograd.grad(f(q).sum(), q, create_graph=True),
    "is_grads_batched": lambda f, q: torch.autograd.grad(f(q), q, torch.ones(2, *q.shape), is_grads_batched=True),
    "hessian": lambda f, q: functional.hessian(lambda q: f(q).sum(), q),
    "gradgradcheck": lambda f, q: gradgradcheck(f, q)}


@every_backend
@pytest.mark.parametrize("way", SECOND)
def test_when_gradients_are_differentiated_again_then_it_is_refused_not_taken_for_constant(way, backend):
    q, k, v = (x[:, :, :5, :2].detach().requires_grad_() for x in qkv(dtype=torch.float64))
    assert gradcheck(lambda q: Model(backend)(q, k, v), q)
    with pytest.raises(SuiteError, match="create_graph = True.*first derivatives only.*torch.func"):
        SECOND[way](lambda q: Model(backend)(q, k, v), q)
    if way == "gradgradcheck":
        assert gradgradcheck(lambda q: Model("reference")(q, k, v), q)


@every_backend
def test_when_a_module_is_copied_pickled_checkpointed_or_in_threads_then_it_gives_the_same(backend):
    given, model = [x.requires_grad_() for x in qkv(2, T=19)], Model(backend)
    expected = attended(model, *given)

    def again(call):
        found = attended(call, *given)
        same(found, expected[:len(found)], rtol=0, atol=0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        again(copied)
    for reentrant in (True, False):
        leaves = [x.clone().detach().requires_grad_() for x in given]
        out = checkpoint(model, *leaves, use_reentrant=reentrant)
        out.backward(torch.linspace(-1, 1, out.numel()).view(out.shape))
        same([out, *(x.grad for x in leaves), model.span.grad], expected)
        model.span.grad = None
    with torch.autograd.graph.save_on_cpu():
        again(model)
    CACHE.clear()
    heard = []
    callers = [threading.Thread(target=lambda: heard.append(again(model))) for _ in range(3)]
    for act in (threading.Thread.start, threading.Thread.join):
        for caller in callers:
            act(caller)
    assert len(heard) == 3 and true_in_a_child(lambda: again(model) is None)


@every_backend
def test_when_plans_are_first_built_in_an_evaluation_then_they_serve_training_too(backend):
    given = [x.requires_grad_() for x in qkv(2, T=19)]
    fixed = partial(sparse_attention, pattern=patterns.build("scaled_base", heads=4), slopes=alibi(4))
    for mode in (torch.no_grad, torch.inference_mode):
        CACHE.clear()
        with mode():
            Model(backend)(*given), fixed(*given, backend=backend)
        same(attended(Model(backend), *given), attended(Model("reference"), *given))
        same(attended(partial(fixed, backend=backend), *given), attended(partial(fixed, backend="reference"), *given))


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_when_torch_has_another_default_device_or_dtype_then_attention_and_models_do_as_ever(dtype, backend):
    given, x = [x.requires_grad_() for x in qkv(2, T=19)], torch.arange(24).view(2, 12)
    model, pattern = Model(backend), patterns.build("learned", layers=2, heads=4)
    models = [Transformer(ModelConfig(**SMALL, position=position), pattern) for position in ("rope", "alibi")]

    def results():
        rope.turns.cache_clear()
        CACHE.clear()
        return [*attended(model, *given), *attended(partial(sparse_attention, pattern=pattern, alpha=ALPHA), *given),
                *(loss for model in models for loss in (model.loss(x, x), model.token_losses(x, x)))]
    expected = results()
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device("meta"):
            found = results()
    finally:
        torch.set_default_dtype(default)
    same(found, expected, rtol=0, atol=0)


@every_backend
def test_when_a_number_is_not_finite_then_no_query_that_reads_it_gets_a_finite_one(backend):
    for name, at, bad in (("q", 7, torch.nan), ("k", 7, torch.nan), ("v", 7, torch.inf), ("v", 7, torch.nan)):
        given = dict(zip("qkv", qkv(T=19), strict=True))
        given[name][:, :, at] = bad
        out = sparse_attention(**given, pattern=patterns.build("local", heads=4, window=3), backend=backend)
        assert not out[:, :, at:at + (1 if name == "q" else 4)].isfinite().any()


@every_backend
def test_when_tensors_have_no_numbers_then_masked_gives_the_shape_and_others_are_refused(backend):
    from torch._subclasses.fake_tensor import FakeTensorMode
    data, pattern = qkv(1, 4, 2, 19, 8), patterns.build("scaled_base", heads=4)

    class Fixed(torch.nn.Module):
        def forward(self, q, k, v):
            return sparse_attention(q, k, v, pattern, backend=backend)
    expected = sparse_attention(*data, pattern, backend="reference")
    CACHE.clear()
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in data]
    on_meta = [x.to("meta") for x in data]

    def of_fakes():
        with mode:
            return Fixed()(*fake)
    calls = of_fakes, lambda: Fixed()(*on_meta), lambda: torch.export.export(Fixed(), tuple(data)).module()(*data)
    for call in calls:
        if backend in ("masked", "auto"):
            assert call().shape == expected.shape
        else:
            with pytest.raises(SuiteError, match="masked for a meta or fake tensor"):
                call()
    torch.testing.assert_close(Fixed()(*data), expected)            # no fake mask was kept for it
    with pytest.raises(SuiteError, match="masked for a meta or fake tensor"):
        sparse_attention(*on_meta, LearnedOffsets(1, (4,)), alpha=ALPHA, backend=backend)
    with pytest.raises(SuiteError, match="jit.trace"):
        torch.jit.trace(Fixed(), tuple(data))


@pytest.mark.parametrize("pattern", ["scaled_base", "learned", "adaptive_span"])
def test_when_a_model_is_copied_checkpointed_or_transformed_then_loss_and_gradients_stay(pattern):
    model = Transformer(ModelConfig(**SMALL), patterns.build(pattern, layers=2, heads=4))
    x = torch.randint(0, 23, (2, 30), generator=torch.Generator().manual_seed(5))

    def gradients(model, *how):
        loss = checkpoint(model.loss, x, x.roll(1, 1), use_reentrant=False) if how else model.loss(x, x.roll(1, 1))
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    expected = gradients(model)
    for copied, *how in ((copy.deepcopy(model),), (pickle.loads(pickle.dumps(model)),), (model, "checkpointed")):
        same(gradients(copied, *how), expected, rtol=0, atol=0)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, logits=False):
        out = torch.func.functional_call(model, weights, (x,))
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), x.roll(1, 1).flatten())
    by_func, value = torch.func.grad_and_value(loss)(weights)
    same([value, *by_func.values()], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(SuiteError, match="first derivatives only"):
        torch.autograd.grad(model.loss(x, x), model.embedding.weight, create_graph=True)
    with pytest.raises(SuiteError, match=r"q = \(0, 4, 30, 6\).*at least 1"):
        model(x[:0])
