"""`rankup mesh`: which rank holds which part of a model, in text and as a picture."""
