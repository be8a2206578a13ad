"""Pipelining: each rank holds a run of the model's layers, and chunks flow through them."""
