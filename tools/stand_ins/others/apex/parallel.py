"""Imported and not used by the scripts."""


class DistributedDataParallel:
    """A name."""
