"""Starting a run: what `rankup run` and `rankup demo` do, and the processes they start.

`run` (no torch) checks what was asked, makes the run directory and starts `worker` as torchrun with
failures kept as data, which starts it once more per rank.
"""
