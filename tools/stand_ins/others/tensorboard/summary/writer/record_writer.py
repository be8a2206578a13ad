"""Imported by torch.utils.tensorboard."""


class RecordWriter:
    """A name."""
