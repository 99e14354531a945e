"""TeX to MathML when the page is built, so that no script typesets it later. What cannot be converted is shown as source."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import ClassVar

from bs4 import BeautifulSoup, NavigableString
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import (IPythonRenderer,
                                                MarkdownWithMath,
                                                MathBlockParser,
                                                MathInlineParser)

# A dollar opens a formula before a non-space and closes it after one, never before a digit: "$5 and $6" stays money.
_INLINE = r"(?<![$\\])\$(?![\s$])(?P<{name}>(?:\\.|[^$\\`])*?(?:\\.|[^$\\`\s]))\$(?![\d$])"
_BLOCK = r"(?<!\\)\$\$(?P<{name}>(?:\\.|[^$\\])+?)\$\$"
_ROUND = r"\\{{1,2}}\((?P<{name}>.+?)\\{{1,2}}\)"
_SQUARE = r"\\{{1,2}}\[(?P<{name}>.+?)\\{{1,2}}\]"
_ENVIRONMENT = r"(?P<{name}>\\begin\{{(?P<env>[a-z]+\*?)\}}.*?\\end\{{(?P=env)\}})"
_TEXT_RULES = [(re.compile(rule.format(name="tex"), re.DOTALL), block) for rule, block in
               ((_BLOCK, True), (_SQUARE, True), (_ENVIRONMENT, True), (_INLINE, False), (_ROUND, False))]
_UNTOUCHED = ("code", "pre", "script", "style", "math", "textarea", "kbd", "samp")
_CHILDREN = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3}
_NAMESPACE = "http://www.w3.org/1998/Math/MathML"


def to_mathml(tex: str, block: bool = False) -> str:
    """MathML of `tex` (without delimiters); where the converter fails or leaves a command it does not know, the source."""
    tex = tex.strip()
    try:
        converted = convert(tex, display="block" if block else "inline")
    except Exception:  # the converter raises whatever its parser meets, IndexError and KeyError included
        return source(tex, block)
    if not _complete(converted):
        return source(tex, block)
    converted = converted.replace(f' xmlns="{_NAMESPACE}"', f' alttext="{html.escape(tex, quote=True)}"', 1)
    return f'<span class="formula">{converted}</span>' if block else converted


def _complete(converted: str) -> bool:
    """Whether nothing is missing: every fraction and script has its parts, and no unknown command is left."""
    for element in ElementTree.fromstring(converted).iter():
        name = element.tag.rpartition("}")[2]
        if len(element) != _CHILDREN.get(name, len(element)) or re.match(r"\s*\\[A-Za-z]", element.text or ""):
            return False
    return True


def source(tex: str, block: bool) -> str:
    """The formula as it was written."""
    delimiter = "$$" if block else "$"
    shown = f'<code class="tex">{delimiter}{html.escape(tex, quote=False)}{delimiter}</code>'
    return f'<span class="formula">{shown}</span>' if block else shown


class _Blocks(MathBlockParser):
    """Display formulas that start a line. (Upstream matches them anywhere, inside a code span as well.)"""
    SPECIFICATION: ClassVar[dict] = {
        **MathBlockParser.SPECIFICATION,
        "multiline_math": r"^ {0,3}(?s:\$\$(?:\\.|[^$\\])+?\$\$|\\{1,2}\[.+?\\{1,2}\]"
                          r"|\\begin\{(?P<math_env_name>[a-z]+\*?)\}.*?\\end\{(?P=math_env_name)\})",
    }


class _Inlines(MathInlineParser):
    """Inline formulas, by the rule for dollars above."""
    SPECIFICATION: ClassVar[dict] = {
        **MathInlineParser.SPECIFICATION,
        "block_math_tex": f"(?s:{_BLOCK.format(name='math_block_tex')})",
        "block_math_latex": f"(?s:{_SQUARE.format(name='math_block_latex')})",
        "inline_math_tex": f"(?s:{_INLINE.format(name='math_inline_tex')})",
        "inline_math_latex": f"(?s:{_ROUND.format(name='math_inline_latex')})",
    }


class _Renderer(IPythonRenderer):
    def block_math(self, body: str) -> str:
        return to_mathml(body, block=True)

    def inline_math(self, body: str) -> str:
        return to_mathml(body)

    def latex_environment(self, name: str, body: str) -> str:
        return to_mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", block=True)


def markdown(text: str, attachments: dict | None = None) -> str:
    """HTML of Markdown, formulas as MathML, code spans and blocks untouched."""
    renderer = _Renderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
    return MarkdownWithMath(renderer=renderer, block=_Blocks(), inline=_Inlines(hard_wrap=False)).render(text)


def replace_in_text(text: str, quote: Callable[[str], str] = html.escape) -> str:
    """HTML of plain text with its formulas converted; all the rest passes through `quote`."""
    best = None
    for rule, block in _TEXT_RULES:
        found = rule.search(text)
        if found and (best is None or found.start() < best[0].start()):
            best = (found, block)
    if best is None:
        return quote(text)
    found, block = best
    return quote(text[:found.start()]) + to_mathml(found["tex"], block) + replace_in_text(text[found.end():], quote)


def in_html(fragment: str) -> str:
    """Formulas in the text of an HTML fragment (a table of a notebook, say), not those inside code."""
    if "$" not in fragment and "\\" not in fragment:
        return fragment
    soup = BeautifulSoup(fragment, "html.parser")
    for node in [n for n in soup.find_all(string=True) if type(n) is NavigableString]:
        if any(parent.name in _UNTOUCHED for parent in node.parents):
            continue
        replaced = replace_in_text(str(node))
        if "<" in replaced:
            node.replace_with(BeautifulSoup(replaced, "html.parser"))
    return str(soup)
