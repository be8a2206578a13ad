"""Real runs: a correct port, broken ones, and scripts that do not behave."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from tests.conftest import RunRankup

from .several import differing, results

SCRIPTS = Path(__file__).parent / "scripts"
ONE = (SCRIPTS / "one.py").read_text(encoding="utf-8")
PORT = (SCRIPTS / "one_dist.py").read_text(encoding="utf-8")


def _broken(*pairs: tuple[str, str]) -> str:
    text = PORT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


_WRAP = "rankup.wrap(Net().to(device))"
BROKEN = {
    "losses": _broken(
        (_WRAP, "torch.nn.parallel.DistributedDataParallel(Net().to(device))"),
        ("model.state_dict()", "model.module.state_dict()"),
    ),
    "parameters": _broken((_WRAP, "Net().to(device)")),
    "samples": _broken(("    for x, y in rankup.shard(loader):", "    for x, y in loader:")),
    "evaluation": _broken(
        (
            "float(rankup.mean(loss, seen)), float(rankup.mean(correct, seen))",
            "loss / seen, correct / seen",
        ),
    ),
    "output": _broken(("rankup.save0(", "torch.save(")),
    "saved": _broken(
        (
            "rankup.save0(model.state_dict(),",
            "rankup.save0({'net.' + k: v for k, v in model.state_dict().items()},",
        ),
    ),
}
# Where ranks train apart, what they compute and save is another as well.
ALSO = {
    "losses": {"evaluation", "output", "saved"},
    "parameters": {"losses", "evaluation", "output", "saved"},
    "evaluation": {"output", "saved"},
}
_AT = "    best = 0.0\n"
# Scripts that do not behave -> what is said of them.
RUDE = {
    "prints megabytes": (
        "import os, sys\n    for _ in range(99):\n"
        "        os.write(1, b'x' * 99999); os.write(2, b'y' * 99999)\n"
        "        sys.stdout.write('z' * 99999)",
        "zzz",
    ),
    "writes outside": ("open('../../../../../outside.txt', 'w')", "only below its own folder"),
    "starts a program": ("import subprocess; subprocess.run(['touch', 'x'])", "starts no other"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; what is put into TMPDIR is seen."""
    (tmp_path / "project").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "project"


def _nothing_is_left(project: Path) -> None:
    assert [path.name for path in project.iterdir()] == ["train.py"]
    assert not list((project.parent / "tmp").iterdir())
    for process in psutil.Process().children(recursive=True):
        assert "verify.inside.server" not in " ".join(_words(process))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_correct_port_is_proved_and_a_wrong_one_is_not(project: Path) -> None:
    script, *ports = (
        text.replace('"--epochs", type=int, default=20', '"--epochs", type=int, default=2')
        .replace("num_workers=2", "num_workers=0")
        .replace("__init__()\n", "__init__()\n        self.unused = nn.Linear(2, 2)\n")
        for text in (ONE, PORT, BROKEN["losses"])
    )
    found = results(project, script, dict(zip(("right", "wrong"), ports, strict=True)))
    assert {one.state for one in found["right"]} == {"same"}
    assert "losses" in differing(found["wrong"])
    _nothing_is_left(project)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_way_of_a_correct_port(run_rankup: RunRankup, tmp_path: Path) -> None:
    """Files, folders and processes are as before."""
    for name in ("one.py", "one_dist.py"):
        (tmp_path / name).write_bytes((SCRIPTS / name).read_bytes())
    (tmp_path / "best.pt").write_text("mine")
    own = tmp_path / "own"
    own.mkdir()
    done = run_rankup(
        ["verify", "one.py", "one_dist.py", "--", "--batch-size", "32"],
        timeout=400,
        env={"TMPDIR": str(own)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same run on 1, 2 and 3 ranks" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [line.count("same:") for line in rows] == [3, 2, 3, 3, 3, 3]
    assert "batches of 32 are batches of 12" in done.stdout
    assert "dropout: off" in done.stdout
    assert "31 of 2000 of TensorDataset, spread over all" in done.stdout
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["best.pt", "one.py", "one_dist.py", "own"]
    assert (tmp_path / "best.pt").read_text() == "mine"
    assert not list(own.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_broken_and_rude_ports_are_noticed(project: Path) -> None:
    """Each by its check, with its reason; and nothing of them is left."""
    rude = {name: _broken((_AT, f"{_AT}    {code}\n")) for name, (code, _) in RUDE.items()}
    found = results(project, ONE, {**BROKEN, **rude})
    _nothing_is_left(project)
    for check in BROKEN:
        differ = differing(found[check])
        assert check in differ, check
        assert differ <= {check, *ALSO.get(check, ())}, check
    for name, (_, said) in RUDE.items():
        assert any(said in " ".join(one.differences) for one in found[name]), (name, found[name])


@pytest.mark.slow
def test_ports_that_wait_for_ever_or_kill_the_process_that_starts_them(project: Path) -> None:
    rude = {
        "hangs": ("import time\n    while _rank: time.sleep(1)", "had not ended after"),
        "leaves orphans": (
            "import os, time\n    if os.fork() == 0:\n        os.setsid(); time.sleep(3000)\n"
            "    if _rank: os._exit(3)",
            "ended with code 3",
        ),
        "kills": ("import os; os.kill(os.getppid(), 9)", "the ranks has ended"),
    }
    ports = {name: _broken((_AT, f"{_AT}    {code}\n")) for name, (code, _) in rude.items()}
    found = results(project, ONE, ports, seconds=25.0)
    for name, (_, said) in rude.items():
        assert any(said in " ".join(one.differences) for one in found[name]), (name, found[name])
    _nothing_is_left(project)


@pytest.mark.slow
def test_what_needs_a_gpu_is_started_anew_with_a_pretended_one(project: Path) -> None:
    """In a copy in which its first start has left nothing."""
    needs = "import os\nos.mkdir('out')\nassert torch.cuda.is_available()\n\n\nclass Net("
    script, port = (
        text.replace("\nclass Net(", needs, 1).replace("default=20", "default=2")
        for text in (ONE, PORT)
    )
    port = port.replace("os.mkdir('out')", "os.makedirs('out', exist_ok=True)")
    found = results(project, script, {"port": port})
    assert not differing(found["port"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_noise_and_summed_losses_are_comparable(run_rankup: RunRankup, tmp_path: Path) -> None:
    """Without a port given, `port` makes it."""
    (tmp_path / "vae.py").write_bytes((SCRIPTS / "vae.py").read_bytes())
    done = run_rankup(["verify", "vae.py"], timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a sample has the same ones on any rank" in done.stdout
    assert "not seen: evaluation" in done.stdout


@pytest.mark.slow
def test_what_has_nothing_to_compare(run_rankup: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\ntorch.save({}, 'a.pt')\n")
    (tmp_path / "b.py").write_text("pass\n")
    done = run_rankup(["verify", "a.py", "b.py"], timeout=200)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "made no optimizer step" in done.stderr
