"""What was run, on what and with what: from the tables, the experiment database and the corpora's manifests."""

import json
import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from data_prep.build import whole
from lib import paths
from lib.config import RunConfig
from lib.data import Corpus
from lib.errors import SuiteError
from suite.report import summary
from suite.run.browse import settings
from suite.run.database import Database
from suite.run.evidence import shipped
from suite.settings import profiles


@dataclass(frozen=True)
class Facts:
    """All that the page says of a profile's runs, corpora and tables."""
    profile: str
    corpus: str                    # the folder that `CORPUS` names, or nothing
    table: pd.DataFrame            # see `summary.read_tables`
    runs: list[dict[str, Any]]     # behind the table, in the order in which they were started
    texts: list[Corpus]            # that the runs read
    elsewhere: list[str]           # fingerprints of texts that shipped runs read and that are not on this machine

    @classmethod
    def read(cls, profile: str, corpus: str, finished: Sequence[str]) -> "Facts":
        """From the tables of finished notebooks; a `SuiteError` for a run or a corpus that is no longer there."""
        table = summary.read_tables(paths.results(profile), finished)
        runs = read_runs(profile, table.loc[table["run"] != "", ["run", "experiment"]].drop_duplicates())
        there = {text.fingerprint: text for text in whole_corpora()}
        wanted = dict.fromkeys(run["data"] for run in runs if run["data"])
        gone = [fingerprint for fingerprint in wanted if fingerprint not in there]
        if gone and not shipped(profile, corpus):
            raise SuiteError(f"no corpus in {paths.corpora()} has the fingerprint {gone[0]} that runs were trained on; "
                             "run the report again, it is built anew")
        return cls(profile, corpus, table, runs, [there[text] for text in wanted if text in there], gone)

    @property
    def description(self) -> str:
        return str(profiles.sections_of(self.profile)["description"]).strip()

    @cached_property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(run["run"] for run in self.runs)

    @property
    def versions(self) -> list[dict[str, str]]:
        return [dict(versions) for versions in dict.fromkeys(tuple(run["versions"].items()) for run in self.runs)]

    def command(self, target: str, **more: str) -> str:
        """The command that makes this again, in the repository's folder; `more` are make's variables. FOLDER stands for
        a corpus outside the repository: where that lies is nobody's business."""
        folder = os.path.relpath(self.corpus, paths.ROOT) if self.corpus else ""
        folder = "FOLDER" if folder.startswith(os.pardir) else folder
        variables = {**more, "PROFILE": self.profile, "CORPUS": folder}
        return " ".join(["make", target, *(f"{key}={shlex.quote(value)}" for key, value in variables.items() if value)])

    def series_of(self, notebook: str) -> list[tuple[str, list[tuple[int, str]]]]:
        """The series of a notebook's table, as it orders them: name, and seed and fingerprint of each run."""
        rows = self.table[(self.table["experiment"] == notebook) & (self.table["run"] != "")]
        series: dict[str, dict[tuple[int, str], None]] = {}
        for _, row in rows.drop_duplicates(["series", "window", "setting", "run"]).iterrows():
            name = ", ".join(filter(None, (row["series"], summary.settings(row))))
            series.setdefault(name, {})[int(row["seed"]), str(row["run"])] = None
        return [(name, list(runs)) for name, runs in series.items()]


def whole_corpora() -> Iterator[Corpus]:
    """The corpora on this machine; those that are damaged are passed over, for most belong to other profiles."""
    for manifest in sorted(paths.corpora().glob("[!.]*/manifest.json")):
        with suppress(SuiteError):
            yield whole(manifest.parent)


def origins(manifest: dict[str, Any]) -> list[str]:
    """Of hub text: data sets of every domain and of the battery's tasks, with configuration, commit, licence."""
    sources = [(name, source) for name, domain in manifest["domains"].items() for source in domain.get("sources", ())]
    sources += [(f"{task}, {source['items']:,} items", source)
                for task, source in manifest.get("evaluations", {}).items()]
    return [f"{what}: {source['dataset']} ({', '.join(filter(None, (source['config'], source['split'])))}), "
            + ("a copy on this machine" if source["revision"] == "copy" else f"commit {source['revision'][:12]}")
            + f", {source['licence']}" for what, source in sources]


def read_runs(profile: str, shown: pd.DataFrame) -> list[dict[str, Any]]:
    """The runs that tables name, in the order of their start. shown: columns `run` and `experiment`."""
    if shown.empty:
        return []
    notebooks = shown.groupby("run", sort=False)["experiment"].agg(tuple)
    with closing(Database(profile, create=False)) as database:
        rows = {run: database.facts(run) for run in notebooks.index}
    if unknown := sorted(run for run, row in rows.items() if row is None):
        raise SuiteError(f"{paths.results(profile)} names runs that {paths.database(profile)} does not have: "
                         f"{', '.join(unknown)}; delete the tables and run the report again")
    return sorted((_described(row, notebooks[run]) for run, row in rows.items()),
                  key=lambda run: (run["started"], run["run"]))


def _described(row: sqlite3.Row, notebooks: Sequence[str]) -> dict[str, Any]:
    """A row of the database as the appendix shows it, with the `notebooks` whose tables hold the run's numbers."""
    run = RunConfig.from_dict(json.loads(row["config"]))
    threads = f"{row['threads']} thread{'s' * (row['threads'] != 1)}"
    groups = {**run.to_dict(), "data": {"source": run.data.source, **dict(run.data.parameters)}}
    recipe = [(name, ", ".join(f"{key}={value}" for key, value in groups[name].items()))
              for name in ("model", "train", "data")]
    return {**row, "config": run, "versions": json.loads(row["versions"]), "notebooks": notebooks, "recipe": recipe,
            "settings": settings(run.pattern), "threads": threads,
            "place": f"{row['machine']}; {row['device']}, {threads} a run"}
