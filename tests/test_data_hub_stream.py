"""The library's own way to the hub, against a small hub on this machine whose connections break off."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from hub_fakes import CONFIG, make_hub, start
from hub_server import COMMIT, Hub

from data_prep import build
from lib.data import SPLITS, Corpus


def test_when_connections_break_and_the_build_is_killed_then_the_corpus_is_that_of_a_copy_on_the_disk(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE_HUB", str(make_hub(tmp_path / "copy")))
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path / "outputs"))
    copied = build.corpus(CONFIG)
    server = Hub(make_hub(tmp_path / "served"), breaks=9)
    to_hub = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        first = start(tmp_path / "streamed", **to_hub)
        for line in first.stdout:
            if line.startswith("math: "):
                first.send_signal(signal.SIGKILL)
                break
        first.communicate(timeout=60)
        again = start(tmp_path / "streamed", **to_hub)
        said, _ = again.communicate(timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert again.returncode == 0 and "going on after " in said and server.broken >= 3
    (folder,) = (path for path in (tmp_path / "streamed/data").iterdir() if path.is_dir())
    streamed = Corpus(folder)
    for domain in (*CONFIG.domains,):
        for split in SPLITS:
            assert np.array_equal(streamed.tokens(split, domain), copied.tokens(split, domain)), (domain, split)
            assert streamed.names(split, domain) == copied.names(split, domain)
        assert {source["revision"] for source in streamed.manifest["domains"][domain]["sources"]} == {COMMIT}
    for task in ("lambada", "blimp", "cloze"):
        assert streamed.manifest["evaluations"][task] == {**copied.manifest["evaluations"][task], "revision": COMMIT}
    same = [name for name in copied.manifest["files"] if not name.startswith("evaluations/") or name.endswith(".jsonl")]
    assert all(streamed.manifest["files"][name] == copied.manifest["files"][name] for name in same)
