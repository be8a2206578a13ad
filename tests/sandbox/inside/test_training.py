"""The script is stopped at its first training step, and nothing of it runs after that."""

from __future__ import annotations

import pytest

from ...login.web import Web
from .running import Ended, Runner

# Not a step of training: a forward before any batch, modules that transform images, and a step
# without gradients, as some do before they make a scheduler.
_FLAT = """\
    import atexit, os, torch
    from torch.utils.data import DataLoader, Dataset
    atexit.register(lambda: open("atexit.txt", "w"))
    log = open("log.txt", "w")
    log.write("unfinished")
    print("begun")

    class Images(Dataset):
        def __init__(self):
            self.transform = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return self.transform(torch.zeros(4)).detach()

    augment = torch.nn.ReLU()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model(torch.zeros(1, 4))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    try:
        for x in DataLoader(Images(), batch_size=2):
            augment(x)
            model(x)
            open("trained.txt", "w")
    except BaseException:
        open("except.txt", "w")
    finally:
        open("finally.txt", "w")
    """

_CHILDREN = """\
    import os, signal, time, torch
    def handle(number, frame):
        open("handled.txt", "w")
        raise RuntimeError("a worker was killed")
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(600)
    signal.signal(signal.SIGCHLD, handle)
    try:
        torch.nn.Linear(4, 1)(torch.zeros(1, 4)).sum().backward()
    finally:
        open("finally.txt", "w")
    """


def _stopped(done: Ended, reached: str, where: str) -> None:
    stop = done.one("stop")
    assert (stop["reached"], stop["where"]) == (reached, where), done.explain()
    assert not done.of("end")
    assert not done.of("problem")


def test_a_flat_script_stops_at_the_first_forward_after_a_batch(run: Runner) -> None:
    done = run(_FLAT)
    _stopped(done, "batch and forward", "train.py:23")
    assert done.out == "begun\n"
    assert sorted(path.name for path in run.folder.iterdir()) == ["log.txt", "train.py"]
    assert done.one("batch")["where"] == "train.py:21"
    # The forward before any batch only shows which model it is.
    assert (done.one("forward")["model"], done.one("forward")["where"]) == (
        "Sequential",
        "train.py:18",
    )
    assert not done.of("lazy")


def test_a_backward_without_a_loader_is_training_and_no_end_of_a_child_is_told_to_the_script(
    run: Runner,
) -> None:
    """They are killed first, and torch raises an error where a worker was."""
    done = run(_CHILDREN)
    _stopped(done, "backward", "train.py:10")
    assert [path.name for path in run.folder.iterdir()] == ["train.py"], done.explain()


@pytest.mark.slow
def test_a_step_with_gradients_in_a_thread_of_another_process_stops_all(run: Runner) -> None:
    done = run("""\
        import threading, torch
        import torch.multiprocessing as mp

        def step():
            weight = torch.nn.Parameter(torch.zeros(3, device="cuda"))
            weight.grad = torch.autograd.grad(weight.sum(), weight)[0]
            torch.optim.SGD([weight], lr=0.1).step()
            open("trained.txt", "w")

        def train():
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()

        if __name__ == "__main__":
            try:
                process = mp.get_context("fork").Process(target=train)
                process.start()
                process.join()
            finally:
                open("after.txt", "w")
        """)
    stop = done.one("stop")
    assert (stop["reached"], stop["where"]) == ("step", "train.py:7 in step"), done.explain()
    assert stop["pid"] != done.one("start")["pid"]
    assert [path.name for path in run.folder.glob("*.txt")] == []


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_are_downloaded_while_batches_are_drawn_are_told_of(
    run: Runner, web: Web, workers: int
) -> None:
    done = run(f"""\
        import torch, urllib.request
        from torch.utils.data import DataLoader, Dataset

        class Remote(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.tensor([float(urllib.request.urlopen("{web.put("/x", b"1")}").read())])

        if __name__ == "__main__":
            for batch in DataLoader(Remote(), num_workers={workers}):
                torch.nn.Linear(1, 1)(batch)
        """)
    assert done.one("lazy")["where"].startswith("train.py:8"), done.explain()
    assert done.one("stop")["reached"] == "batch and forward"
