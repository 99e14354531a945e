"""A small finished profile for the report's tests, made up: database, corpus manifest, tables, notebooks, a ledger that
nobody judged, and the page of all that."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup, Tag
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib import paths
from lib.config import DataConfig, PatternSpec, RunConfig, fingerprint
from suite.claims import Claim, Judgement, as_json
from suite.claims.ledger import Call, Published
from suite.claims.measures import Measure
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, build, ledger, pages
from suite.run.database import Database, Facts
from suite.settings import profiles

PROFILE, SMALL = "made_up", profiles.load("small")
ALL_PATTERNS, DONE, WAITING = "08_all_patterns", "01_window_sweep", "03_extrapolation"
FAILED, RUNNING = "02_learned_alpha", "04_power_law_sigma"
ERROR = "Traceback (most recent call last):\n  ...\nValueError: no alpha <moved> & far"
STATUS = {DONE: NotebookStatus("done", seconds=95.0), FAILED: NotebookStatus("failed", error=ERROR, seconds=3.0),
          WAITING: NotebookStatus("waiting"), RUNNING: NotebookStatus("running")}
WITH_ALL = {**STATUS, ALL_PATTERNS: NotebookStatus("done", seconds=2.0)}
PIXEL = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")       # a PNG

# Both notebooks that are done have these series: family, pattern with its parameters, perplexity at the training
# length of 256 tokens and at 1,024.
SERIES = {
    "Dense": ("comparator", PatternSpec.of("dense"), 22.1, 118.0),
    "Power law": ("power-law", PatternSpec.of("power_law", sigma=0.8, budget=64), 21.4, 21.4),
    "Local window, equal edges": ("comparator", PatternSpec.of("local", window=14), 20.9, 20.9),
    "Fibonacci, linear ramp": ("scaled-base", PatternSpec.of("scaled_base", schedule="linear", window=6), 21.3, 20.7),
    "Christoffel": ("christoffel", PatternSpec.of("christoffel", m=15, k=127), 21.6, 21.6),
    "BigBird, equal edges": ("literature", PatternSpec.of("bigbird", window=6), 21.1, 21.1),
    "Fixed stride, equal edges": ("comparator", PatternSpec.of("strided", window=6), 39.6, 55.0)}
SEEDS = {42: 1 / 1.01, 43: 1.0, 44: 1.01}                                  # with the factors of their perplexities
DOMAINS = {"docs": 0.5, "code": 2.0, "stories": 0.8, "math": 1.25}         # the same; their product is 1

# The ledger
MEASURED = {"effect": -0.042, "low": -0.051, "high": -0.033, "p": 0.012, "seeds": 3}
LONG = "suite-a-name-as-long-as-the-longest-are"
EVIDENCE = "Loss over training"            # a heading of the notebook that is done


def judgement(identifier: str, document: str, verdict: str, *, notebook: str = DONE, section: str = EVIDENCE,
              region: Any = None, published: Published | None = None, unit: str = "nats a token", exact: bool = False,
              **own: Any) -> Judgement:
    """A verdict on a claim that holds below 0, say, by default with an effect that was measured with three seeds."""
    claim = Claim(id=identifier, document=document, statement=f"What {identifier} says: a < b & c",
                  comparison=f"comparison of {identifier}", supported_if=region or {"below": 0}, notebook=notebook,
                  section=section, measure=Call(kind=Measure(lambda: None, unit, exact)), published=published)
    measured = MEASURED if verdict in ("supported", "contradicted", "undecided") else {}
    return Judgement(claim, verdict, **{"sentence": f"found of {identifier}", **measured, **own})


def judgements(runs: list[str]) -> list[Judgement]:
    """Every verdict, every document, with and without what a claim may lack."""
    published = Published(value=-0.0273, unit="nats a token", source="table 2, W = 12",
                          recompute=Call(kind=Measure(lambda: None, "")))
    plain = {"low": None, "high": None, "p": None}
    return [
        judgement("F1", "fibonacci", "supported", runs=tuple(runs[:2]), published=published),
        judgement("F2", "fibonacci", "contradicted", runs=tuple(runs[:1]), seeds=1, effect=1.5, low=1.1, high=1.9,
                  unit="%", region={"below": 1}),
        judgement("F3", "fibonacci", "undecided", low=-0.1, high=0.05, p=0.0004),
        judgement("P1", "powerlaw", "not tested", notebook=WAITING, section="Any",
                  sentence="Not tested: its notebook has not run yet."),
        judgement("C1", "christoffel", "failed", sentence="KeyError: 'no such <series>'"),
        judgement("A1", "audit", "supported", effect=133.0, exact=True, seeds=0, unit="distances",
                  region={"equals": 133}, section="A heading that is not there", **plain),
        judgement(LONG, "suite", "supported", runs=("f" * 16,)),
        judgement("S2", "suite", "contradicted", effect=0.3293, seeds=1, unit="times", **plain)]


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
        self.patch.setattr(ledger, "SHIPPED", self.outputs / "none.json")

    def build(self, status: dict = STATUS, claims: list | None = None) -> BeautifulSoup:
        """The page that is written, with these claims in place of what would be judged."""
        if claims is not None:
            self.judging(claims)
        return joined(build(PROFILE, status, str(paths.ROOT.parent / "my texts")).parent)

    def judging(self, found: list[Judgement]) -> list[tuple]:
        """Let `suite.claims` answer with `found`; returns the list of its calls."""
        calls: list[tuple] = []
        self.patch.setattr("data_prep.build.existing", lambda config: "the corpus")
        self.patch.setattr("suite.claims.judge", lambda profile, corpus, notebooks: (
            calls.append((profile.name, corpus, tuple(notebooks))) or found))
        return calls

    @property
    def index(self) -> Path:
        return paths.report(PROFILE) / "index.html"

    @property
    def table(self) -> pd.DataFrame:
        return pd.read_csv(paths.results(PROFILE) / f"{DONE}.csv", dtype={"run": str})

    @property
    def claims(self) -> list:
        return judgements(list(self.table["run"].unique()))

    def fill(self) -> None:
        """Everything that the report reads, and another profile's ledger."""
        small = (paths.ROOT / "profiles" / "small.yaml").read_text("utf-8").partition("\n\n")[2]
        for folder in (paths.PROFILES, paths.NOTEBOOKS, paths.results(PROFILE), paths.executed(PROFILE)):
            folder.mkdir(parents=True)
        (paths.PROFILES / f"{PROFILE}.yaml").write_text(f"description: A made-up profile & its <numbers>\n{small}")
        pages.AUDIT.write_text(AUDIT)
        table = write_runs(write_corpus())
        for name, own in {DONE: table, ALL_PATTERNS: table,
                          WAITING: table.assign(series="from an older execution")}.items():
            own.assign(experiment=name).to_csv(paths.results(PROFILE) / f"{name}.csv", index=False)
        executed = {DONE: new_notebook(cells=done_cells(table)), ALL_PATTERNS: new_notebook(cells=done_cells(table)),
                    WAITING: new_notebook(cells=[new_markdown_cell("# Stale\n\nSTALE RESULT")]),
                    FAILED: new_notebook(cells=failed_cells(), metadata={"suite": {"state": "failed", "error": ERROR}})}
        for name in WITH_ALL:
            nbformat.write(new_notebook(), paths.NOTEBOOKS / f"{name}.ipynb")
        for name, notebook in executed.items():
            nbformat.write(notebook, paths.executed(PROFILE) / f"{name}.ipynb")
        first, *others = as_json(self.claims)
        self.other("overnight", [{**first, "verdict": "undecided"}, *others])

    def other(self, profile: str, content: object) -> None:
        """The ledger of another profile."""
        path = paths.report(profile) / "ledger.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_corpus() -> str:
    """A manifest alone; returns the corpus's fingerprint."""
    counts = {domain: {"train": {"documents": 3000 + i, "tokens": 3_500_000}, "removed": {"copies": 41},
                       "heldout": {"documents": 120 + i, "tokens": 150_000}} for i, domain in enumerate(DOMAINS)}
    counts["docs"]["sources"] = [{"dataset": "a/docs", "config": "", "split": "train", "revision": "copy",
                                  "licence": "MIT"}]
    manifest = {"source": "hub", "config": {"vocab": 2048, "tokenizer": "a/b"}, "pieces": 2048, "domains": counts,
                "files": {}, "versions": {"tokenizers": "0.23.3", "scipy": "1.17.1"}}
    folder = paths.corpora() / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "notes": []}))
    return fingerprint(manifest)


def write_runs(data: str) -> pd.DataFrame:
    """Rows of the database, and the tidy table of their metrics. One run is of a synthetic task."""
    database, rows = Database(PROFILE, SimpleNamespace(fingerprint=data)), []
    facts = Facts({"python": "3.11.7", "torch": "2.13.0"}, "Made-up CPU, 2 cores, Linux x86_64", "cpu", 1)
    trained = SimpleNamespace(seconds=280.0, tokens_per_s=9000.0, peak_memory_mib=512.0, spent={}, metrics=[])

    def insert(*config: Any) -> str:
        run = RunConfig(*config)
        database.record_training(run, facts, trained, 1_836_416, "2026-01-02T03:04:05+0000")
        return database.fingerprint(run)
    for series, (family, pattern, near, far) in SERIES.items():
        dense, parameters = series == "Dense", dict(pattern.parameters)
        setting = " ".join(f"{name}={parameters[name]}" for name in ("sigma", "budget") if name in parameters)
        for seed, factor in SEEDS.items():
            train = dataclasses.replace(SMALL.train, seed=seed)
            own = {"series": series, "role": "baseline" if dense else "model", "pattern": pattern.name,
                   "family": family, "window": parameters.get("window"), "setting": setting, "seed": seed,
                   "run": insert(pattern, SMALL.model, train), "parameters": 1_836_416, "measure": "perplexity",
                   "train_length": 256, "train_tokens": train.tokens, "keys_per_query": 128.5 if dense else 12.4,
                   "pairs": 262_144 if dense else 25_400 + 10 * len(series)}
            for domain, share in DOMAINS.items():
                rows += [{**own, "split": domain, **more} for more in (
                    {"length": 1024, "value": far * factor * share}, {"variant": "rope=yarn", "value": 0.5},
                    {"length": 1024, "variant": "rope=yarn", "value": 3.0}, {"step": 100, "value": 0.5},
                    {"measure": "nll", "value": 0.5}, {"length": 256, "value": near * factor * share})]
    task = insert(PatternSpec.of("dense"), SMALL.model, SMALL.train, DataConfig.of("copying"))
    rows.append({**rows[0], "run": task, "series": "Dense, copying", "measure": "accuracy"})
    database.close()
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def pages_of(folder: Path) -> dict[str, BeautifulSoup]:
    """The pages of a report by name, in the order of the contents."""
    first = BeautifulSoup((folder / "index.html").read_text("utf-8"), "html.parser")
    names = [link["href"].removesuffix(".html") for link in first.select(".contents a")]
    return {name: BeautifulSoup((folder / f"{name}.html").read_text("utf-8"), "html.parser") for name in names}


def joined(folder: Path) -> BeautifulSoup:
    """The report as one tree: a section a page, named like it, in which a link to another page leads to its section."""
    whole = BeautifulSoup("<main></main>", "html.parser")
    for name, page in pages_of(folder).items():
        section = page.main
        section.name, section["id"] = "section", name
        page.select_one(".turn").decompose()
        for link in section.find_all("a", href=re.compile(r"^[^/:]+\.html")):
            there, _, anchor = link["href"].partition(".html#")
            link["href"] = f"#{anchor or there.removesuffix('.html')}"
        whole.main.append(section)
    return whole


def text(tag: Tag) -> str:
    """What a reader sees of a part of the page, on one line."""
    return " ".join(tag.get_text(" ").split())


def shown(data: dict, **metadata: object) -> nbformat.NotebookNode:
    return new_output("display_data", data=data, metadata=metadata)


def code(source: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


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
    words = {"alt": "Four lines that fall & flatten", "caption": "Training loss, with $\\sigma = 0.8$ marked."}
    return [
        new_markdown_cell(INTRODUCTION),
        code('profile: str = "small"  # scale\nseeds: list[int] = [\n    42,\n]  # one run each', tags=("parameters",)),
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
             shown({"image/png": PIXEL, "text/plain": "<Figure>"}, **{"image/png": words}),
             shown({"text/markdown": "CAPTION FOR JUPYTERLAB"}, caption_line=True)),
        code("draw()", shown({"image/png": PIXEL}, caption="A figure with a caption only.")),
        code("draw_again()", shown({"image/png": PIXEL})),
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
