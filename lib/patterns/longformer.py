"""Longformer: windows that grow, dilated on some heads, and global tokens. Source: Beltagy et al. 2020, section 3.1."""

import numpy as np

from lib.patterns.kinds import Count, Knob, PerHead, Positive, Windowed, edge_table, link_codes


class Longformer(Windowed):
    """Query `i` attends `j` where `d = r * n`, `0 <= n <= W_l` (`|n| <= W_l` in an encoder), or `j < global_tokens`.

    `W_l = window + growth * l // (L-1)`. `r` is 1, but in the upper half of the layers it rises to `dilation` on the
    first `dilated_heads` heads. The paper's window w counts both sides: w = 2 W. In an encoder global tokens attend
    all.
    """
    name = "longformer"
    family = "literature"
    source = "arxiv.org/abs/2004.05150 (Longformer), sections 3.1 (pattern) and 4.1 (growing windows, dilated heads)"

    window: PerHead = 2                 # of the lowest layer
    growth: Count = 12                  # from the lowest layer to the top one
    dilation: Positive = 1              # of the top layer
    dilated_heads: Count = 2
    global_tokens: Count = 1

    def band(self, layer, head):
        width = self.widths[layer][head] + self.growth * layer // max(1, self.layers - 1)
        low, high = self.layers // 2, self.layers - self.layers // 2
        raised = (self.dilation - 1) * max(0, layer - low + 1) // high if head < self.dilated_heads else 0
        return width, 1 + raised

    @property
    def leads(self):
        return self.global_tokens

    def keys(self, layer, length):
        # A global query of an encoder attends the whole sequence, which is no set of distances
        if self.causal or not self.global_tokens:
            return super().keys(layer, length)
        return edge_table([link_codes(self, layer, length, head) for head in range(self.heads)], length)

    def links(self, layer, length, head):
        i, back = np.arange(length)[:, None], np.array([*self.distances(layer, length, head)])
        yield i, i - back
        yield i, i + back
        yield i, np.arange(self.global_tokens)
        yield i[:self.global_tokens], np.arange(length)

    def attends(self, i, j, layer, length, head):
        width, dilation = self.band(layer, head)
        d = abs(i - j)
        return ((d <= dilation * width) & (d % dilation == 0)) | (j < self.global_tokens) | (i < self.global_tokens)

    def knobs(self, length):
        growths = Knob("growth", range(length) if self.layers > 1 else [self.growth])
        return growths, Knob("window", range(self.widest, length), "head")

    shown = [dict(window=1, growth=6, layers=4),
             dict(window=1, growth=3, dilation=3, dilated_heads=1, layers=4, heads=2),
             dict(window=1, growth=3, dilation=2, layers=4, heads=2, global_tokens=2, causal=False)]
