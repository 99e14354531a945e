"""The model's element-wise parts, one pass over memory each."""
