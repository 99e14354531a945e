"""Text on its way into the page: what becomes a formula, what is dropped because it runs or loads, how tables read."""

import base64
import json
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from markupsafe import escape
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib import paths
from suite.report import html, pages

PIXEL = base64.b64encode(b"\x89PNG").decode()


def tidied(fragment: str, **options) -> BeautifulSoup:
    return BeautifulSoup(html.tidy(fragment, "n", **options).html, "html.parser")


# Mathematics

@pytest.mark.parametrize(("text", "expected"), [
    (r"$a\le b$", 1), ("$$\na\n$$", 1), ("text $$a$$ more", 1), (r"\begin{align}a&=b\end{align}", 1),
    ("$x$-axis", 1), ("$T$ is 64", 1),
    ("`$a$`", 0), ("```\n$$a$$\n```", 0), ("    $a$", 0), ("`$$` and `$$`", 0), ("$5 and $6", 0), ("US$5 or A$6", 0),
    (r"\$a\$", 0), ("a $ b $ c", 0), ("`x` costs $5 and `$y$`", 0), ("A fee of $5 or $6, and\n`$x_i$` is code", 0),
    ("$a$ and $b$", 2), ("| $x$ | $y$ |\n|---|---|\n| 1 | $z$ |", 3)])
def test_when_dollars_stand_in_markdown_then_only_formulas_are_converted(text, expected):
    converted = html.markdown(text)
    assert converted.count("<math ") == expected
    assert bool(expected) or "tex" not in converted and "math" not in converted


@pytest.mark.parametrize("tex", [r"\frac{1}", r"\nosuch{x}", r"\frac", r"a < \left( x", r"\begin{cases} 1"])
def test_when_a_formula_cannot_be_converted_then_its_source_is_shown(tex):
    shown = BeautifulSoup(html.mathml(tex), "html.parser")
    assert shown.find("math") is None and shown.find("code", class_="tex").get_text() == f"${tex}$"


def test_when_the_suite_s_own_notebooks_are_typeset_then_every_formula_converts_and_stays():
    sources = [(path.name, "".join(cell["source"])) for path in sorted((paths.ROOT / "notebooks").glob("*.ipynb"))
               for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "markdown"]
    shown = [(name, tidied(html.markdown(text)), html.markdown(text).count("<math ")) for name, text in sources]
    assert sum(count for *_, count in shown) > 5
    for name, tree, count in shown:
        assert not tree.select("code.tex") and len(tree.find_all("math")) == count, (name, tree.select("code.tex"))
        assert all(formula.find_all(True) for formula in tree.find_all("math")), name
        for tag in tree.find_all(["code", "math"]):
            tag.decompose()
        assert not re.search(r"\$\S+\$|\\[a-zA-Z]{2,}", tree.get_text()), name


def test_when_mathml_is_made_safe_then_nothing_of_it_is_lost():
    tex = (r"\left\{\, j : \frac{a_i^2}{\sqrt[3]{b}} \le \sum_{i=0}^n \mathbf{x}\, "
           r"\begin{matrix} 1 & 2\\ 3 & 4\end{matrix} \right\}")
    made, kept = (BeautifulSoup(fragment, "html.parser")
                  for fragment in (html.mathml(tex), html.safe(html.mathml(tex))))
    made, kept = ([(tag.name, tag.attrs, tag.get_text()) for tag in tree.find_all(True)] for tree in (made, kept))
    assert made == kept and len(made) > 10


# Safety

HOSTILE = (Path(__file__).parent / "data" / "hostile.html").read_text("utf-8").splitlines()


def test_when_text_would_run_or_load_something_then_that_is_dropped():
    for hostile in HOSTILE:
        for fragment in (html.markdown(f"before\n\n{hostile}\n\nafter"), f"before {hostile} after"):
            shown = html.tidy(fragment, "n").html
            assert "evil" not in shown and "before" in shown and "after" in shown, hostile
            assert not re.search(r"\son\w+=|javascript|url\(", shown), hostile


@pytest.mark.parametrize("tex", [r"\text{<script>evil()</script>}", r"\mbox{<b>a</b>}", r"\href{javascript:evil()}{x}",
                                 r"\text{<img src='x' onerror='evil()'/>}"])
def test_when_a_formula_holds_tags_or_a_link_then_neither_is_on_the_page(tex):
    for fragment in (html.markdown(f"${tex}$"), f"<table><tr><td>{escape(f'${tex}$')}</td></tr></table>"):
        shown = tidied(fragment)
        assert not shown.find(["script", "b", "img", "a"]) and not shown.select("[href], [onerror]")
        assert tex in (shown.select_one("code.tex") or shown.find("math")).decode(formatter=None)


def test_when_text_only_shows_something_then_it_stays():
    harmless = ('<details open><summary>more</summary><table class="dataframe"><tbody><tr><td colspan="2" '
                'style="color: red; position: fixed">1</td></tr></tbody></table></details>'
                '<pre><span class="ansi-red-fg">r</span></pre>'
                f'<img alt="a" src="data:image/png;base64,{PIXEL}">'
                f'<img alt="b" src="data:image/svg+xml;base64,{PIXEL}">')
    shown = tidied(harmless)
    assert shown.details.has_attr("open") and shown.select_one(".ansi-red-fg") and len(shown.find_all("img")) == 2
    assert shown.td["colspan"] == "2" and shown.td["style"].rstrip(";").replace(" ", "") == "color:red"


def test_when_an_identifier_or_a_link_is_given_then_it_cannot_take_the_page_s_own():
    shown = tidied('<p id="claims">x</p><h2>Claims</h2><a href="#claims">a</a><a href="#main">b</a>'
                   '<a href="../docs/audit.md#row-1">c</a><a href="03_x.ipynb#there">d</a>'
                   '<a href="../lib/model.py">e</a>',
                   anchors={"audit-row-1", "03_x", "audit"})
    assert [tag["id"] for tag in shown.find_all(id=True)] == ["n-claims", "n-claims-2"]
    assert [(link.get_text(), link["href"]) for link in shown.find_all("a")] == [
        ("a", "#n-claims"), ("c", "#audit-row-1"), ("d", "#03_x")]


# Tables

def test_when_pandas_tables_are_dressed_then_headers_numbers_and_known_runs_say_what_they_are():
    frame = pd.DataFrame({"a": [1.5, -2.0], "b": ["00112233aabbccdd", "f" * 16]}, index=["p", "q"])
    soup, named = (tidied(own.to_html(), runs={"00112233aabbccdd"}) for own in (frame, frame.rename_axis("base")))
    assert not [th for th in soup.find_all("th") if not th.get_text(strip=True)]          # they would announce nothing
    assert [th["scope"] for th in soup.find_all("th")] == ["col", "col", "row", "row"]
    assert "num" in soup.find("th", string="a")["class"] and not soup.find("th", string="b").has_attr("class")
    assert [link["href"] for link in soup.find_all("a")] == ["#run-00112233aabbccdd"] and "f" * 16 in soup.get_text()
    assert [cell.get_text() for row in named.thead.find_all("tr") for cell in row.find_all("th")] == ["base", "a", "b"]
    columns = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]))
    assert len(tidied(columns.to_html()).thead.find_all("tr")) == 2


# Cells

def test_when_a_parameters_cell_is_unusual_then_both_cells_are_shown(tmp_path):
    def shown(declared: str, given: str) -> list[str]:
        cells = [new_code_cell(declared, metadata={"tags": ["parameters"]}),
                 new_code_cell(given, metadata={"tags": ["injected-parameters"]})]
        nbformat.write(new_notebook(cells=cells), tmp_path / "a.ipynb")
        tree = BeautifulSoup(pages.render(tmp_path / "a.ipynb", "a").html, "html.parser")
        return [pre.get_text().strip() for pre in tree.find_all("pre")]
    assert shown('a: str = "é # x"  # what', 'a = "y"') == ['a: str = "y"  # what']
    assert len(shown("a: int = 1", "a = 2\nb = 3")) == 2 and len(shown("import os", "a = 2")) == 2


def test_when_a_notebook_has_attached_pictures_drawings_or_formulas_as_output_then_they_are_in_the_page(tmp_path):
    outputs = [new_output("display_data", data) for data in (
        {"image/svg+xml": "<svg/>"}, {"image/jpeg": PIXEL}, {"text/latex": r"$\displaystyle \beta$"})]
    drawing = new_markdown_cell("# T\n\n![a drawing](attachment:b.png)", attachments={"b.png": {"image/png": PIXEL}})
    nbformat.write(new_notebook(cells=[drawing, new_code_cell("x", outputs=outputs)]), tmp_path / "a.ipynb")
    shown = BeautifulSoup(pages.render(tmp_path / "a.ipynb", "a").html, "html.parser")
    svg = base64.b64encode(b"<svg/>").decode()
    assert [image["src"] for image in shown.find_all("img")] == [
        f"data:image/png;base64,{PIXEL}", f"data:image/svg+xml;base64,{svg}", f"data:image/jpeg;base64,{PIXEL}"]
    assert shown.find("math")["alttext"] == r"\displaystyle \beta"
