"""What each notebook says of its results: tables for its figures, and sentences computed from them. One file a
notebook."""
