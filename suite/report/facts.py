"""What was run, on what and with what: from the experiment database, the profile and the corpus's manifest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lib import paths
from lib.config import RunConfig
from lib.errors import SuiteError
from suite.run.browse import settings
from suite.run.database import Database
from suite.settings import profiles


@dataclass(frozen=True)
class Run:
    """A row of the appendix: what a fingerprint stands for."""
    fingerprint: str
    status: str
    config: RunConfig
    data: str                      # fingerprint of the corpus; empty for a synthetic task
    code: str
    versions: dict[str, str]
    machine: str
    device: str
    threads: int
    started: str
    seconds: float | None
    tokens_per_s: float | None
    notebooks: tuple[str, ...]     # whose tables hold its numbers

    @property
    def settings(self) -> str:
        return settings(self.config.pattern)

    @property
    def recipe(self) -> list[tuple[str, str]]:
        """The whole configuration, group by group."""
        whole = self.config.to_dict()
        groups = [("model", whole["model"]), ("train", whole["train"]),
                  ("data", {"source": self.config.data.source, **dict(self.config.data.parameters)})]
        return [(name, ", ".join(f"{key}={value}" for key, value in group.items())) for name, group in groups]


@dataclass(frozen=True)
class Text:
    """A corpus by its manifest (`data_prep.build`): what a run's models read."""
    fingerprint: str
    manifest: dict[str, Any]

    @property
    def source(self) -> str:
        return {"offline": "The offline corpus", "folder": "Your own text",
                "hub": "Text of the Hugging Face hub"}[self.manifest["source"]]

    @property
    def pieces(self) -> str:
        """What the tokeniser's pieces are."""
        named = self.manifest["config"].get("tokenizer")
        return f"pieces of {named}" if named else "byte-level pieces"

    @property
    def origins(self) -> list[str]:
        """Of text from the hub: data sets of every domain and of the battery's tasks, with configuration, commit, licence."""
        read = [(name, own) for name, domain in self.domains.items() for own in domain.get("sources", ())]
        evaluations = self.manifest.get("evaluations", {})
        asked = [(f"{task}, {own['items']:,} items", own) for task, own in evaluations.items()]

        def line(what: str, own: dict[str, Any]) -> str:
            commit = "a copy on this machine" if own["revision"] == "copy" else f"commit {own['revision'][:12]}"
            where = ", ".join(filter(None, (own["config"], own["split"])))
            return f"{what}: {own['dataset']} ({where}), {commit}, {own['licence']}"
        return [line(*one) for one in read + asked]

    @property
    def domains(self) -> dict[str, dict[str, Any]]:
        """documents, tokens and bytes by domain and split; under `removed`, how many copies were left out; of hub text under
        `sources` where it is from."""
        return self.manifest["domains"]

    def tokens(self, split: str) -> int:
        return sum(domain[split]["tokens"] for domain in self.domains.values())


def description(profile: str) -> str:
    """The profile's line about itself."""
    return str(profiles.parse(profiles.path_of(profile))["description"]).strip()


def runs_of(profile: str, notebooks: dict[str, Sequence[str]]) -> list[Run]:
    """The runs behind the tables, in the order in which they were started. `notebooks`: by fingerprint, who shows it.

    Raises `SuiteError` for a run that a table names and the database does not have.
    """
    if not notebooks:
        return []
    database = Database(profile, create=False)
    try:
        rows = {run: database.facts(run) for run in notebooks}
    finally:
        database.close()
    unknown = sorted(run for run, row in rows.items() if row is None)
    if unknown:
        raise SuiteError(f"{paths.results(profile)} names runs that {paths.database(profile)} does not have: "
                         f"{', '.join(unknown)}; delete the tables and run the report again")
    return sorted((_run(row, notebooks[run]) for run, row in rows.items()), key=lambda r: (r.started, r.fingerprint))


def _run(row: sqlite3.Row, notebooks: Sequence[str]) -> Run:
    return Run(row["run"], row["status"], RunConfig.from_dict(json.loads(row["config"])), row["data"], row["code"],
               json.loads(row["versions"]), row["machine"], row["device"], row["threads"], row["started"], row["seconds"],
               row["tokens_per_s"], tuple(notebooks))


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order; several mean that the runs were made under several conditions, and the page says so."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def machine(run: Run) -> str:
    """Processor and system, and how the run used them."""
    return f"{run.machine}; {run.device}, {run.threads} {'thread' if run.threads == 1 else 'threads'} a run"


def texts(runs: Iterable[Run]) -> list[Text]:
    """The corpora that the runs read. Raises `SuiteError` for one that is no longer there."""
    from lib.data import Corpus
    wanted = distinct(run.data for run in runs if run.data)
    there = {}
    for manifest in sorted(paths.corpora().glob("[!.]*/manifest.json")) if wanted else ():
        corpus = Corpus(manifest.parent)
        there[corpus.fingerprint] = Text(corpus.fingerprint, corpus.manifest)
    for fingerprint in wanted:
        if fingerprint not in there:
            raise SuiteError(f"no corpus in {paths.corpora()} has the fingerprint {fingerprint} that runs were trained on; "
                             "run the report again, it is built anew")
    return [there[fingerprint] for fingerprint in wanted]
