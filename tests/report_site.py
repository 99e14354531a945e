"""A small finished profile for the report's tests: database, corpus manifest, tables, notebooks and their page, made
up."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import sqlite3
from pathlib import Path

import made_up_claims
import nbformat
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from made_up_claims import ALL_PATTERNS, DOMAINS, DONE, WAITING
from matplotlib.figure import Figure
from nbformat.v4 import (new_code_cell, new_markdown_cell, new_notebook,
                         new_output)

from lib import paths
from lib.config import (DataConfig, ModelConfig, PatternSpec, RunConfig,
                        TrainConfig, fingerprint)
from suite.claims import as_json
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, build, pages
from suite.run.database import connect, transaction

PROFILE = "made_up"
FAILED, RUNNING = "02_learned_alpha", "04_power_law_sigma"
ERROR = "Traceback (most recent call last):\n  ...\nValueError: no alpha <moved> & far"
STATUS = {DONE: NotebookStatus("done", seconds=95.0), FAILED: NotebookStatus("failed", error=ERROR, seconds=3.0),
          WAITING: NotebookStatus("waiting"), RUNNING: NotebookStatus("running")}
WITH_ALL = {**STATUS, ALL_PATTERNS: NotebookStatus("done", seconds=2.0)}
MODEL = ModelConfig(vocab=2048, d_model=128, layers=8, heads=4, kv_heads=1, head_dim=32, hidden=342)
TRAIN = TrainConfig(steps=610, batch=16, length=256, warmup=30)


PROFILE_FILE = """
description: A made-up profile & its <numbers>, for the tests of the report
corpus: {vocab: 2048, train_tokens: 3500000, heldout_tokens: 150000}
model: {d_model: 128, layers: 8, heads: 4, kv_heads: 1, head_dim: 32, hidden: 342}
train: {steps: 610, batch: 16, length: 256, lr: 2.0e-3, warmup: 30, precision: fp32, eval_every: 100}
rungs: 12
evaluation_tokens: 150000
"""


@dataclasses.dataclass(frozen=True)
class Model:
    series: str
    role: str
    pattern: str
    family: str
    keys: float                    # a query
    perplexity: float
    parameters: dict = dataclasses.field(default_factory=dict)
    setting: str = ""


SERIES = [
    Model("Dense", "baseline", "dense", "comparator", 128.5, 29.5),
    Model("Local window, equal edges", "control", "local", "comparator", 15.0, 28.1, {"window": 14}),
    Model("Random offsets, equal edges", "control", "random_offsets", "comparator", 14.7, 31.9, {"count": 15}),
    *[Model("Fibonacci, linear ramp", "model", "scaled_base", "scaled-base", w + 8.4, 28.9 - 0.12 * w,
            {"schedule": "linear", "window": w}) for w in (6, 8, 10, 12)],
    *[Model("Fibonacci, fixed", "model", "scaled_base", "scaled-base", w + 8.1, 29.3 - 0.1 * w,
            {"schedule": "fixed", "window": w}) for w in (6, 8, 10, 12)],
    Model("Powers of two, fixed", "control", "scaled_base", "scaled-base", 13.2, 29.7, {"base": "pow2", "window": 6}),
    *[Model("Power law", "model", "power_law", "power-law", 0.93 * b, 33.5 - 2.6 * np.log10(b) + s,
            {"sigma": s, "budget": b}, f"sigma={s:g} budget={b}") for s in (0.5, 0.8, 1.2) for b in (32, 64)],
    Model("Christoffel", "model", "christoffel", "christoffel", 30.1, 31.2, {"m": 15, "k": 127}, "m=15 k=127"),
]


@dataclasses.dataclass(frozen=True)
class Site:
    """The outputs of the made-up profile, and how its page is built from them."""
    outputs: Path
    patch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.patch.setenv("SUITE_OUTPUTS", str(self.outputs))
        self.patch.setattr(paths, "PROFILES", self.outputs / "profiles")
        self.patch.setattr(paths, "NOTEBOOKS", self.outputs / "notebooks")
        self.patch.setattr(pages, "AUDIT", self.outputs / "audit.md")

    def build(self, status: dict = STATUS, claims: list | None = None) -> BeautifulSoup:
        """The page that is written, with these claims in place of what would be judged."""
        if claims is not None:
            made_up_claims.replace_judging(self.patch, claims)
        return BeautifulSoup(build(PROFILE, status, str(paths.ROOT.parent / "my texts")).read_text("utf-8"),
                             "html.parser")

    @property
    def index(self) -> Path:
        return paths.report(PROFILE) / "index.html"

    @property
    def table(self) -> pd.DataFrame:
        return pd.read_csv(paths.results(PROFILE) / f"{DONE}.csv", dtype={"run": str})

    def fill(self) -> None:
        """Everything that the report reads, and another profile's ledger."""
        for folder in ("profiles", "notebooks"):
            (self.outputs / folder).mkdir(parents=True)
        for name in WITH_ALL:
            nbformat.write(new_notebook(), paths.NOTEBOOKS / f"{name}.ipynb")
        (self.outputs / "profiles" / f"{PROFILE}.yaml").write_text(PROFILE_FILE)
        (self.outputs / "audit.md").write_text(AUDIT)
        table = write_runs(write_corpus())
        paths.results(PROFILE).mkdir(parents=True)
        older = table.assign(experiment=WAITING, series="from an older execution")
        patterns = made_up_claims.all_patterns(list(table["run"].unique()))
        for own in (table, older, patterns):
            own.to_csv(paths.results(PROFILE) / f"{own['experiment'].iloc[0]}.csv", index=False)
        write_notebooks(table)
        other = as_json(self.claims)
        self.other("overnight",
                   [{**own, "verdict": "undecided"} if own["identifier"] == "F1" else own for own in other])

    @property
    def claims(self) -> list:
        return made_up_claims.judgements(list(self.table["run"].unique()))

    def other(self, profile: str, content: object) -> None:
        """The ledger of another profile."""
        path = paths.report(profile) / "ledger.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_corpus() -> str:
    """A manifest alone; returns the corpus's fingerprint."""
    folder = paths.corpora() / "0123456789abcdef"
    folder.mkdir(parents=True)
    counts = {domain: {"train": {"documents": 3000 + i, "tokens": 3_500_000, "bytes": 9_000_000},
                       "removed": {"copies": 41},
                       "heldout": {"documents": 120 + i, "tokens": 150_000, "bytes": 400_000}}
              for i, domain in enumerate(DOMAINS)}
    manifest = {"source": "offline", "config": {"vocab": 2048}, "pieces": 2048, "domains": counts, "files": {},
                "versions": {"tokenizers": "0.23.3", "scipy": "1.17.1"}, "notes": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return fingerprint({key: value for key, value in manifest.items() if key != "notes"})


def write_runs(data: str) -> pd.DataFrame:
    """Rows of the database, and the tidy table of their metrics. Two seeds a series; one run is of a synthetic task."""
    paths.database(PROFILE).parent.mkdir(parents=True, exist_ok=True)
    connection = connect(paths.database(PROFILE))
    random, rows = np.random.default_rng(0), []
    with transaction(connection):
        for number, model in enumerate(SERIES):
            for seed in (42, 43):
                train = dataclasses.replace(TRAIN, seed=seed)
                run = RunConfig(PatternSpec.of(model.pattern, **model.parameters), MODEL, train)
                insert(connection, run, data, number)
                rows += measured(model, run, number, model.perplexity * np.exp(random.normal(0, 0.004)))
        task = RunConfig(PatternSpec.of("dense"), MODEL, TRAIN, DataConfig.of("copying"))
        insert(connection, task, "", 99)
        rows.append({**rows[0], "run": fingerprint(task), "series": "Dense, copying", "measure": "accuracy"})
    connection.close()
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def measured(model: Model, run: RunConfig, number: int, perplexity: float) -> list[dict]:
    """Rows of one run: the perplexities that a summary shows, and others that it must leave out."""
    labels = {"experiment": DONE, "series": model.series, "role": model.role, "pattern": model.pattern,
              "family": model.family, "window": model.parameters.get("window"), "setting": model.setting,
              "seed": run.train.seed, "run": fingerprint(run),
              "train_length": 256, "train_tokens": run.train.tokens, "parameters": 1_836_416,
              "pairs": model.keys * 8 * 256,
              "keys_per_query": model.keys, "run_tokens_per_s": 9000.0 + 10 * number, "measure": "perplexity",
              "length": 256}
    rows = []
    for domain, factor in zip(DOMAINS, (1.6, 0.7, 0.5, 1.79), strict=True):
        own = {**labels, "split": domain}
        rows += [{**own, "length": 1024, "value": 2 * perplexity}, {**own, "variant": "rope=yarn", "value": 0.5},
                 {**own, "step": 100, "value": 0.5}, {**own, "measure": "nll", "value": np.log(perplexity * factor)},
                 {**own, "value": perplexity * factor}]
    return rows


def insert(connection: sqlite3.Connection, run: RunConfig, data: str, number: int) -> None:
    versions = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6", "suite": "0.1.0"}
    values = {"run": fingerprint(run), "pattern": run.pattern.name, "config": json.dumps(run.to_dict()), "data": data,
              "code": "c0de" * 4, "status": "done", "versions": json.dumps(versions), "device": "cpu", "threads": 1,
              "machine": "Made-up CPU, 2 cores, Linux x86_64", "started": f"2026-01-02T03:{number % 60:02d}:05+0000",
              "seconds": 280.0, "tokens_per_s": 9000.0, "peak_memory_mib": 512.0, "parameters": 1_836_416}
    marks = ", ".join("?" * len(values))
    connection.execute(f"insert into runs ({', '.join(values)}) values ({marks})", tuple(values.values()))


def write_notebooks(table: pd.DataFrame) -> None:
    failed = {"suite": {"state": "failed", "error": ERROR}}
    stale = [new_markdown_cell("# Stale\n\nSTALE RESULT")]
    paths.executed(PROFILE).mkdir(parents=True)
    for name, notebook in ((DONE, new_notebook(cells=done_cells(table))), (WAITING, new_notebook(cells=stale)),
                           (ALL_PATTERNS, new_notebook(cells=done_cells(table))),
                           (FAILED, new_notebook(cells=failed_cells(), metadata=failed))):
        nbformat.write(notebook, paths.executed(PROFILE) / f"{name}.ipynb")


def shown(data: dict, **metadata: object) -> nbformat.NotebookNode:
    return new_output("display_data", data=data, metadata=metadata)


def code(source: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


def picture(kind: str = "png") -> str:
    """A figure as `display_data` holds it: PNG in base64, SVG as text."""
    fig = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = fig.subplots()
    for number in range(4):
        axes.plot(np.arange(200), 4 + np.exp(-np.arange(200) / (30 + 8 * number)), label=f"series {number}")
    axes.set(xlabel="step", ylabel="nats a token")
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    fig.savefig(buffer, format=kind, dpi=110)
    return buffer.getvalue().decode() if kind == "svg" else base64.b64encode(buffer.getvalue()).decode()


INTRODUCTION = r"""# Window sweep: which `alpha` schedule?

**Is the ramp better?**

## Question

Does the ramp $\alpha_\ell = 0.5 + \ell/(L-1)$ beat fixed rungs at *equal* pairs? A fee of $5 or $6 is no formula, and
`$x_i$` is code. See [the paper](https://arxiv.org/abs/2606.28560) and [extrapolation](03_extrapolation.ipynb) or
[a file](../lib/model.py), [audit row 12](../docs/audit.md#row-12), [a row that is not there](../docs/audit.md#row-99).

$$
K_\ell(i) = \{\, j : 0 \le i - j \le W \,\} \cup \{\, i - \operatorname{round}(\alpha_\ell f) \,\}
$$

A formula that nobody can convert: $\nosuchcommand{x}$.

##### A heading that skips levels

- one
- two

| a | b |
|---|---|
| $x$ | 2 |

![a picture elsewhere](https://example.org/picture.png)

<script>alert(1)</script><p onclick="steal()">clickable</p>
"""
AUDIT = """# Audit of the documents

| row | finding |
|---|---|
| <a id="row-12"></a>12 | Not $75$: [the sweep](../notebooks/01_window_sweep.ipynb) <script>alert(2)</script> |
"""
HOSTILE = ('<script src="https://cdn.example.org/require.js"></script><iframe src="https://example.org"></iframe>'
           '<p>kept HTML with $\\beta$</p>')
STDERR = "10%|#         | 1/10 [00:01<00:09,  1.0it/s]\r100%|##########| 10/10\nUserWarning: mind the gap\n"


def done_cells(table: pd.DataFrame) -> list[nbformat.NotebookNode]:
    runs = table[["run", "series", "seed", "pairs"]].drop_duplicates().head(6)
    frame = {"text/html": f"<div><style scoped>td {{}}</style>{runs.to_html(index=False)}</div>", "text/plain": "text"}
    return [
        new_markdown_cell(INTRODUCTION),
        code('profile: str = "small"  # scale\nseeds: list[int] = [42]  # one run each', tags=("parameters",)),
        code("# Parameters\nseeds = [42, 43]", tags=("injected-parameters",)),
        code('nb = Notebook("01_window_sweep", globals())\nruns = nb.run()  # trains what is missing',
             new_output("stream", name="stderr", text=STDERR),
             new_output("stream", name="stdout", text="first\rsecond, 9000 tokens/s\n\x1b[31mred\x1b[0m & <plain>\n"),
             shown({"text/plain": "3/5 runs, 2 min left"}, progress=True),
             shown({"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "HBox(children=())"}),
             shown({"application/javascript": "alert(1)", "text/plain": "<IPython.core.display.Javascript object>"}),
             shown({"text/html": HOSTILE})),
        new_markdown_cell("## The runs\n\nTheir fingerprints lead to the appendix."),
        code("runs.head(6)", new_output("execute_result", data=frame)),
        new_markdown_cell("## Loss over training"),
        code("nb.show(figure, alt=words, caption=more)",
             shown({"image/png": picture(), "text/plain": "<Figure>"}, **{"image/png": {
                 "alt": "Four lines that fall & flatten", "caption": "Training loss, with $\\sigma = 0.8$ marked."}}),
             shown({"text/markdown": "CAPTION FOR JUPYTERLAB"}, caption_line=True)),
        code("draw()", shown({"image/png": picture()}, caption="A figure with a caption only.")),
        code("draw_again()", shown({"image/svg+xml": picture("svg")})),
        code("", shown({"text/latex": "$\\displaystyle \\sum_{d} q(d) = 1$"})),
        new_markdown_cell("## What it shows"),
        code("nb.claim('F1')", shown({"text/markdown": "STALE VERDICT"}, claim="F1"),
             shown({"text/markdown": "A claim that the ledger lacks."}, claim="gone")),
        code("nb.note(sentence)",
             shown({"text/markdown": "The ramp is **better** by 0.02 nats, with $\\alpha_0 = 0.5$."})),
    ]


def failed_cells() -> list[nbformat.NotebookNode]:
    traceback = [f"\x1b[0;31m{'-' * 75}\x1b[0m", "\x1b[0;31mValueError\x1b[0m: no alpha <moved> & far"]
    note = "<span style='color:red'>An Exception was encountered at 'In [2]'.</span>"
    error = new_output("error", ename="ValueError", evalue="no alpha <moved> & far", traceback=traceback)
    return [
        new_markdown_cell(note, metadata={"tags": ["papermill-error-cell-tag"]}),
        new_markdown_cell("# Learned alpha\n\n## Question\n\nDoes alpha move?"),
        code("before()", new_output("stream", name="stdout", text="PARTIAL OUTPUT\n")),
        code("raise ValueError", error),
        code("never_reached()"),
    ]
