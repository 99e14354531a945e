"""What every room needs to know: the profile, the machine, and what identifies a run."""
