"""StreamingLLM: a window, and the first tokens as attention sinks. Source: Xiao et al. 2023, section 3.2."""

from lib.patterns.kinds import Count, PerHead, Windowed


class StreamingSinks(Windowed):
    """Query `i` attends `j <= i` where `0 <= d <= window` or `j < sinks`."""
    name = "streaming_sinks"
    family = "literature"
    source = "arxiv.org/abs/2309.17453 (StreamingLLM), section 3.2"
    bidirectional = False

    window: PerHead = 12
    sinks: Count = 4

    @property
    def leads(self):
        return self.sinks

    def attends(self, i, j, layer, length, head):
        return (i - j <= self.widths[layer][head]) | (j < self.sinks)

    shown = [dict(window=4, sinks=2)]
