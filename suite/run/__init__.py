"""Runs: the engine that trains them, where, and the database that keeps them."""
