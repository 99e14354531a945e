"""What a profile will train, what it costs, and how long it will take."""
