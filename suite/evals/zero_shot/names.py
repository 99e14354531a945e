"""The name of a battery task in tables: it tells whose texts were asked, the hub's or the suite's own."""

from __future__ import annotations

from lib.data import Corpus

OFFLINE = {"lambada": "lambada-offline", "blimp": "blimp-offline"}      # made from the suite's own text
OF_HUB = {"cloze": "factual_cloze"}                                     # facts of the world, not of the passage


def called(task: str, corpus: Corpus) -> str:
    """The name of a task that is asked with the texts of the corpus."""
    return (OFFLINE if corpus.evaluation(task) is None else OF_HUB).get(task, task)
