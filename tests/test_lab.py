"""Notebook 00: the picture of a pattern and its controls, trained models, a pattern of one's own; JupyterLab itself."""

import json
import linecache
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import fields, replace

import nbformat
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attention_cases import EXAMPLES
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from small_run import MODEL, RECIPE

from lib import paths, patterns
from lib.config import DataConfig, PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.patterns import build, expand, names
from lib.registry import subclasses
from lib.rope import heads
from suite.lab import controls, models, own, sketch
from suite.settings.profiles import load

PANEL = "jupyterapp.shell.currentWidget"                # of JupyterLab
CODE = f"[...{PANEL}.model.cells].filter(cell => cell.type === 'code')"
OUTPUTS = f"{CODE}.flatMap(cell => cell.outputs.toJSON().map(out => ({{...out, id: cell.id}})))"


class Heard(controls.Screen):
    """A screen that keeps what it shows."""
    def show(self, plain, kind="text/markdown", content=""):
        self.plain, self.content = plain, content


def notebook(name):
    return nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_when_a_pattern_is_drawn_then_masks_shares_and_reach_are_the_oracle_s(pattern):
    T, layer = 37, pattern.layers - 1
    masks = [expand(pattern.plan(n % pattern.layers, T), T, pattern.heads) for n in range(layer + 3)]
    assert all(np.array_equal(sketch.attended(pattern, layer, T, h), own) for h, own in enumerate(masks[layer]))
    i, j = masks[layer].any(axis=0).nonzero()
    sides = [np.bincount(d[d >= 0], minlength=T) for d in (i - j, j - i)]
    assert sketch.shares(pattern, layer, T) == pytest.approx(np.maximum(*sides) / (T - np.arange(T)))
    first, second, third = (mask.any(axis=0).astype(int) for mask in masks[:3])
    assert np.array_equal(sketch.reached(pattern, T, 30, 3), (third @ second @ first > 0)[30])


def test_when_a_pattern_is_chosen_then_it_has_a_control_for_each_parameter_and_what_one_sets_is_drawn(monkeypatch):
    screens = []
    monkeypatch.setattr(sketch, "Screen", lambda: screens.append(Heard()) or screens[-1])
    panel = sketch.explore("local", 64, layers=2, heads=2, window=3)
    panel.refusal = Heard()
    assert "attends 4 keys in layer 0, head 0: 63, 62, 61, 60." in screens[0].plain
    panel.own["window"].value, before = 5, screens[0].content
    assert "attends 6 keys in layer 0" in screens[0].plain and screens[0].content != before
    for name in names():
        panel.chosen["pattern"].value, cls = name, patterns.pattern_class(name)
        wanted = {*(own.name for own in fields(cls)), "layer", "head", "query"} - {"layers", "heads"}
        assert set(panel.own) == wanted - (set() if cls.bidirectional else {"causal"})
        assert screens[0].plain.startswith(f"{name}, T = 64: query 63 attends") and panel.refusal.plain == ""
        assert "attended pairs" in screens[1].plain
    panel.chosen["pattern"].value = "christoffel"
    shown = screens[0].content
    panel.own["k"].value = 10
    assert "m = 63 is not valid" in panel.refusal.plain and screens[0].content == shown


@pytest.mark.parametrize("name, parameters", [("dense", {}), ("scaled_base", {"window": 2, "rungs": 5}),
                                              ("learned", {"window": 2, "rungs": 5}), ("adaptive_span", {"window": 6})])
def test_when_weights_are_read_then_they_give_attention_s_output_and_far_ones_are_summed(
        name, parameters, tiny_corpus, monkeypatch):
    run = RunConfig(PatternSpec.of(name, **parameters), replace(MODEL, vocab=400), RECIPE, DataConfig.of("text"))
    model, seen, T = build_model(run).eval(), [], RECIPE.length
    monkeypatch.setattr(models.Trained, "model", lambda self: model)
    trained, module = models.Trained("tiny", name, run, tiny_corpus), model.blocks[1].attention
    tokens = torch.cat([trained.windows(domain)[0] for domain in trained.domains])
    weights = models.weights(model, tokens, 1)
    module.register_forward_hook(lambda module, given, answer: seen.extend((*given, answer)))
    with torch.no_grad():
        model.hidden(tokens)
        v = heads(F.linear(seen[0], module.qkv), seen[2], 2, 1)[2]
        answer = F.linear((weights @ v).transpose(1, 2).flatten(-2), module.out)
    assert (answer - seen[-1]).abs().max() < 1e-5
    far = weights * torch.tril(torch.ones(T, T), -trained.near - 1)
    shares, _ = models.far_shares(trained)
    assert shares.loc[1].to_numpy() == pytest.approx(far.sum(-1).mean(dim=(0, 2)).numpy(), rel=1e-4)
    assert trained.near == parameters.get("window", models.NEAR) and len(tokens) == 4 * models.WINDOWS


def test_when_nothing_is_trained_then_one_line_says_which_command_trains_some(outputs, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(models, "Screen", lambda: heard)
    assert models.attention() is None and models.losses() is None and "`make notebook NAME=" in heard.plain


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Runs the cell of the notebook's own pattern, changed, as JupyterLab does; what is saved goes to `tmp_path`."""
    monkeypatch.setattr(own, "PACKAGE", tmp_path)
    monkeypatch.setattr(patterns, "__path__", [*patterns.__path__, str(tmp_path)])
    monkeypatch.setenv("SUITE_PATTERNS", "")
    own.drafts.cache_clear()

    def run(*changes):
        text, = (cell.source for cell in notebook("00_patterns").cells if cell.id == "own")
        for old, new in (("window=8", "length=64, window=8"), *changes):
            text = text.replace(old, new)
        name, space = f"<cell {time.monotonic_ns()}>", {"__name__": "__main__", "lab": own}
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        exec(compile(text, name, "exec"), space)
        return space["mine"]
    yield run
    own.drafts.cache_clear()
    sys.modules.pop("lib.patterns.every_third", None)
    for cls in subclasses(patterns.Pattern):
        if vars(cls).get("name") == "every_third":
            del cls.name


FIFTH = ("% 3", "% 5"), ("length, 3", "length, 5")


def test_when_the_notebook_s_pattern_is_brought_again_then_the_newest_counts_and_one_is_saved_once(cell, tmp_path):
    assert cell().right and build("every_third", window=2).pairs(10) == 27 + 7 + 4 + 1
    again = cell(*FIFTH)
    assert again.right and build("every_third", window=0).pairs(6) == 6 + 1
    assert again.save().read_text() == again.text and again.save().parent == tmp_path and "lab." not in again.text
    with pytest.raises(SuiteError, match="every_third"):
        cell()
    assert cell(*FIFTH).right


@pytest.mark.parametrize("old, new, said", [
    ("length, 3)", "length, 4)", "query 3 attends key 0 by attends, not by its keys"),
    ("% 3 == 0", "% 3 == 1", "by its keys, not by attends"), ("return range", "return rang", "NameError")])
def test_when_a_pattern_breaks_its_rule_then_the_pair_is_named_and_nothing_is_saved(cell, old, new, said, monkeypatch):
    heard = Heard()
    monkeypatch.setattr(own, "Screen", lambda: heard)
    mine = cell((old, new), ("window=8", "window=1"))
    assert not mine.right and said in heard.plain
    for ask in (mine.save, mine.compare):
        with pytest.raises(SuiteError, match="keeps its rule"):
            ask()


@contextmanager
def lab_server(folder, tab):
    """`make lab` in a folder of its own, with the runs there too; the tab shows its start page."""
    import browser
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, **{f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "RUNTIME")},
                   "JUPYTER_CONFIG_PATH": str(paths.ROOT / "tools" / "lab"), "SUITE_OUTPUTS": str(folder / "outputs"),
                   "PYTHONPATH": os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--IdentityProvider.token=",
               f"--ServerApp.port={address.rpartition(':')[2]}", "--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        tab.call("Emulation.setDeviceMetricsOverride", width=1280, height=1000, deviceScaleFactor=1, mobile=False)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)        # JupyterLab's current tab has the focus
        page = f"{address}/lab/tree/README.md"
        browser.waited(lambda: "errorText" not in tab.call("Page.navigate", url=page), "JupyterLab did not start")
        tab.events.clear()                                  # it was asked for before it was there
        tab.until("(document.querySelector('.jp-MarkdownViewer')?.innerText ?? '').includes('00_patterns')")
        yield
    finally:
        server.kill()                                       # its kernels notice
        server.wait()


@pytest.mark.slow
def test_when_the_lab_is_opened_then_00_and_03_run_a_slider_changes_the_picture_and_the_console_is_silent(tmp_path):
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    for name, given in {"03_extrapolation": load("smoke").parameters("03_extrapolation").model_dump(mode="json"),
                        "00_patterns": {"length": 256}}.items():
        source = load_notebook_node(str(paths.NOTEBOOKS / f"{name}.ipynb"))
        nbformat.write(parameterize_notebook(source, given), tmp_path / f"{name}.ipynb")
    shutil.copy(paths.NOTEBOOKS / "README.md", tmp_path)
    with browser.browser() as tab, lab_server(tmp_path, tab):
        for name in ("03_extrapolation", "00_patterns"):
            tab.evaluate(f"jupyterapp.commands.execute('docmanager:open', {{path: '{name}.ipynb'}}).then(() => 0)")
            tab.until(f"{PANEL}?.context?.path === '{name}.ipynb'"
                      f" && {PANEL}.sessionContext.session?.kernel?.status === 'idle'")
            tab.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
            deadline, done = time.monotonic() + 240, "cell.executionCount > 0 && cell.executionState !== 'running'"
            while not tab.evaluate(f"{CODE}.every(cell => {done})"):
                assert time.monotonic() < deadline, tab.evaluate(f"{CODE}.map(cell => cell.executionCount)")
                time.sleep(0.5)
            assert tab.evaluate(f"{OUTPUTS}.filter(out => out.output_type === 'error')") == []
        shown = f"{OUTPUTS}.find(out => out.id === 'explore' && out.data['image/png']).data"
        before = tab.evaluate(shown)
        tab.evaluate(f"{PANEL}.content.scrollToItem([...{PANEL}.model.cells].findIndex(cell => cell.id === 'explore'))")
        handle = ("[...document.querySelectorAll('.widget-slider')].find(own => own.querySelector('.widget-label')"
                  "?.textContent === 'window')?.querySelector('.noUi-handle')")
        tab.until(f"Boolean({handle})")
        tab.evaluate(f"{handle}.focus()")
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
        tab.until(f"{shown}['image/png'] !== {json.dumps(before['image/png'])}")
        assert before["text/plain"] != tab.evaluate(shown)["text/plain"]
        levels = [own.get("type") or own.get("entry", {}).get("level") for own in tab.complaints()]
        assert set(levels) <= {"warning"}, tab.complaints()
