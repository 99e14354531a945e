"""StreamingLLM: a window, and the first tokens as attention sinks. Source: Xiao et al. 2023, section 3.2."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns.base import PerHead, whole
from lib.patterns.kinds import Windowed


@dataclass(frozen=True, kw_only=True)
class StreamingSinks(Windowed):
    """Query `i` attends `j <= i` where `0 <= d <= window` or `j < sinks`."""
    name = "streaming_sinks"
    family = "literature"
    source = "arxiv.org/abs/2309.17453 (StreamingLLM), section 3.2"

    window: PerHead = 12
    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(whole(self.sinks), "sinks", self.sinks, "an integer of at least 0")

    @property
    def leads(self):
        return self.sinks

    def attends(self, i, j, layer, length, head):
        return (i - j <= self.widths[layer][head]) | (j < self.sinks)

    @classmethod
    def examples(cls):
        return [cls(window=4, sinks=2)]
