"""`rankup bench-data`: how fast a file feeds, part by part, and which part holds the GPU up."""
