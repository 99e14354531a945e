"""`Pattern.mask_mod` in FlexAttention, against the dense oracle mask; the page on patterns in other models."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
from attention_cases import EXAMPLES
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lib import paths
from lib.patterns import EdgeTable, build

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
PAGE = (paths.ROOT / "docs" / "other_models.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def assert_flex_agrees(pattern, layer, T, heads, attention=flex_attention, dtype=torch.float64, tolerance=1e-12):
    random = torch.Generator().manual_seed(T)
    q, k, v = (torch.randn(1, heads, T, 16, generator=random, dtype=dtype) for _ in range(3))
    block_mask = create_block_mask(pattern.mask_mod(layer, T), None, heads, T, T, device="cpu")
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(pattern.mask(layer, T)))
    assert (attention(q, k, v, block_mask=block_mask) - expected).abs().max() < tolerance


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_when_flex_attention_gets_a_mask_mod_then_it_attends_the_oracle_mask(pattern):
    assert_flex_agrees(pattern, pattern.layers - 1, 37, pattern.heads)              # no whole bytes of a table's bits


@pytest.mark.parametrize("name", ["scaled_base", "streaming_sinks", "random_keys"])
def test_when_heads_share_their_keys_then_one_mask_mod_serves_any_number_of_heads_beyond_one_block(name):
    assert_flex_agrees(build(name, window=3), 0, 131, heads=3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
def test_when_flex_attention_is_compiled_then_a_table_of_each_head_is_looked_up_in_its_kernel():
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    assert_flex_agrees(build("longnet", heads=4, segment=5), 0, 131, 4, compiled, torch.float32, 1e-5)


def test_when_a_table_is_shared_by_all_heads_then_its_mask_mod_keeps_one_bit_a_pair():
    T, pattern = 1000, build("sparse_fixed", heads=16)
    assert isinstance(pattern.plan(0, T), EdgeTable)
    tracemalloc.start()
    mask_mod = pattern.mask_mod(0, T)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mask_mod(0, torch.tensor(5), torch.tensor(T - 1), torch.tensor(T - 1))
    assert T * T / 8 <= kept < 1.1 * T * T / 8


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["function", "flex", "transformers", "learned"])
def test_when_a_reader_runs_a_block_of_the_page_then_it_works(snippet):
    if "from transformers" in snippet and importlib.util.find_spec("transformers") is None:
        pytest.skip("the extra is not installed: pip install -e '.[transformers]'")
    known = {}
    exec(snippet, known)
    if "out" in known:
        pattern, q, k, v = (known[name] for name in ("pattern", "q", "k", "v"))
        mask = torch.tensor(pattern.mask(3, 300))
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert (known["out"] - expected).abs().max() < 1e-5
    if "thetas" in known:
        assert [theta.requires_grad for theta in known["thetas"]] == [True, True]
