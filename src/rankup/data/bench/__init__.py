"""`rankup bench-data`: how fast a file feeds a training loop, and which part limits."""
