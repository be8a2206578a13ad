"""Runs in the process of a user's script while it is watched.

It records what the script does in `events.jsonl`, keeps what it writes in its copy of the project,
sends what is meant for a GPU to the CPU, and ends the script when it has drawn a batch and reached
its forward.

Nothing here imports anything but the standard library, `base.urls` and `base.secrets`, which do the
same: all this is also loaded by its path into every Python process that the script starts, whatever
is installed there. torch is touched once the script itself has imported it.
"""
