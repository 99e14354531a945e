"""Speed and memory of attention and of training steps: `make bench`, and what notebook 07 measures."""
