"""BigBird: window, random and global keys. Source: Zaheer et al. 2020, arXiv 2007.14062, section 2."""

import numpy as np

from lib.patterns.kinds import PARTS, Count, DrawnPattern, Knob


class BigBird(DrawnPattern):
    """Query `i` attends `j` where `0 <= d <= window` or `j < global_tokens`, and `random` more keys if there are.

    In an encoder `|d| <= window`, and global tokens attend all. The rule is by token; the paper's kernel has blocks.
    """
    name = "bigbird"
    family = "literature"
    source = "arxiv.org/abs/2007.14062 (BigBird), section 2, internal transformer construction"

    window: Count = 3
    random: Count = 3
    global_tokens: Count = 2

    def links(self, layer, length, head):
        rng = self.rng(layer)
        for i in range(length):
            fixed = np.zeros(i + 1 if self.causal else length, bool)
            fixed[:self.global_tokens] = True
            fixed[max(0, i - self.window):i + self.window + 1] = True
            if i < self.global_tokens:                                               # a global query attends all keys
                fixed[:] = True
            free = np.flatnonzero(~fixed)
            wanted = min(self.with_extra(self.random, i), len(free))
            yield i, [*np.flatnonzero(fixed), *free[rng.choice(len(free), wanted, replace=False)]]

    def attends(self, i, j, layer, length, head):
        near = (abs(i - j) <= self.window) | (j < self.global_tokens) | (i < self.global_tokens)
        return near | self.drawn(i, j, layer, length, head)

    def layer_pairs(self, layer, length):
        i = np.arange(length)
        first = np.maximum(0, i - self.window)                                       # first key of the window
        last = np.minimum(i + (0 if self.causal else self.window), length - 1)
        fixed = last - first + 1 + np.minimum(self.global_tokens, first)
        fixed += np.maximum(0, np.minimum(self.global_tokens, length) - last - 1) * (not self.causal)
        rows = np.minimum(fixed + self.with_extra(self.random, i), i + 1 if self.causal else length)
        return float(np.where((i < self.global_tokens) & (not self.causal), length, rows).sum())

    def knobs(self, length):
        return Knob("random", range(length)), Knob("extra", range(PARTS))

    shown = [dict(window=2, random=2, layers=4), dict(window=1, random=2, causal=False, seed=1)]
