"""The one kind of error that a person can mend: it names the thing, the value it had, and the remedy."""

import difflib
from collections.abc import Iterable


class SuiteError(ValueError):
    """Wrong input. Command lines print its message alone, without a traceback, and exit with 2."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows (IPython asks the exception): the message alone; the cell has failed all the same."""
        return [f"{type(self).__name__}: {self}"]


def require(ok: bool, parameter: str, value: object, allowed: str) -> None:
    """Raise a `SuiteError` that names `parameter`, its `value` and what is `allowed`, unless `ok`."""
    if not ok:
        raise SuiteError(f"{parameter} = {value!r:.200} is not valid: {allowed}")


def one_of(value: str, names: Iterable[str], kind: str) -> str:
    """Return `value` if it is one of `names`; otherwise raise a `SuiteError` that names the nearest."""
    names = sorted(names)
    if value in names:
        return value
    hint = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(str(value), names, n=1))
    raise SuiteError(f"unknown {kind} {value!r:.200}{hint} (known: {', '.join(names)})")
