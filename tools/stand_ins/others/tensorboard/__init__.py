"""Stands in for tensorboard: see tools/stand_ins/README.md.

torch.utils.tensorboard imports this first, and then its own `writer`, which would want all of
tensorboard: the module that it finds instead is `lines`.
"""

import sys

from . import lines

__version__ = "2.0"
sys.modules["torch.utils.tensorboard.writer"] = lines
