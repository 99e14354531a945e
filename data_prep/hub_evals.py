"""The evaluation sets of the hub, put beside the token files: what the battery asks of models trained on them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from data_prep.hub import EVALUATIONS, HubSet, remedy, subsets
from data_prep.hub_reader import Reader, Say, patiently
from lib.errors import SuiteError
from lib.files import write_atomically

FOLDER = "evaluations"      # in the corpus: a folder a task with .jsonl files of the table's columns, one a subset


def fetch(work: Path, say: Say) -> dict[str, Any]:
    """Every set of the table, into `work`; what is there already is left. What the manifest says of them, by task."""
    facts = {}
    for task, own in EVALUATIONS.items():
        about = work / FOLDER / f"{task}.json"          # written last
        if not about.is_file():
            say(f"fetching {task} ({own.path})")
            write_atomically(about, json.dumps(fetch_one(task, own, work / FOLDER / task, say)).encode())
        facts[task] = json.loads(about.read_text("utf-8"))
    return facts


def fetch_one(task: str, own: HubSet, folder: Path, say: Say) -> dict[str, Any]:
    names = [own.config] if own.config else patiently(own.path, lambda: subsets(own), remedy(own), say)
    items, revision = 0, ""
    for name in names:
        reader = Reader(task, (dataclasses.replace(own, config=name),), say)
        rows = list(read(reader))
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(folder / f"{task if own.config else name}.jsonl", content.encode())
        items, revision = items + len(rows), reader.sources[0].revision
    return {"dataset": own.path, "config": own.config, "split": own.split, "revision": revision, "licence": own.licence,
            "subsets": len(names), "items": items}


def read(reader: Reader):
    """The rows as mappings of the set's columns; a SuiteError names one that lacks a text."""
    own = reader.sources[0].set
    for file in range(len(reader.files)):
        for first, columns, _ in reader.columns(file):
            for at, values in enumerate(zip(*columns, strict=True)):
                if None in values:
                    raise SuiteError(f"{reader.where(file)}, row {first + at} has no text in "
                                     f"{own.columns[values.index(None)]!r}; fetch it again, or {remedy(own)}")
                yield dict(zip(own.columns, values, strict=True))
