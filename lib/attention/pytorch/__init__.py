"""Attention over the keys of a pattern in plain torch, without a `[T, T]` mask."""
