"""Tensor parallelism: matrices cut over ranks, by a plan that is a plain dict of name patterns."""
