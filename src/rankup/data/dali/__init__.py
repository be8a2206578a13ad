"""`DaliLoader`: a Loader whose photos NVIDIA's DALI decodes and resizes, on the CPU or the GPU.

Which samples, which part of each and which are flipped is decided by rankup, as everywhere, by
(seed, epoch, sample): nothing is drawn from DALI's own random state, which knows of no rank and no
resume. DALI gets bytes and coordinates, and does what it is good at.
"""

from __future__ import annotations

from .loader import DaliLoader

__all__ = ["DaliLoader"]
