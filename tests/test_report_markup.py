"""Formulas and tables on their way into the page: what is converted, and what is left as it was written."""

from __future__ import annotations

import json
import re

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook

from lib import paths
from suite.report import markup, mathml
from suite.report.render import render


@pytest.mark.parametrize(("text", "expected"), [
    (r"$a\le b$", 1), (r"\(a\)", 1), (r"\\(a\\)", 1), ("$$\na\n$$", 1), (r"\[a\]", 1), (r"\begin{align}a&=b\end{align}", 1),
    ("`$a$`", 0), ("```\n$$a$$\n```", 0), ("    $a$", 0), ("`$$` and `$$`", 0), ("$5 and $6", 0),
    ("US$5 or A$6", 0), (r"\$a\$", 0),
    ("a $ b $ c", 0), ("`x` costs $5 and `$y$`", 0), ("$a$ and $b$", 2), ("| $x$ | $y$ |\n|---|---|\n| 1 | $z$ |", 3)])
def test_when_dollars_stand_in_markdown_then_only_formulas_are_converted(text, expected):
    converted = mathml.markdown(text)
    assert converted.count("<math ") == expected
    assert bool(expected) or "tex" not in converted


@pytest.mark.parametrize("tex", [r"\frac{1}", r"\nosuch{x}", r"\frac", r"a < \left( x", r"\begin{cases} 1"])
def test_when_a_formula_cannot_be_converted_then_its_source_is_shown(tex):
    shown = BeautifulSoup(mathml.to_mathml(tex), "html.parser")
    assert shown.find("math") is None and shown.find("code", class_="tex").get_text() == f"${tex}$"


def test_when_html_holds_formulas_then_code_is_left_alone():
    assert mathml.in_html("<td>no formula, $5</td>") == "<td>no formula, $5</td>"
    shown = BeautifulSoup(mathml.in_html(r"<td>$\alpha$ &lt; 1</td><pre>$x$</pre><code>$y$</code>"), "html.parser")
    assert len(shown.find_all("math")) == 1 and shown.pre.get_text() == "$x$" and "< 1" in shown.td.get_text()


def test_when_the_suite_s_own_notebooks_are_typeset_then_every_formula_converts():
    sources = [(path.name, "".join(cell["source"])) for path in sorted((paths.ROOT / "notebooks").glob("*.ipynb"))
               for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "markdown"]
    shown = [(name, BeautifulSoup(mathml.markdown(text), "html.parser")) for name, text in sources]
    assert sum(len(html.find_all("math")) for _, html in shown) > 5
    for name, html in shown:
        assert not html.select("code.tex"), (name, html.select("code.tex"))
        for tag in html.find_all(["code", "math"]):
            tag.decompose()
        assert not re.search(r"\$\S+\$|\\[a-zA-Z]{2,}", html.get_text()), name


def test_when_pandas_tables_are_dressed_then_empty_headers_announce_nothing():
    frame = pd.DataFrame({"a": [1.5, -2.0], "b": ["x", "y"]}, index=["p", "q"])
    soup = BeautifulSoup(markup.tidy(frame.to_html(), "n").html, "html.parser")
    assert not [th for th in soup.find_all("th") if not th.get_text(strip=True)]
    assert [th["scope"] for th in soup.find_all("th")] == ["col", "col", "row", "row"]
    assert "num" in soup.find("th", string="a")["class"] and not soup.find("th", string="b").has_attr("class")


def test_when_pandas_names_the_index_then_the_name_stands_in_the_columns_row():
    frame = pd.DataFrame({"a": [1.5], "b": ["x"]}, index=pd.Index(["p"], name="base"))
    soup = BeautifulSoup(markup.tidy(frame.to_html(), "n").html, "html.parser")
    assert [[cell.get_text() for cell in row.find_all("th")] for row in soup.thead.find_all("tr")] == [["base", "a", "b"]]
    columns = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    assert len(BeautifulSoup(markup.tidy(columns.to_html(), "n").html, "html.parser").thead.find_all("tr")) == 2


def test_when_conclusions_are_marked_or_verdicts_then_they_are_shown_first():
    def lifted(*conclusions: str) -> tuple:
        tidied = markup.tidy("".join(conclusions), "n")
        return tidied.main, tidied.more
    plain, marked = '<div class="conclusion"><p>a</p></div>', '<div class="conclusion main"><p>b</p></div>'
    verdict = '<div class="conclusion from-runs"><p><strong>c: met.</strong> d</p></div>'
    assert lifted(plain, marked, plain) == (("<p>b</p>",), ("<p>a</p>", "<p>a</p>"))
    assert lifted(plain, verdict) == (("<p><strong>c: met.</strong> d</p>",), ("<p>a</p>",))
    assert lifted(plain.replace("a<", "a <b>c</b><")) == (("<p>a <b>c</b></p>",), ())
    assert lifted(*[plain] * 6) == (("<p>a</p>",) * 4, ("<p>a</p>",) * 2)


def test_when_a_parameters_cell_is_unusual_then_both_cells_are_shown(tmp_path):
    def shown(declared: str, given: str) -> list[str]:
        cells = [new_code_cell(declared, metadata={"tags": ["parameters"]}),
                 new_code_cell(given, metadata={"tags": ["injected-parameters"]})]
        nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
        html = BeautifulSoup(render(tmp_path / "a.ipynb", "a").html, "html.parser")
        return [pre.get_text().strip() for pre in html.find_all("pre")]
    assert shown('a: str = "é # x"  # what', 'a = "y"') == ['a: str = "y"  # what']
    assert len(shown("a: int = 1", "a = 2\nb = 3")) == 2 and len(shown("import os", "a = 2")) == 2


def test_when_html_would_load_something_then_the_reference_is_dropped():
    hostile = ('<svg><image href="https://example.org/a.png"/><use xlink:href="#b"/></svg>'
               '<img src="https://example.org/b.png" alt="b"><a href="javascript:run()">link</a>'
               '<p style="background: url(https://example.org/c.png)" background="d.png">text</p>'
               '<style>@import "https://example.org/e.css";</style>'
               '<img src="data:image/png;base64,AA==" srcset="f.png 2x">')
    shown = markup.tidy(hostile, "n").html
    assert "example.org" not in shown and "d.png" not in shown and "f.png" not in shown and "javascript" not in shown
    assert "#b" in shown and "text" in shown and "link" in shown and "data:image/png" in shown and "not embedded: b" in shown


def test_when_a_fingerprint_is_not_in_the_appendix_then_it_is_no_link():
    table = "<table><tbody><tr><td>00112233aabbccdd</td><td>ffffffffffffffff</td></tr></tbody></table>"
    soup = BeautifulSoup(markup.tidy(table, "n", runs={"00112233aabbccdd"}).html, "html.parser")
    assert [link["href"] for link in soup.find_all("a")] == ["#run-00112233aabbccdd"]
    assert "ffffffffffffffff" in soup.get_text()
