"""Stands in for tensorboardX: see tools/stand_ins/README.md."""

from tensorboard.lines import SummaryWriter

__all__ = ["SummaryWriter"]
