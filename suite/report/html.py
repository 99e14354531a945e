"""Text of notebooks and documents as HTML: Markdown with mathematics, made safe, and readable with a screen reader.

What notebooks and corpora hold is data on the page: `safe` keeps what shows something and drops what runs or loads.
`tidy` then fits a fragment into its section: headings, links, pictures and tables.
"""

import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count

import nh3
import pygments
from bs4 import BeautifulSoup, NavigableString, Tag
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.dollarmath.index import math_inline_dollar
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from suite.settings.privacy import visible

# MathML elements that latex2mathml writes, with the number of children of those that have a fixed one.
_MATHML: dict[str, int | None] = {
    "mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3,
    **dict.fromkeys(("math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mstyle", "msqrt", "mtable", "mtr",
                     "mtd", "mlabeledtr", "mpadded", "mphantom", "menclose", "mmultiscripts", "mprescripts", "none"))}
_MATHML_ATTRIBUTES = {
    "display", "alttext", "mathvariant", "mathsize", "displaystyle", "scriptlevel", "stretchy", "fence", "form",
    "separator", "accent", "movablelimits", "minsize", "maxsize", "width", "height", "depth", "lspace", "rspace",
    "linethickness", "notation", "columnalign", "columnspacing", "columnlines", "rowalign", "rowspacing", "rowlines"}
_VERBATIM = ("code", "pre", "math", "kbd", "samp")           # a dollar in these is no formula
_HEADINGS = re.compile(r"h[1-6]")
_NUMBER = re.compile(
    r"[-+\u2212]?[\d,\u202f]+(?:\.\d+)?(?:e[-+]?\d+)?\s*(?:%|\u00d7|x)?(?:\s*\u00b1\s*[\d.,]+)?|nan|inf", re.IGNORECASE)
_DOLLARS = math_inline_dollar(allow_space=False, allow_digits=False, allow_double=True)


# Markdown and mathematics

def mathml(tex: str, block: bool = False) -> str:
    """MathML of `tex` (without delimiters); its source where it cannot be converted whole."""
    try:
        converted = convert(tex.strip(), display="block" if block else "inline")
        parts = list(ElementTree.fromstring(converted).iter())         # a fraction has its parts, a command is known
        # The converter passes the tags of HTML on: \text{<script>} is no formula.
        complete = all(_MATHML.get(part.tag.rpartition("}")[2], -1) in (None, len(part)) for part in parts)
        complete = complete and not any(re.match(r"\s*\\[A-Za-z]", part.text or "") for part in parts)
    except Exception:                # the converter raises whatever its parser meets, IndexError and KeyError included
        complete = False
    if not complete:
        delimiter = "$$" if block else "$"
        return f'<code class="tex">{delimiter}{html.escape(tex, quote=False)}{delimiter}</code>'
    return converted.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', f' alttext="{html.escape(tex.strip())}"', 1)


def highlighted(code: str, language: str = "python", _: str = "") -> str:
    """HTML of Python code with its colours; nothing of another language."""
    spans = pygments.highlight(code, PythonLexer(), HtmlFormatter(nowrap=True))
    return f'<pre class="highlight">{spans}</pre>' if language == "python" else ""


def _formula(state: StateInline, silent: bool) -> bool:
    """The plugin's rule for `$...$`, but a formula holds no backtick: in "$5, and `$x$` is code" nothing is one."""
    source, end = state.src, state.src.find("$", state.pos + 2)
    # at the start of a text the plugin takes the last character for the one before
    state.src = source + " "
    found = "`" not in source[state.pos:end] and _DOLLARS(state, silent)
    state.src = source
    return found


def _parser(preset: str, *rules: str) -> MarkdownIt:
    parser = MarkdownIt(preset, {"html": True, "highlight": highlighted}).enable(list(rules))
    parser.use(dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True,
               renderer=lambda tex, how: mathml(tex, how["display_mode"]))
    parser.inline.ruler.at("math_inline", _formula)
    parser.use(amsmath_plugin, renderer=lambda tex: mathml(tex, block=True))
    parser.validateLink = lambda address: True               # `safe` decides
    return parser


_FORMULAS = _parser("zero")
markdown = _parser("commonmark", "table", "strikethrough").render          # not safe: it holds the HTML of the text


# Safety

def _allowed(tag: str, name: str, value: str) -> str | None:
    """The attribute's value; None drops it: pictures are embedded, links lead to the web or within the page."""
    dropped = not value.startswith("data:image/") if name == "src" else name == "href" and value.startswith("data:")
    return None if dropped else value


# HTML without scripts, event attributes, frames, forms and resources from elsewhere.
safe = nh3.Cleaner(
    tags=(nh3.ALLOWED_TAGS | set(_MATHML) | {"tfoot"}) - {"area", "map"},
    clean_content_tags={"script", "style", "svg", "iframe", "object", "template", "noscript", "textarea", "select",
                        "title"},
    attributes={"*": {"class", "id", "style"}, "a": {"href"}, "abbr": {"title"}, "img": {"src", "alt", "width"},
                "details": {"open"}, "ol": {"start"}, "div": {"data-claim"}, "td": {"colspan", "rowspan"},
                "th": {"colspan", "rowspan"}, **dict.fromkeys(_MATHML, _MATHML_ATTRIBUTES)},
    attribute_filter=_allowed, url_schemes={"http", "https", "mailto", "data"}, link_rel=None,
    filter_style_properties={"color", "background-color", "text-align", "font-weight", "font-style"}).clean


# A fragment in its section

@dataclass(frozen=True)
class Heading:
    anchor: str
    text: str
    level: int                               # 2 or more


@dataclass(frozen=True)
class Section:
    """A notebook or document on the page. html: safe, empty before it is there. question: HTML of the first paragraph
    if it is bold, which is not in `html`. anchors: its identifiers."""
    name: str
    title: str
    html: str = ""
    question: str = ""
    headings: tuple[Heading, ...] = ()
    anchors: frozenset[str] = frozenset()


def tidy(fragment: str, prefix: str, title: str = "", runs: Collection[str] = (), anchors: Collection[str] = (),
         claims: Mapping[str, str] | None = None) -> Section:
    """The page whose heading is an h1 with the identifier `prefix`, of a fragment that is made safe and fit for it.

    Headings start at h2 and skip no level; identifiers begin with the prefix. Every image has alternative text, a
    figure a link to how it was made (`PREFIX-made`), a table a caption, scopes and a box to scroll in. Links lead to
    the web, to one of the page's `anchors` (`03_extrapolation`, `audit-row-12`) or to one of its `runs`; other links
    become plain text. What a notebook said of a claim gives way to what the ledger says: `claims`, HTML by identifier.
    """
    soup = BeautifulSoup(safe(visible(fragment)), "html.parser")
    for node in soup.find_all(string=re.compile(r"\$")):       # formulas in displayed HTML, such as a table
        if type(node) is NavigableString and not any(parent.name in _VERBATIM for parent in node.parents):
            node.replace_with(BeautifulSoup(safe(_FORMULAS.renderInline(str(node))), "html.parser"))
    headings = _order_headings(soup, prefix)
    here = frozenset(str(tag["id"]) for tag in soup.find_all(id=True))
    for link in soup.find_all("a", href=True):
        _mend_link(link, prefix, here.union(anchors))
    for image in soup.find_all("img", src=False):
        image.replace_with(_new(soup, "em", f"[picture not embedded: {image.get('alt') or 'without a name'}]"))
    for number, image in enumerate(soup.find_all("img"), start=1):
        figure = image.find_parent("figure")
        caption, unnamed = figure and figure.find("figcaption"), _place(f"Figure {number}", image, ", under")
        image["alt"] = image.get("alt", "").strip() or (_text(caption) if caption else unnamed)
    for figure in soup.find_all("figure"):
        if figure.find("figcaption") is None:
            figure.append(soup.new_tag("figcaption"))
        figure.find("figcaption").append(_new(soup, "a", "how it was made", href=f"#{prefix}-made", classes="trace"))
    for table in soup.find_all("table"):
        dress(table, soup, runs)
    first = soup.find("p")
    bold = first.find("strong") if first else None
    question = bold.decode_contents() if bold and _text(bold) == _text(first) else ""
    if question:
        first.extract()
    for box in soup.select("[data-claim]"):
        if box["data-claim"] in (claims or {}):
            box.replace_with(BeautifulSoup(claims[box["data-claim"]], "html.parser"))
    return Section(prefix, title, str(soup), question, headings, here)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def _text(tag: Tag) -> str:
    return tag.get_text(" ", strip=True)


def _place(what: str, tag: Tag, under: str = " under") -> str:
    """A name for what has none: the heading that it stands under."""
    heading = tag.find_previous(_HEADINGS)
    return f"{what}{under} {_text(heading)!r}" if heading and _text(heading) else what


def _new(soup: BeautifulSoup, name: str, text: str, classes: str = "", **attributes: str) -> Tag:
    tag = soup.new_tag(name, attrs={**attributes, **({"class": classes} if classes else {})})
    tag.string = text
    return tag


def _order_headings(soup: BeautifulSoup, prefix: str) -> tuple[Heading, ...]:
    """Levels of headings put in order, and every identifier made the page's own."""
    previous, used, headings = 1, {prefix, f"{prefix}-made"}, []
    for tag in soup.find_all(lambda tag: _HEADINGS.fullmatch(tag.name) or tag.has_attr("id")):
        heading = _HEADINGS.fullmatch(tag.name)
        base = f"{prefix}-{slug(_text(tag) if heading else tag['id'])}"
        tag["id"] = next(name for n in count(1) if (name := base if n == 1 else f"{base}-{n}") not in used)
        used.add(tag["id"])
        if heading:
            previous = min(max(int(tag.name[1]), 2), previous + 1)
            tag.name = f"h{previous}"
            headings.append(Heading(tag["id"], _text(tag), previous))
    return tuple(headings)


def _mend_link(link: Tag, prefix: str, anchors: Collection[str]) -> None:
    target = str(link["href"])
    if target.startswith(("https://", "http://", "mailto:")):
        link["rel"] = "noopener noreferrer"
        return
    path, _, fragment = target.partition("#")
    place = re.sub(r"\.(ipynb|md)$", "", path.rpartition("/")[2]) or prefix
    candidates = [f"{place}-{slug(fragment)}"] * bool(fragment) + [place] * bool(path)
    anchor = next((name for name in candidates if name in anchors), None)
    if anchor is None:
        link.unwrap()
    else:
        link["href"] = f"#{anchor}"


# Tables

def dress(table: Tag, soup: BeautifulSoup, runs: Collection[str] = ()) -> None:
    """Caption, scopes, numbers and the headers above them to the right, links to runs, and a box to scroll in."""
    if table.find("caption") is None:
        table.insert(0, _new(soup, "caption", _place("Table", table), classes="hidden"))
    _join_header_rows(table)
    for header in table.find_all("th"):
        scope, spans = ("col", "colspan") if header.find_parent("thead") else ("row", "rowspan")
        if not _text(header):
            header.name = "td"                   # an empty header announces nothing
        else:
            header["scope"] = f"{scope}group" if str(header.get(spans, "1")) != "1" else scope
    for cell in table.find_all("td"):
        if (text := _text(cell)) in runs and cell.find("a") is None:
            cell.clear()
            cell.append(_new(soup, "a", text[:8], href=f"#run-{text}", classes="run"))
    numbers: dict[int, list[bool]] = {}          # by column
    for row in _rows(table, "tbody"):
        for column, cell in enumerate(row):
            number = cell.name == "td" and _NUMBER.fullmatch(cell.get_text(strip=True)) is not None
            numbers.setdefault(column, []).append(number)
            _to_the_right(cell, number)
    for row in _rows(table, "thead"):
        for column, cell in enumerate(row):
            _to_the_right(cell, 2 * sum(numbers.get(column, ())) > len(numbers.get(column, ())))
    table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0", "role": "region",
                                          "aria-label": _text(table.caption)}))


def _to_the_right(cell: Tag, number: bool) -> None:
    if number:
        cell["class"] = [*cell.get("class", []), "num"]


def _rows(table: Tag, part: str) -> list[list[Tag]]:
    return [row.find_all(["td", "th"], recursive=False) for row in table.select(f"{part} tr")]


def _join_header_rows(table: Tag) -> None:
    """pandas gives the name of the index a row of its own below the columns' names; there is room for it in theirs."""
    rows = _rows(table, "thead")
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        return
    pairs = list(zip(*rows, strict=True))
    if not any(_text(above) and _text(below) for above, below in pairs):
        emptied = rows[1][-1].find_parent("tr")
        for above, below in pairs:
            if _text(below):
                above.replace_with(below.extract())
        emptied.decompose()
