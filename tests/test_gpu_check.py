"""make gpu-check: it needs little, says when there is no GPU, runs whole in the interpreter, and sees what is wrong."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
import torch

from lib import paths
from lib.attention import gpu, reference
from suite.bench.counting import PASSES
from suite.bench.gpu import __main__, verify
from suite.bench.rows import FIELDS

OTHERS = ("tokenizers datasets matplotlib seaborn scipy psutil filelock safetensors yaml tqdm jinja2 bs4 nbformat "
          "papermill IPython transformers numba llvmlite pandas").split()
interpreted = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton exists for Linux only")


def python(*arguments, **variables):
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "SUITE_OUTPUTS")}
    return subprocess.run([sys.executable, *arguments], cwd=paths.ROOT, capture_output=True, text=True,
                          env={**inherited, "OMP_NUM_THREADS": "1", **variables})


def test_when_only_torch_triton_and_numpy_are_there_then_it_can_be_imported():
    found = python("-c", f"import sys; sys.modules.update(dict.fromkeys({OTHERS})); import suite.bench.gpu.__main__")
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("option", [[], ["--tiny"]])
def test_when_there_is_no_gpu_then_one_line_says_so_and_what_to_do(option, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert __main__.main(["--out", str(tmp_path / "out.json"), *option]) == 2 and not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("gpu-check: ") and "TRITON_INTERPRET=1" in line


@pytest.mark.slow
@interpreted
def test_when_it_runs_in_the_interpreter_then_every_part_leaves_its_rows(tmp_path):
    out = tmp_path / "deep" / "gpu-check.json"
    found = python("-m", "suite.bench.gpu", "--out", str(out), TRITON_INTERPRET="1")
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads(out.read_text())
    assert {name: part["status"] for name, part in report["parts"].items()} == dict.fromkeys(__main__.PARTS, "ok")
    assert {"device", "torch", "triton"} <= set(report["machine"]) and report["fields"] == FIELDS
    rows = report["rows"]
    assert all(set(row) <= set(FIELDS) for row in rows)
    errors = [row for row in rows if row["measure"] == "error"]
    assert all(row["ok"] and row["ratio"] <= row["limit"] for row in errors)
    assert {row["pass"] for row in errors} == {"out", "dq", "dk", "dv", "dlearned"}
    timed = {(row["measure"], row["backend"], row["against"], row["pass"]): row for row in rows}
    for pair in (("time", "gpu", "dense"), ("time", "gpu", "masked"), ("learned_over_fixed", "gpu", "gpu")):
        assert all(timed[*pair, pass_]["ms"] > 0 for pass_ in PASSES)
    assert timed["time", "gpu", "flex", "forward"]["ratio"] > 0
    assert "CPU" in timed["time", "flex", "dense", "forward+backward"]["note"]
    assert [row["pattern"] for row in rows if row["tokens_per_s"]] == ["fixed", "learned", "dense"]
    assert "0 wrong" in found.stdout and "tokens/s" in found.stdout


@pytest.mark.slow
@interpreted
def test_when_a_part_hangs_or_fails_then_it_is_ended_and_says_how(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    begin = time.monotonic()
    rows, end = __main__.watched("time", True, seconds=0.2)
    assert end["status"] == "out of time" and rows == [] and time.monotonic() - begin < 10
    assert "out of time" in __main__.table("time", rows, end)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows, end = __main__.watched("verify", False, seconds=60)
    assert end["status"] == "failed" and "torch sees no GPU" in end["log"]


def refuse(out):
    raise RuntimeError("an illegal memory access\nwas encountered")


@pytest.mark.parametrize(("change", "right"), [(lambda out: out, True), (lambda out: out * 1.1, False),
                                               (lambda out: out * float("nan"), False), (refuse, False)])
def test_when_numbers_are_wrong_then_the_check_says_so(change, right, monkeypatch):
    monkeypatch.setattr(gpu, "attend", lambda call: change(reference.attend(call)))
    rows = [row.plain() for row in verify.verify(tiny=True)]
    assert len(rows) >= 6 and all(row["ok"] == right for row in rows)
    json.dumps(rows, allow_nan=False)
    assert change is not refuse or {row["note"] for row in rows} == {"RuntimeError: an illegal memory access"}
    assert ("WRONG" in __main__.table("verify", rows, {"status": "ok", "seconds": 1.0})) != right


@pytest.mark.parametrize(("ok", "status", "code"), [(True, "ok", 0), (False, "ok", 1), (True, "out of time", 1)])
def test_when_verification_fails_then_the_exit_status_is_one(ok, status, code, monkeypatch, tmp_path):
    row = {"measure": "error", "pattern": "p", "dtype": "float32", "pass": "out", "ratio": 0.5, "limit": 0.1, "ok": ok,
           "note": ""}
    monkeypatch.setattr(gpu, "missing", str)
    monkeypatch.setattr(__main__, "machine", dict)
    monkeypatch.setattr(__main__, "LIMITS", {"verify": 1})
    monkeypatch.setattr(__main__, "watched", lambda *given: ([row], {"status": status, "seconds": 1.0}))
    assert __main__.main(["--out", str(tmp_path / "out.json")]) == code
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == [row]


def test_when_it_is_asked_for_then_it_takes_less_than_eight_minutes_and_make_runs_it():
    assert sum(__main__.LIMITS.values()) <= 460 and set(__main__.LIMITS) == set(__main__.PARTS)
    makefile = (paths.ROOT / "Makefile").read_text("utf-8")
    assert "$(PY) -m suite.bench.gpu $(ARGS)" in makefile.partition("\ngpu-check:")[2].partition("\n\n")[0]
