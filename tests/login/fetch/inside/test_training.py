"""The script is stopped at its first training step, and nothing of it runs after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Ended, Runner

_FLAT = """\
    import atexit, os, torch
    from torch.utils.data import DataLoader, TensorDataset
    atexit.register(lambda: open("atexit.txt", "w"))
    log = open("log.txt", "w")
    log.write("unfinished")
    print("begun")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model(torch.zeros(1, 4))
    data = TensorDataset(torch.zeros(8, 4))
    try:
        for (x,) in DataLoader(data, batch_size=2):
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
            time.sleep(60)
    signal.signal(signal.SIGCHLD, handle)
    try:
        torch.nn.Linear(4, 1)(torch.zeros(1, 4)).sum().backward()
    finally:
        open("finally.txt", "w")
    """

_CLASS = """\
    import argparse
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.full((4,), float(index))

    class Trainer:
        def __init__(self, workers):
            self.model = torch.nn.Linear(4, 1)
            self.loader = DataLoader(
                Numbers(),
                2,
                num_workers=workers,
                multiprocessing_context=METHOD,
            )
        def fit(self):
            for batch in self.loader:
                print(self.loader.num_workers, len(batch), flush=True)
                self.model(batch)
                open("trained.txt", "w")

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", type=int, required=True)
        Trainer(parser.parse_args().workers).fit()

    if __name__ == "__main__":
        main()
    """


def _stopped(done: Ended, reached: str, where: str) -> None:
    stop = done.one("stop")
    assert (stop["reached"], stop["where"]) == (reached, where), done.explain()
    assert done.code == 0
    assert not done.of("end")
    assert not done.of("problem")


def test_a_flat_script_stops_at_the_first_forward_after_a_batch(run: Runner) -> None:
    done = run(_FLAT)
    _stopped(done, "batch and forward", "train.py:12")
    assert done.out == "begun\n"
    assert sorted(path.name for path in run.folder.iterdir()) == ["log.txt", "train.py"]
    assert done.one("batch")["where"] == "train.py:11"
    assert done.one("batch")["size"] == 2
    # The forward before any batch only shows which model it is.
    assert (done.one("forward")["model"], done.one("forward")["where"]) == (
        "Sequential",
        "train.py:8",
    )
    opened = [Path(path).name for path in done.one("stop")["open"]]
    assert opened == ["log.txt"]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_class_behind_a_main_guard_with_workers_and_arguments_is_stopped(
    run: Runner, method: str
) -> None:
    done = run(_CLASS.replace("METHOD", repr(method)), "--workers", "64")
    _stopped(done, "batch and forward", "train.py:23 in fit")
    assert (done.out, done.err) == ("2 2\n", "")  # no more workers than threads
    assert not (run.folder / "trained.txt").exists()


def test_the_end_of_its_children_is_not_told_to_the_script(run: Runner) -> None:
    """They are killed first, and torch raises an error where a worker was."""
    done = run(_CHILDREN)
    _stopped(done, "backward", "train.py:10")
    assert [path.name for path in run.folder.iterdir()] == ["train.py"], done.explain()


def test_a_backward_without_a_loader_is_training(run: Runner) -> None:
    done = run("""\
        import torch
        weight = torch.zeros(3, requires_grad=True)
        loss = (weight * 2).sum()
        loss.backward()
        open("trained.txt", "w")
        """)
    _stopped(done, "backward", "train.py:4")
    assert not (run.folder / "trained.txt").exists()


def test_an_optimizer_step_is_training_only_with_gradients(run: Runner) -> None:
    done = run("""\
        import torch
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer.step()  # as some do before they make a scheduler
        weight.grad = torch.autograd.grad(weight.sum(), weight)[0]
        optimizer.step()
        open("trained.txt", "w")
        """)
    _stopped(done, "step", "train.py:6")


def test_transforms_that_are_modules_are_no_model(run: Runner) -> None:
    done = run("""\
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Images(Dataset):
            def __init__(self):
                self.transform = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return self.transform(torch.zeros(1)).detach()

        augment = torch.nn.ReLU()
        for batch in DataLoader(Images()):
            augment(batch)
        model = torch.nn.Linear(1, 1)
        model(batch)
        """)
    _stopped(done, "batch and forward", "train.py:16")


def test_a_process_of_the_script_that_trains_stops_all_of_it(run: Runner) -> None:
    done = run("""\
        import torch
        import torch.multiprocessing as mp

        def train(rank):
            torch.zeros(1, requires_grad=True).sum().backward()

        if __name__ == "__main__":
            try:
                mp.spawn(train, nprocs=1)
            finally:
                open("after.txt", "w")
        """)
    stop = done.one("stop")
    assert (stop["reached"], stop["where"]) == ("backward", "train.py:5 in train"), done.explain()
    assert stop["pid"] != done.one("start")["pid"]
    assert not (run.folder / "after.txt").exists()


def test_a_script_that_trains_in_a_thread_is_stopped(run: Runner) -> None:
    done = run("""\
        import threading, torch
        def train():
            torch.zeros(1, requires_grad=True, device="cuda").sum().backward()
        threading.Thread(target=train).start()
        """)
    _stopped(done, "backward", "train.py:3 in train")


def test_a_script_that_never_trains_ends_by_itself_with_bounded_threads_and_its_modules_told(
    run: Runner, tmp_path: Path
) -> None:
    (tmp_path / "wandb.py").touch()
    done = run(
        """\
        import torch, wandb
        print(torch.get_num_threads())
        torch.set_num_threads(64)
        print(torch.get_num_threads())
        torch.hub.get_dir()
        """,
        threads=1,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    assert (done.code, done.out) == (0, "1\n1\n"), done.explain()
    assert done.one("modules")["names"] == ["torch.hub", "wandb"]
    assert done.one("end")["code"] == 0
    assert not done.of("stop")
