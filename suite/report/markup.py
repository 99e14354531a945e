"""One pass over a notebook's HTML: safe, self-contained, readable with a screen reader, and at home on a larger page."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from bs4 import BeautifulSoup, Tag

_FORBIDDEN = ("script", "iframe", "frame", "object", "embed", "link", "meta", "base", "form", "input", "button", "select",
              "textarea", "video", "audio", "source", "track", "template", "noscript", "dialog")
_RESOURCES = ("src", "srcset", "poster", "background", "data", "href", "xlink:href", "action", "formaction", "ping")
_OUTSIDE_CSS = re.compile(r"url\s*\(|@import|expression\s*\(", re.IGNORECASE)
_NUMBER = re.compile(r"[-+\u2212]?[\d,\u202f]+(?:\.\d+)?(?:e[-+]?\d+)?\s*(?:%|\u00d7|x)?(?:\s*\u00b1\s*[\d.,]+)?|nan|inf",
                     re.IGNORECASE)
_RUN = re.compile(r"[0-9a-f]{16}")
_NO_ALT = ("", "No description has been provided for this image")     # the latter is what nbconvert writes
FIRST = 4            # conclusions of a notebook that are shown at once if it marks none
_HEADINGS = re.compile(r"h[1-6]")


@dataclass(frozen=True)
class Tidied:
    html: str
    question: str                             # HTML of the first paragraph if all of it is bold
    main: tuple[str, ...]                     # conclusions to show first, HTML
    more: tuple[str, ...]                     # the others
    headings: tuple[tuple[str, str, int], ...]    # (identifier, text, level), levels from 3 on


def tidy(fragment: str, prefix: str, runs: Collection[str] = (), notebooks: Collection[str] = ()) -> Tidied:
    """The fragment made fit for a section whose heading is an h2 with the identifier `prefix`.

    Headings start at h3 and skip no level; every image has alternative text, and a figure a link to how it was made
    (`made_of`); every table a caption, scopes and a box to scroll in; nothing is left that runs or loads. Links go to the web,
    to another notebook's section or to a run of `runs`; others become plain text.
    """
    soup = BeautifulSoup(fragment, "html.parser")
    _make_safe(soup)
    headings = _order_headings(soup, prefix)
    _mend_links(soup, prefix, notebooks)
    for number, image in enumerate(soup.find_all("img"), start=1):
        _describe(image, number)
    for figure in soup.find_all("figure"):
        _trace(figure, soup, prefix)
    for table in soup.find_all("table"):
        dress(table, soup, runs)
    return Tidied(str(soup), _question(soup), *_conclusions(soup), headings)


def made_of(prefix: str) -> str:
    """The identifier of the block of a notebook's section that says how it was made."""
    return f"{prefix}-made"


def _question(soup: BeautifulSoup) -> str:
    first = soup.find("p")
    bold = first.find("strong") if first else None
    return bold.decode_contents() if bold and bold.get_text(strip=True) == first.get_text(strip=True) else ""


def _conclusions(soup: BeautifulSoup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those to show first, then the others. First: those that are marked, and verdicts, which begin in bold; a notebook that
    has neither shows the first few that it draws from its runs."""
    found = soup.select(".conclusion")
    main = ([c for c in found if "main" in c["class"] or c.get_text(strip=True).startswith(_bold(c))]
            or [c for c in found if "from-runs" in c["class"]][:FIRST] or found[:FIRST])
    texts = {id(c): c.decode_contents().strip() for c in found}
    return (tuple(texts[id(c)] for c in main),
            tuple(texts[id(c)] for c in found if not any(c is chosen for chosen in main)))


def _bold(conclusion: Tag) -> str:
    """The text in bold that it has; a character that no text begins with if there is none."""
    bold = conclusion.find("strong")
    return bold.get_text(strip=True) if bold else "\0"


def _make_safe(soup: BeautifulSoup) -> None:
    for tag in soup.find_all(_FORBIDDEN):
        tag.decompose()
    for style in soup.find_all("style"):
        if style.has_attr("scoped") or _OUTSIDE_CSS.search(style.get_text()):
            style.decompose()
    for tag in soup.find_all(True):
        for name in list(tag.attrs):
            value = str(tag[name]).strip()
            if name.lower().startswith("on") or (name == "style" and _OUTSIDE_CSS.search(value)):
                del tag[name]
            elif name in _RESOURCES and tag.name not in ("a", "img") and not value.startswith(("#", "data:image/")):
                del tag[name]
    for image in soup.find_all("img"):
        _keep_embedded(image, soup)


def _keep_embedded(image: Tag, soup: BeautifulSoup) -> None:
    """A picture that is not embedded would be a request; its place says which it was."""
    if image.get("src", "").startswith("data:image/"):
        image.attrs.pop("srcset", None)
        return
    note = soup.new_tag("em")
    note.string = f"[picture not embedded: {image.get('alt') or image.get('src') or 'no source'}]"
    image.replace_with(note)


def _order_headings(soup: BeautifulSoup, prefix: str) -> tuple[tuple[str, str, int], ...]:
    previous, used, found = 2, {prefix, made_of(prefix)}, []
    for heading in soup.find_all(_HEADINGS):
        level = min(max(int(heading.name[1]) + 1, 3), previous + 1, 6)
        heading.name, previous = f"h{level}", level
        text = heading.get_text(" ", strip=True)
        identifier = _unused(f"{prefix}-{slug(text)}", used)
        heading["id"] = identifier
        found.append((identifier, text, level))
    return tuple(found)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def _unused(identifier: str, used: set[str]) -> str:
    candidate, number = identifier, 1
    while candidate in used:
        number += 1
        candidate = f"{identifier}-{number}"
    used.add(candidate)
    return candidate


def _mend_links(soup: BeautifulSoup, prefix: str, notebooks: Collection[str]) -> None:
    here = {tag["id"] for tag in soup.find_all(id=True)}
    for link in soup.find_all("a"):
        target = str(link.get("href", ""))
        if target.startswith(("https://", "http://", "mailto:")):
            link["rel"] = "noopener noreferrer"
        elif target.startswith("#") and f"{prefix}-{slug(target)}" in here:
            link["href"] = f"#{prefix}-{slug(target)}"
        elif (name := target.partition("#")[0].rpartition("/")[2].removesuffix(".ipynb")) in notebooks:
            link["href"] = f"#{name}"
        else:
            link.unwrap()


def _heading_before(tag: Tag) -> str:
    heading = tag.find_previous(_HEADINGS)
    return heading.get_text(" ", strip=True) if heading else ""


def _describe(image: Tag, number: int) -> None:
    """Alternative text: the author's, else the caption's, else where the figure stands."""
    if str(image.get("alt", "")).strip() not in _NO_ALT:
        return
    figure = image.find_parent("figure")
    caption = figure.find("figcaption") if figure else None
    place = _heading_before(image)
    unnamed = f"Figure {number}" + (f", under {place!r}" if place else "")
    image["alt"] = caption.get_text(" ", strip=True) if caption else unnamed


def _trace(figure: Tag, soup: BeautifulSoup, prefix: str) -> None:
    """The link from a figure's caption, which it gets if it has none, to the runs and the command behind it."""
    caption = figure.find("figcaption") or figure
    if caption is figure:
        caption = soup.new_tag("figcaption")
        figure.append(caption)
    link = soup.new_tag("a", href=f"#{made_of(prefix)}", attrs={"class": "trace"})
    link.string = "how it was made"
    caption.append(link)


def dress(table: Tag, soup: BeautifulSoup, runs: Collection[str] = ()) -> None:
    """Caption, scopes, numbers to the right, links to runs, and a box of its own to scroll in."""
    for attribute in ("border", "style", "width"):
        table.attrs.pop(attribute, None)
    if table.find("caption") is None:
        caption = soup.new_tag("caption", attrs={"class": "hidden"})
        caption.string = f"Table under {place!r}" if (place := _heading_before(table)) else "Table"
        table.insert(0, caption)
    _join_header_rows(table)
    for header in table.find_all("th"):
        _scope(header)
    for cell in table.find_all("td"):
        _link_run(cell, soup, runs)
    _align(table)
    box = soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0", "role": "region",
                                     "aria-label": table.caption.get_text(" ", strip=True)})
    table.wrap(box)


def _join_header_rows(table: Tag) -> None:
    """pandas gives the name of the index a row of its own below the columns' names; there is room for it in theirs."""
    rows = list(_rows(table, "thead"))
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        return
    texts = [[cell.get_text(strip=True) for cell in row] for row in rows]
    if all(not (above and below) for above, below in zip(*texts, strict=True)):
        for above, below in zip(*rows, strict=True):
            if below.get_text(strip=True):
                above.replace_with(below.extract())
        rows[1][-1].find_parent("tr").decompose()


def _scope(header: Tag) -> None:
    if not header.get_text(strip=True):
        header.name = "td"      # an empty header announces nothing
        return
    spans = "colspan" if header.find_parent("thead") else "rowspan"
    scope = "col" if header.find_parent("thead") else "row"
    header["scope"] = f"{scope}group" if str(header.get(spans, "1")) != "1" else scope


def _link_run(cell: Tag, soup: BeautifulSoup, runs: Collection[str]) -> None:
    text = cell.get_text(strip=True)
    if _RUN.fullmatch(text) and text in runs and cell.find("a") is None:
        link = soup.new_tag("a", href=f"#run-{text}", attrs={"class": "run"})
        link.string = text[:8]
        cell.clear()
        cell.append(link)


def _align(table: Tag) -> None:
    """Cells that are numbers, and the headers above columns of them, stand to the right."""
    columns: dict[int, list[bool]] = {}
    for row in _rows(table, "tbody"):
        for index, cell in enumerate(row):
            number = cell.name == "td" and _NUMBER.fullmatch(cell.get_text(strip=True)) is not None
            columns.setdefault(index, []).append(number)
            if number:
                cell["class"] = [*cell.get("class", []), "num"]
    for row in _rows(table, "thead"):
        for index, cell in enumerate(row):
            if columns.get(index) and sum(columns[index]) * 2 > len(columns[index]):
                cell["class"] = [*cell.get("class", []), "num"]


def _rows(table: Tag, part: str) -> Iterator[list[Tag]]:
    for group in table.find_all(part):
        for row in group.find_all("tr"):
            yield row.find_all(["td", "th"], recursive=False)
