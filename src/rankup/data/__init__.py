"""Data as few files with an index. Without torch, except where batches are made."""
