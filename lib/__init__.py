"""Which keys should a query attend? Patterns, attention, a model and the experiments that compare them."""
