"""LogSparse: a window, then steps that double. Source: Li et al. 2019, arXiv 1907.00235, section 4.2."""

from lib.patterns.kinds import PerHead, Positive, Windowed


class LogSparse(Windowed):
    """Query `i` attends `j` where `0 <= d <= window` or `d - window` is a power of two.

    With `restart`, d is taken modulo `restart`, so that the steps start anew (the paper's restart attention).
    `window` 0 is the paper's plain rule: the query itself and the distances 1, 2, 4, 8, …
    """
    name = "log_sparse"
    family = "literature"
    source = "arxiv.org/abs/1907.00235 (LogSparse), section 4.2: log-sparse, local and restart attention"

    window: PerHead = 4
    restart: Positive | None = None     # tokens

    def far(self, layer, length, head):
        width, period = self.widths[layer][head], self.restart or length
        steps = [width + (1 << n) for n in range(length.bit_length())]
        once = [d for d in (*range(width + 1), *steps) if d < period]
        return [start + d for start in range(0, length, period) for d in once]

    def attends(self, i, j, layer, length, head):
        d = abs(i - j) % self.restart if self.restart else abs(i - j)
        beyond = d - self.widths[layer][head]
        return (beyond <= 0) | (beyond & (beyond - 1) == 0)

    shown = [dict(window=0), dict(window=2, restart=16), dict(window=2, causal=False)]
