"""Controls beside a picture: a slider, a list or a field for each value, and the picture drawn anew when one changes.

The controls are widgets, the picture is an ordinary output that is updated: on paper (papermill, HTML), where nobody
moves a widget, the picture of the first values stays.
"""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure
from pydantic import ConfigDict, TypeAdapter

from lib.errors import SuiteError
from suite.run.compare import value_of

DPI = 100
MOST, LEAST_END = 4, 64             # a slider without an end of its own ends at so many times its value, or here
NAMED = {"style": {"description_width": "initial"}}

Controls = dict[str, Any]           # widgets by the names of the values that they set


class Screen:
    """One output of a cell, which the next thing shown replaces."""

    def __init__(self) -> None:
        self.handle, self.there = DisplayHandle(), False

    def show(self, plain: str, kind: str = "text/markdown", content: str = "") -> None:
        """`content` (by default the same text) of a MIME type, and the text that stands for it."""
        write = self.handle.update if self.there else self.handle.display
        write({kind: content or plain, "text/plain": plain}, raw=True, metadata={kind: {"alt": plain}})
        self.there = True

    def figure(self, figure: Figure, alt: str) -> None:
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
        self.show(alt, "image/png", base64.b64encode(content.getvalue()).decode())


def choice(name: str, options: Sequence[Any], index: int = 0) -> Any:
    """A list, or (text, value) pairs, to choose from."""
    return ipywidgets.Dropdown(options=options, index=range(len(options))[index], description=name, **NAMED)


def slider(name: str, value: float, low: float, high: float) -> Any:
    kind = ipywidgets.IntSlider if isinstance(value, int) else ipywidgets.FloatSlider
    return kind(value=value, min=low, max=high, description=name, continuous_update=False, **NAMED)


def control(name: str, value: Any, hint: Any) -> Any:
    """What sets a parameter of this type: the type's schema says which values there are. A field for a literal where it
    may be more than a number, for instance None or a tuple."""
    schema = TypeAdapter(hint, config=ConfigDict(strict=True)).json_schema()
    number = next((kind for kind in schema.get("anyOf", [schema]) if kind.get("type") in ("integer", "number")), {})
    if "enum" in schema:
        return choice(name, schema["enum"], schema["enum"].index(value))
    if isinstance(value, bool):
        return ipywidgets.Checkbox(value=value, description=name, indent=False)
    if isinstance(value, (int, float)):
        end = MOST * value if isinstance(value, float) else max(MOST * value, LEAST_END)
        end = number.get("exclusiveMaximum", end + 1) - 1
        return slider(name, value, number.get("minimum", number.get("exclusiveMinimum", 0)), end)
    return ipywidgets.Text(value=str(value), description=name, continuous_update=False, **NAMED)


class Panel:
    """Controls above what they change. `draw(**values)` shows it; a value that it refuses is named instead.

    chosen: decide which other controls there are; `others(**values)` makes those anew when one of `chosen` changes.
    """

    def __init__(self, draw: Callable[..., None], chosen: Controls, others: Callable[..., Controls]) -> None:
        self.draw, self.chosen, self.others, self.own = draw, chosen, others, {}
        self.box, self.refusal = ipywidgets.VBox(), Screen()
        for widget in chosen.values():
            widget.observe(self.rebuild, "value")
        display(self.box)
        self.rebuild()

    def rebuild(self, _: Any = None) -> None:
        self.own = self.others(**{name: widget.value for name, widget in self.chosen.items()})
        for widget in self.own.values():
            widget.observe(self.update, "value")
        self.box.children = [ipywidgets.HBox(list(row.values()), layout={"flex_flow": "row wrap"})
                             for row in (self.chosen, self.own)]
        self.update()

    def update(self, _: Any = None) -> None:
        refusal = ""
        try:
            self.draw(**{name: value_of(widget.value) if isinstance(widget, ipywidgets.Text) else widget.value
                         for name, widget in (self.chosen | self.own).items()})
        except SuiteError as error:
            refusal = f"**{error}**"
        self.refusal.show(refusal)
