"""The sampler: one per node beside the training, cheap, in nobody's way, ended with the job."""

from __future__ import annotations

import os

# The process that started this one, as it was when this was imported: early, and first. A job
# script that ends while the sampler still imports leaves it to another process; asked only then,
# that one would be taken for the job.
STARTER = os.getppid()
