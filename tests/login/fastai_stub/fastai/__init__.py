"""What the first lesson needs of fastai, with its names and places; pictures are raw bytes."""

__version__ = "2.8"
