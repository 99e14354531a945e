"""What trains, judges and shows: the experiments, the engine that runs them, the claims, and the report."""
