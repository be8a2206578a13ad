"""Real runs: a correct port, seven broken ones, and scripts that do not behave."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil
import pytest

from rankup.port.verify import Request, start
from rankup.port.verify.command import Verdict, judge
from tests.conftest import RunRankup

SCRIPTS = Path(__file__).parent / "scripts"
PORT = (SCRIPTS / "one_dist.py").read_text(encoding="utf-8")


@pytest.mark.timeout(600)
def test_a_correct_port(run_rankup: RunRankup, tmp_path: Path) -> None:
    """The whole way, once; files, folders and processes are as before."""
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
    assert "proved: the same run on 1, 2 and 3 ranks" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [line.count("proved") for line in rows] == [3, 2, 3, 3, 3, 3, 1]
    assert "batches of 32 are batches of 12" in done.stdout
    assert "dropout: off" in done.stdout
    assert "the first 31 of 2000" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.pt",
        "one.py",
        "one_dist.py",
        "own",
    ]
    assert (tmp_path / "best.pt").read_text() == "mine"
    assert not list(own.iterdir())


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
    "killed": _broken(
        ("        train_loss = train(", "        try:\n         train_loss = train("),
        ("        valid_loss, accuracy", "         valid_loss, accuracy"),
        (
            "        print(\n",
            "        except RuntimeError:\n         continue\n        print(\n",
        ),
    ),
}
# Where ranks train apart, what they compute and save is another as well.
ALSO = {"losses": {"evaluation"}, "parameters": {"losses", "evaluation", "saved"}}


@pytest.fixture
def on_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Verifies a port's text on 2 ranks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "WORLDS", (2,))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "one.py").write_bytes((SCRIPTS / "one.py").read_bytes())

    def verified(text: str, seconds: float = 120.0) -> Verdict:
        (tmp_path / "port.py").write_text(text, encoding="utf-8")
        verdict = judge(Request("one.py", "port.py", seconds=seconds), lambda run: None)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one.py", "port.py", "tmp"]
        assert not list((tmp_path / "tmp").iterdir())
        left = [
            p
            for p in psutil.Process().children(recursive=True)
            if "verify.inside.zygote" in " ".join(_words(p))
        ]
        assert not left
        return verdict

    return verified


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("check", BROKEN)
def test_each_broken_port_is_noticed(check: str, on_two) -> None:  # type: ignore[no-untyped-def]
    verdict = on_two(BROKEN[check])
    found = {one.check for one in verdict.results if one.state == "differs"}
    assert verdict.exit_code == 1
    assert check in found
    assert found <= {check, *ALSO.get(check, ())}


_AT = "    best = 0.0\n"
# What waits for a limit does so in the plain run on 2 ranks alone: where one is killed as well, it
# would wait a second time.
_ONCE = "'/kill' not in os.getcwd()"
RUDE = {
    "hangs": (
        f"import os, time\n    while _rank and {_ONCE}: time.sleep(1)",
        "had not ended after",
    ),
    "prints megabytes": (
        "import os, sys\n    for _ in range(99):\n"
        "        os.write(1, b'x' * 99999); os.write(2, b'y' * 99999)\n"
        "        sys.stdout.write('z' * 99999)",
        "zzz",
    ),
    "writes outside": ("open('../../../../../outside.txt', 'w')", "only below its own folder"),
    "starts a program": ("import subprocess; subprocess.run(['touch', 'x'])", "starts no other"),
    "kills the zygote": (
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "the ranks has ended",
    ),
    "leaves orphans": (
        "import os, time\n    if os.fork() == 0:\n        os.setsid(); time.sleep(3000)\n"
        f"    if _rank or not {_ONCE}: os._exit(3)",
        "ended with code 3",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUDE)
def test_a_rude_port(name: str, on_two) -> None:  # type: ignore[no-untyped-def]
    """It differs, is explained, and nothing of it is left (see the fixture)."""
    code, word = RUDE[name]
    limit = 40.0 if name in ("hangs", "leaves orphans") else 120.0
    verdict = on_two(_broken((_AT, f"{_AT}    {code}\n")), limit)
    assert verdict.exit_code == 1
    assert any(word in one.difference for one in verdict.results), verdict.results


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_noise_and_summed_losses_are_comparable(run_rankup: RunRankup, tmp_path: Path) -> None:
    """Without a port given, `port` makes it."""
    (tmp_path / "vae.py").write_bytes((SCRIPTS / "vae.py").read_bytes())
    done = run_rankup(["verify", "vae.py"], timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a sample has the same ones on any rank" in done.stdout
    assert "not seen in so few steps: evaluation" in done.stdout


NO_TRAINING = {
    "print('hello')\n": "no optimizer step",
    "import nowhere_at_all\n": "needs the package nowhere_at_all",
    "import torch\nw = torch.zeros(3, requires_grad=True)\no = torch.optim.SGD([w], lr=.1)\n"
    "for i in range(99):\n    ((w - 1) ** 2).sum().backward(); o.step()\n": "without a torch Data",
    "import sys\nsys.exit('give me data')\n": "give me data",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", NO_TRAINING)
def test_what_has_nothing_to_compare(text: str, run_rankup: RunRankup, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text("pass\n")
    done = run_rankup(["verify", "a.py", "b.py"], timeout=200)
    assert done.returncode == 2, done.stdout + done.stderr
    assert NO_TRAINING[text] in done.stderr
