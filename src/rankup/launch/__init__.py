"""Starting a run: what `rankup run` and `rankup demo` do, and the processes they start.

`run` (no torch) checks what was asked, makes the run directory and starts `agent`, which is
torchrun with failures kept as data; that starts one `worker` per rank.
"""
