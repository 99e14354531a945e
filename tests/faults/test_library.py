"""Bad inputs of who uses the library from Python: each is a `SuiteError` that names the thing, before anything is made.

A row is a name, an expression, and a regular expression that the message matches.
"""

import numpy as np
import pytest
import torch

from lib.attention import sparse_attention
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.model import Transformer
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow, build
from suite.tasks import make_source, task

pytestmark = pytest.mark.slow

Q = torch.zeros(1, 2, 8, 4)                         # [B, H, T, D]
LOCAL = build("local", window=2, heads=2)


def table(*rows: tuple[int, ...]) -> EdgeTable:
    return EdgeTable(np.array(rows, np.int32))


def attended(pattern=LOCAL, q=Q, k=Q, v=Q, layer=0, **more):
    return sparse_attention(q, k, v, pattern, layer, **more)


NAMES = {name: value for name, value in globals().items() if not name.startswith("_")}
ROWS = [
    # Patterns
    ("a pattern that is not there", "build('lokal')", "unknown pattern 'lokal'; did you mean 'local'"),
    ("a pattern by a number", "build(3)", "unknown pattern 3"),
    ("a parameter that is not there", "build('local', windw=2)",
     "unknown parameter of pattern local 'windw'.*'window'"),
    ("a window below zero", "build('local', window=-1)", "window = -1 is not valid"),
    ("a window as text", "build('local', window='8')", "window = '8' is not valid"),
    ("a window that is a truth value", "build('local', window=True)", "window = True is not valid"),
    ("a window that is a fraction", "build('local', window=2.5)", "window = 2.5 is not valid"),
    ("no layers", "build('local', layers=0)", "layers = 0 is not valid"),
    ("no heads", "build('local', heads=0)", "heads = 0 is not valid"),
    ("a window of the wrong number of layers", "build('local', layers=2, window=(1, 2, 3))", r"window = \(1, 2, 3\)"),
    ("a window of the wrong number of heads", "build('local', heads=2, window=((1, 2, 3),))",
     "one for each of 2 heads"),
    ("a schedule that is not there", "build('scaled_base', schedule='fixd')", "unknown schedule 'fixd'.*'fixed'"),
    ("a base that is not there", "build('scaled_base', base='fib')", "unknown base 'fib'"),
    ("a coprime ramp of a depth without one", "build('scaled_base', schedule='coprime', layers=4)",
     "layers = 4 has none"),
    ("no rungs", "build('scaled_base', rungs=0)", "rungs = 0 is not valid"),
    ("a seed below zero", "build('bigbird', seed=-1)", "seed = -1 is not valid"),
    ("an encoder of a decoder's pattern", "build('learned', causal=False)", "causal = False is not valid"),
    ("a word above one", "build('christoffel', m=9, k=8)", "m = 9 is not valid: an integer from 1 to k = 8"),
    ("a budget below the window", "build('power_law', budget=1, window=4)", "budget = 1 is not valid"),
    ("an exponent that is NaN", "build('power_law', sigma=float('nan'))", "sigma = nan is not valid"),
    ("keys of a layer that is not there", "LOCAL.plan(1, 8)", "layer = 1 is not valid: 0 to layers - 1 = 0"),
    ("keys at no tokens", "LOCAL.plan(0, 0)", "length = 0 is not valid"),
    # Attention
    ("q without a batch", "attended(q=Q[0])", r"q = \(2, 8, 4\) is not valid: four dimensions"),
    ("whole numbers", "attended(q=Q.long(), k=Q.long(), v=Q.long())", "q = torch.int64 is not valid"),
    ("two dtypes", "attended(k=Q.double())", "k = torch.float64 is not valid"),
    ("v unlike k", "attended(v=Q[..., :2])", "v = .* is not valid: the shape of k"),
    ("k of another length", "attended(k=Q[:, :, :4], v=Q[:, :, :4])", "k = .* is not valid: batch, T and head size"),
    ("key heads that divide nothing", "attended(k=torch.zeros(1, 3, 8, 4), v=torch.zeros(1, 3, 8, 4))", "a divisor of"),
    ("no tokens", "attended(q=Q[:, :, :0], k=Q[:, :, :0], v=Q[:, :, :0])", "q = .* at least 1 in every dimension"),
    ("no pattern", "attended(pattern=None)", "pattern = 'NoneType' is not valid"),
    ("a pattern as text", "attended(pattern='local')", "pattern = 'str' is not valid"),
    ("a layer that is not there", "attended(layer=3)", "layer = 3 is not valid"),
    ("a backend that is not there", "attended(backend='cuda')", "unknown backend 'cuda'"),
    ("a backend that this machine lacks", "attended(backend='gpu')", "backend 'gpu' is not available|cannot do"),
    ("alpha for a pattern that learns none", "attended(alpha=torch.tensor(1.0))",
     "alpha = .* None: the pattern learns none"),
    ("no alpha", "attended(LearnedOffsets(2, (3,)))", "alpha = None is not valid"),
    ("an alpha out of range", "attended(LearnedOffsets(2, (3,)), alpha=torch.tensor(3.0))", "alpha = 3.0 is not valid"),
    ("an alpha that is NaN", "attended(LearnedOffsets(2, (3,)), alpha=torch.tensor(float('nan')))", "alpha = nan"),
    ("a span that hides the query", "attended(SoftWindow(4, 2), span=torch.tensor([-3.0, 1.0]))",
     "span = -3.0 is not valid"),
    ("a span that is NaN", "attended(SoftWindow(4, 2), span=torch.tensor([float('nan'), 1.0]))", "span = nan"),
    ("slopes of other heads", "attended(slopes=torch.ones(3))", r"slopes = \(3,\) is not valid"),
    ("slopes that would be learned", "attended(slopes=torch.ones(2, requires_grad=True))", "slopes = 'requires_grad'"),
    ("offsets of other heads", "attended(HeadOffsets((Offsets((0,)),) * 3))", "pattern.heads = 3 is not valid"),
    ("offsets without the query", "attended(Offsets((3,)))", "query 0 attends no key"),
    ("a distance twice", "attended(Offsets((0, 1, 1)), backend='cpu')", "distances without repeats"),
    ("a table of other rows", "attended(table((0,), (0,)))", r"edge table \(2, 1\).*T = 8"),
    ("a table beyond the text", "attended(table(*[(9,)] * 8))", "edge table of keys 9 to 9"),
    ("a table with keys twice", "attended(table(*[(0, 0)] * 8))", "rows that ascend without repeats"),
    ("a table with an empty row", "attended(table(*[(0,)] * 7, (-1,)))", "query 7 attends no key"),
    # Configurations and models
    ("no heads of a model", "ModelConfig(heads=0)", "heads = 0 is not valid"),
    ("key heads that do not divide", "ModelConfig(heads=8, kv_heads=3)", "kv_heads = 3 is not valid"),
    ("a position that is not there", "ModelConfig(position='rop')", "position = 'rop' is not valid: one of rope"),
    ("no steps", "TrainConfig(steps=0)", "steps = 0 is not valid"),
    ("a precision that is not there", "TrainConfig(precision='fp8')", "precision = 'fp8' is not valid: bf16 or fp32"),
    ("a learning rate that is NaN", "TrainConfig(lr=float('nan'))", "lr = nan is not valid"),
    ("a seed of a run below zero", "TrainConfig(seed=-1)", "seed = -1 is not valid"),
    ("a pattern of another depth", "Transformer(ModelConfig(vocab=9, layers=3, heads=2), LOCAL)",
     "layers of pattern 'local'"),
    ("a task that is not there", "task('copyng')", "unknown task 'copyng'; did you mean 'copying'"),
    ("a parameter of a task that is not there", "task('copying', strng=4)",
     "unknown parameter of task copying 'strng'"),
    ("more pairs than keys", "task('mqar', pairs=9, keys=4, values=9)", "keys = 4 is not valid: at least pairs = 9"),
    ("a text too short for its task", "task('copying', string=4).batch(0, 0, 1, 2)", "length of task copying = 2"),
    ("a text without a corpus", "make_source(DataConfig.of('text'), None)", "needs a corpus, and none was given"),
    ("data of nobody", "make_source(DataConfig.of('txt'), None)", "unknown task 'txt'"),
]


@pytest.mark.parametrize(("expression", "line"), [pytest.param(*row, id=name) for name, *row in ROWS])
def test_when_the_library_is_called_wrongly_then_a_suite_error_names_what_is_wrong(expression, line):
    with pytest.raises(SuiteError, match=line):
        eval(expression, NAMES)


@pytest.mark.parametrize(("given", "line"), [
    ({"pattern": "local"}, "pattern = 'local' is not valid: a Pattern"),
    ({"name": "sparse/mine"}, "name = 'sparse/mine' is not valid: a name without"),
    ({"length": None}, "length = None is not valid: for a causal pattern"),
    ({"length": -3}, "length = -3 is not valid"),
    ({"backend": "cuda"}, "unknown backend 'cuda'")])
def test_when_a_pattern_is_registered_wrongly_then_a_suite_error_names_what_is_wrong(given, line):
    from lib.integrations.transformers import register
    with pytest.raises(SuiteError, match=line):
        register(**{"pattern": LOCAL, "length": 9, "name": "sparse:refused"} | given)
