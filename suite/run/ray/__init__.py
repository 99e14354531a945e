"""Training on the machines of a Ray cluster (docs/many_machines.md)."""
