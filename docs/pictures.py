"""Draw the pictures of the pages on strategies into docs/pictures/.

.venv/bin/python docs/pictures.py
"""

from __future__ import annotations

from collections.abc import Callable

from drawing import EMPTY, RANKS, SIZE, SUM, TEXT, arrow, box, canvas, plt, save, say
from matplotlib.patches import Rectangle
from pipelines import Op, bubble, gpipe, interleaved, one_by_one, one_f_one_b, timed

# What a rank does on a time line: (forward?, in its second stage?).
KINDS = {
    (True, False): "#9ecae1",
    (True, True): "#4292c6",
    (False, False): "#fdae6b",
    (False, True): "#e6550d",
}


def terms() -> None:
    """Nodes, ranks, local ranks, and the micro-batches of a global batch dealt to them."""
    axes = canvas(70, 33, 3.3)
    for node in range(2):
        left = 2 + 34 * node
        box(axes, left, 1, 32, 14)
        say(axes, left + 16, 3, f"node {node}", bold=True)
        for local in range(2):
            rank = 2 * node + local
            x = left + 1.5 + 15 * local
            box(axes, x, 5, 14, 9, RANKS[rank])
            say(axes, x + 7, 7.7, f"rank {rank}", bold=True)
            say(axes, x + 7, 11, f"local rank {local}")
            arrow(axes, x + 7, 22.3, x + 7, 14.8)
    say(axes, 35, 19, "world size 4")
    for chunk in range(8):
        left = 3.5 + 34 * (chunk // 4) + 15 * (chunk // 2 % 2) + 7 * (chunk % 2)
        box(axes, left, 22.5, 7, 5, RANKS[chunk // 2], f"{4 * chunk}-{4 * chunk + 3}")
    say(axes, 35, 30.5, "a global batch of 32 samples in micro-batches of 4")
    save("terms")


def collectives() -> None:
    """Five collectives on four ranks: what each rank has before and after."""
    axes = canvas(70, 76, 7.2)
    say(axes, 30, 2, "before", bold=True)
    say(axes, 57, 2, "after", bold=True)
    for rank in range(4):
        for x in (20, 47):
            say(axes, x + 5.2 * rank + 2.2, 5, f"{rank}")
    say(axes, 18.5, 5, "rank", at="right")
    own = [[(RANKS[r], "abcd"[r])] * 4 for r in range(4)]
    nothing = [(EMPTY, "")] * 4
    total = [(SUM, "Σ")] * 4
    piece = [[(RANKS[r], "abcd"[r]) if r == k else (EMPTY, "") for k in range(4)] for r in range(4)]
    part = [[(SUM, "Σ") if r == k else (EMPTY, "") for k in range(4)] for r in range(4)]
    every = [(RANKS[r], "abcd"[r]) for r in range(4)]
    rows: list[tuple[str, str, list[list[tuple[str, str]]], list[list[tuple[str, str]]]]] = [
        ("broadcast", "one tells all", [own[0], nothing, nothing, nothing], [own[0]] * 4),
        ("all-reduce", "all get the sum", own, [total] * 4),
        ("all-gather", "all get all pieces", piece, [every] * 4),
        ("reduce-scatter", "each gets a piece\nof the sum", own, part),
        ("point to point", "one sends\nto one other", [own[0], nothing, nothing, nothing],
         [own[0], own[0], nothing, nothing]),
    ]  # fmt: skip
    for number, (name, meaning, before, after) in enumerate(rows):
        top = 7.5 + 13.8 * number
        say(axes, 1, top + 3.2, name, at="left", bold=True)
        say(axes, 1, top + 7.2, meaning, at="left")
        for left, cells in ((20, before), (47, after)):
            for rank, column in enumerate(cells):
                for k, (colour, text) in enumerate(column):
                    box(axes, left + 5.2 * rank, top + 2.7 * k, 4.4, 2.7, colour, text)
        arrow(axes, 41.5, top + 5.4, 46, top + 5.4)
    save("collectives")


def ddp() -> None:
    """Every rank the whole model and its own micro-batches."""
    axes = canvas(70, 40, 4)
    for rank in range(4):
        x = 13 + 14.2 * rank
        say(axes, x + 6, 2, f"rank {rank}", bold=True)
        box(axes, x, 4, 12, 4.5, RANKS[rank], "its samples")
        arrow(axes, x + 6, 8.7, x + 6, 11.3)
        for layer in range(4):
            box(axes, x, 11.5 + 4 * layer, 12, 4, "#deebf7", f"layer {layer}")
        arrow(axes, x + 6, 27.7, x + 6, 30.3)
    say(axes, 1, 6.2, "batch", at="left")
    say(axes, 1, 19.5, "the whole\nmodel", at="left")
    say(axes, 1, 32.8, "gradients", at="left")
    box(axes, 13, 30.5, 54.6, 4.6, SUM, "all-reduce: the sum over all ranks")
    say(axes, 40, 37.8, "every rank makes the same update")
    save("ddp")


def fsdp() -> None:
    """Every rank a quarter of each layer; one layer at a time is whole."""
    axes = canvas(70, 43, 4.3)
    for rank in range(4):
        x = 13 + 14.2 * rank
        say(axes, x + 6, 2, f"rank {rank}", bold=True)
        box(axes, x, 4, 12, 4.5, RANKS[rank], "its samples")
        for layer in range(4):
            y = 11.5 + 5 * layer
            for k in range(4):
                held = k == rank or layer == 1
                box(axes, x + 3 * k, y, 3, 4, RANKS[k] if held else EMPTY)
    say(axes, 1, 6.2, "batch", at="left")
    for layer in range(4):
        say(axes, 1, 13.5 + 5 * layer, f"layer {layer}", at="left", bold=layer == 1)
    say(axes, 40, 33.5, "Layer 1 computes now: an all-gather has made it whole on every rank.")
    say(axes, 40, 37, "After it, each rank frees the three quarters that are not its own.")
    say(axes, 40, 40.5, "In the backward a reduce-scatter leaves each its quarter of the gradient.")
    save("fsdp")


def hsdp() -> None:
    """Shards within a node, copies over nodes."""
    axes = canvas(70, 36, 3.6)
    for node in range(2):
        left = 2 + 38 * node
        box(axes, left, 1, 28, 30)
        say(axes, left + 14, 3.3, f"node {node}: one copy of the model", bold=True)
        for local in range(2):
            x = left + 1.5 + 13 * local
            say(axes, x + 6, 7, f"rank {2 * node + local}")
            for layer in range(3):
                for k in range(2):
                    colour = RANKS[k] if k == local else EMPTY
                    box(axes, x + 6 * k, 9 + 5 * layer, 6, 4, colour)
        arrow(axes, left + 7.5, 26, left + 20.5, 26, both=True)
        say(axes, left + 14, 28.5, "gather and scatter: fast links")
    arrow(axes, 30.5, 16, 39.5, 16, both=True)
    say(axes, 35, 13.3, "all-reduce")
    say(axes, 35, 18.7, "of shards")
    say(axes, 35, 33.8, "over the network goes only each rank's part of the gradients")
    save("hsdp")


def tensor_parallel() -> None:
    """y = f(x A) B: A cut by outputs, B by inputs, one all-reduce."""
    axes = canvas(70, 41, 4.1)
    for rank in range(2):
        y = 5 + 16.5 * rank
        say(axes, 1, y + 6, f"rank {rank}", at="left", bold=True)
        box(axes, 9, y + 1, 5, 10, "#deebf7", "x")
        arrow(axes, 14.3, y + 6, 16.7, y + 6)
        for k in range(2):  # A: x has 8 features, the hidden layer 16
            held = k == rank
            box(
                axes, 17 + 7 * k, y + 1, 7, 10, RANKS[k] if held else EMPTY, f"A{k}" if held else ""
            )
        arrow(axes, 31.3, y + 6, 33.7, y + 6)
        box(axes, 34, y + 1, 6, 10, RANKS[rank], f"f(xA{rank})")
        arrow(axes, 40.3, y + 6, 42.7, y + 6)
        for k in range(2):
            held = k == rank
            box(axes, 43, y - 1 + 7 * k, 7, 7, RANKS[k] if held else EMPTY, f"B{k}" if held else "")
        arrow(axes, 50.3, y + 6, 52.7, y + 6)
        box(axes, 53, y + 1, 6, 10, RANKS[rank], "a term\nof y")
        arrow(axes, 59.3, y + 6, 62.2, y + 6)
    box(axes, 62.5, 5, 6.5, 28.5, SUM, "all-\nreduce:\n\ny whole\non both")
    say(axes, 24, 2.2, "A cut by outputs", bold=True)
    say(axes, 46.5, 2.2, "B cut by inputs", bold=True)
    say(axes, 35, 38, "Between A and B nothing is sent: B's part takes just what A's part gives.")
    save("tensor-parallel")


def pipeline() -> None:
    """Layers on ranks, and what each rank does when, under four schedules."""
    axes = canvas(70, 88, 8.2)
    say(axes, 1, 3.2, "layers", at="left", bold=True)
    for layer in range(8):
        box(axes, 11 + 7 * layer, 1.2, 7, 4.2, RANKS[layer // 2], f"{layer}")
    for stage in range(4):
        say(axes, 18 + 14 * stage, 7.6, f"rank {stage}")
    schedules: list[tuple[str, list[list[Op]], int]] = [
        ("naive: one chunk at a time", one_by_one(4, 8), 1),
        ("GPipe: all forwards, then all backwards", gpipe(4, 8), 1),
        ("1F1B: backwards as early as possible",
         one_f_one_b(4, 8), 1),
        ("interleaved: two shorter stages on each rank (pale, dark)", interleaved(4, 8, 2), 2),
    ]  # fmt: skip
    scale, end = 1.78, 33.0
    for number, (title, orders, rounds) in enumerate(schedules):
        top = 11 + 18.3 * number
        spans = timed(orders, rounds)
        waits = f"waits {bubble(spans):.0%} of the time"
        say(axes, 1, top + 1.2, title, at="left", bold=True)
        say(axes, 69.7, top + 1.2, waits, at="right")
        for rank, row in enumerate(spans):
            y = top + 3.3 + 3 * rank
            say(axes, 1, y + 1.4, f"rank {rank}", at="left")
            axes.add_patch(Rectangle((11, y), scale * end, 2.8, facecolor="#eeeeee"))
            for op, start, stop in row:
                if start >= end:
                    continue
                dark = op.stage >= 4  # the second round of an interleaved schedule
                colour = KINDS[op.forward, dark]
                left, width = 11 + scale * start, scale * (min(stop, end) - start)
                axes.add_patch(
                    Rectangle((left, y), width, 2.8, facecolor=colour, edgecolor="white", lw=0.8)
                )
                if width > 1.2:
                    axes.text(left + width / 2, y + 1.5, f"{op.chunk + 1}", ha="center",
                              va="center", fontsize=8, color=TEXT)  # fmt: skip
        if number == 0:
            say(axes, 40, top + 16.4, "… and so on: 96 units of time, where GPipe takes 33")
    for x, colour, text in ((11, "#9ecae1", "forward of a chunk"), (32, "#fdae6b", "backward"),
                            (45, "#eeeeee", "waiting: the bubble")):  # fmt: skip
        box(axes, x, 84.3, 2.4, 2.4, colour)
        say(axes, x + 3.2, 85.6, text, at="left")
    save("pipeline")


def three_d() -> None:
    """Eight ranks: two pipeline stages of two shards of two tensor-parallel ranks."""
    axes = canvas(70, 38, 3.8)
    for stage in range(2):
        left = 11 + 31 * stage
        box(axes, left, 4.5, 24, 24)
        say(axes, left + 12, 2.2, f"pipeline stage {stage}", bold=True)
        for shard in range(2):
            y = 6.5 + 12 * shard
            for tensor in range(2):
                rank = 4 * stage + 2 * shard + tensor
                box(axes, left + 2 + 11 * tensor, y, 9, 8, RANKS[tensor], f"rank {rank}")
            arrow(axes, left + 11.2, y + 4, left + 12.8, y + 4, both=True)
        for tensor in range(2):
            arrow(axes, left + 6.5 + 11 * tensor, 14.8, left + 6.5 + 11 * tensor, 18.2, both=True)
    for shard in range(2):
        say(axes, 1, 10.5 + 12 * shard, f"batch\npart {shard}", at="left")
        arrow(axes, 35.5, 10.5 + 12 * shard, 41.5, 10.5 + 12 * shard, both=True)
    say(axes, 38.5, 16.5, "point\nto point")
    say(axes, 36, 31, "within a row of a stage: tensor parallel, several times in each layer")
    say(axes, 36, 33.8, "up and down: sharded data parallel, for each block")
    say(axes, 36, 36.6, "between the stages: pipeline, for each chunk")
    save("3d")


def memory() -> None:
    """What weights, gradients and AdamW's state of 8 B parameters take on each rank."""
    _, axes = plt.subplots(figsize=(7, 3.4), constrained_layout=True)
    ranks = (1, 2, 4, 8, 16)
    below = [0.0] * len(ranks)
    for name, size, colour in (("weights", 4, RANKS[0]), ("gradients", 4, RANKS[1]),
                               ("optimizer", 8, RANKS[2])):  # fmt: skip
        heights = [8 * size / n for n in ranks]
        axes.bar([str(n) for n in ranks], heights, 0.6, below, color=colour, label=name)
        below = [b + h for b, h in zip(below, heights, strict=True)]
    for n, height in enumerate(below):
        axes.text(n, height + 2, f"{height:.0f}", ha="center", fontsize=SIZE)
    for size in (40, 96):
        axes.axhline(size, color=TEXT, linewidth=1, linestyle="--")
        axes.text(4.42, size + 2, f"{size} GB GPU", ha="right", fontsize=SIZE)
    axes.set(ylim=(0, 142), xlabel="ranks that share the model (fsdp)", ylabel="GB on each rank")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.02))
    save("memory")


ALL: tuple[Callable[[], None], ...] = (
    terms, collectives, ddp, fsdp, hsdp, tensor_parallel, pipeline, three_d, memory,
)  # fmt: skip

if __name__ == "__main__":
    for draw in ALL:
        draw()
