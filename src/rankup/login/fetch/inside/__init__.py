"""What runs in the process of a user's script while `rankup fetch` watches it.

It says what the script does in `events.jsonl`, keeps what the script would overwrite, sends what is
meant for a GPU to the CPU, and ends the script when it has drawn a batch and reached its forward.

Nothing here imports anything but the standard library and `base.urls` and `base.secrets`, which do
the same: all this is also loaded by its path into every Python process that the script starts,
whatever is installed there. torch is touched once the script itself has imported it.
"""
