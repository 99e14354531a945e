"""Patterns in models that are not this suite's. Nothing here is imported by the suite itself."""
