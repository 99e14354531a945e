"""Text into token files: sources, cleaning, tokeniser and build. Nothing here imports torch."""
