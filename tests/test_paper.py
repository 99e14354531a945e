"""`make figures`: what the notebooks show becomes files for a paper, named by notebook and heading."""

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib import pyplot as plt
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.errors import SuiteError
from suite import notebook, paper

FRAME = pd.DataFrame({"model": ["a_b", "50 %"], "loss": [1.5, 2.0]})


def test_when_notebooks_show_figures_and_tables_then_each_is_a_file_under_its_heading(tmp_path, monkeypatch):
    work, into = tmp_path / "work", tmp_path / "figures"
    work.mkdir()
    monkeypatch.setenv(notebook.FIGURES, str(work))
    monkeypatch.setattr(notebook, "display", lambda *data, **how: None)
    shows = object.__new__(notebook.Notebook)
    shows.shown = 0
    for _ in range(2):
        figure, axes = plt.subplots()
        axes.plot([1, 2])
        shows.show(figure, "a line")
    picture = new_output("display_data", {"image/png": "", "text/plain": "a line"})
    table = new_output("execute_result", {"text/html": FRAME.to_html(index=False)})
    cells = [new_markdown_cell("# 1. Sweep\n\n## Against a window, W = 8"), new_code_cell("", outputs=[picture, table]),
             new_markdown_cell("no heading"), new_code_cell("", outputs=[picture])]
    assert paper.keep(new_notebook(cells=cells), work, into, "01_sweep") == 6
    stem = "01_sweep-against-a-window-w-8"
    assert sorted(path.name for path in into.iterdir()) == sorted([
        f"{stem}.pdf", f"{stem}.svg", f"{stem}-2.csv", f"{stem}-2.tex", f"{stem}-3.pdf", f"{stem}-3.svg"])
    assert (into / f"{stem}.pdf").read_bytes().startswith(b"%PDF") and "<svg" in (into / f"{stem}-3.svg").read_text()
    assert pd.read_csv(into / f"{stem}-2.csv").equals(FRAME)
    latex = (into / f"{stem}-2.tex").read_text()
    assert r"\toprule" in latex and r"a\_b" in latex and r"50 \%" in latex


def test_when_headers_span_columns_or_rows_then_every_cell_below_has_their_words():
    columns = pd.MultiIndex.from_tuples([("loss", "near"), ("loss", "far")])
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=columns,
                         index=pd.MultiIndex.from_tuples([("dense", 42), ("dense", 43)], names=["model", "seed"]))
    found = paper.frame_of(BeautifulSoup(frame.to_html(), "html.parser"))
    assert list(found.columns) == ["model", "seed", "loss near", "loss far"]
    assert found.to_numpy().tolist() == [["dense", "42", "1", "2"], ["dense", "43", "3", "4"]]


def test_when_a_notebook_is_not_done_then_the_error_names_it_and_the_command(outputs):
    with pytest.raises(SuiteError, match="01_window_sweep is not done at profile smoke: make report PROFILE=smoke"):
        paper.export("smoke", "", print)
