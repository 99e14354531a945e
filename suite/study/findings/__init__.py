"""Tables for the figures of each notebook, and sentences computed from its results; one file a notebook."""
