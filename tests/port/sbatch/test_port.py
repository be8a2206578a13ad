"""`port` of a batch script: what changes, what stays, what is refused; and that bash runs it."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.cli import main
from rankup.port.batch import check
from rankup.port.sbatch import block, port

from .scripts import MANY, ONE, TRAIN, beside

# Every command of a job's node, as lines that say what they got.
_FAKES = {
    "scontrol": 'echo "n1"',
    "getent": 'echo "10.0.0.1 STREAM $2"',
    "srun": 'while [ "${1#-}" != "$1" ]; do echo "srun $1"; shift; done; SLURM_NODEID=0 exec "$@"',
    "torchrun": 'echo "torchrun $*"; while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
    "timeout": 'if [ "$2" = bash ]; then exit 1; fi; shift; exec "$@"',
    "python": 'printf "<%s>" "$@"; echo; exit "${FAILS:-0}"',
    "module": "true",
}


def lines_of(path: Path, nodes: int | None = None, gpus: int | None = None) -> tuple[str, str]:
    """What is gone and what is new, without the block itself."""
    done = port(path, nodes, gpus)
    old, new = path.read_text().splitlines(), done.text.splitlines()
    begin = next(i for i, line in enumerate(new) if line.startswith(block.BEGIN))
    end = next(i for i in range(begin + 1, len(new)) if new[i].startswith("# -----"))
    new = new[:begin] + new[end + 1 :]
    diff = list(difflib.ndiff(old, new))
    gone = "\n".join(line[2:] for line in diff if line.startswith("- "))
    return gone, "\n".join(line[2:] for line in diff if line.startswith("+ ") and line[2:])


def test_the_diff_of_a_script_for_one_gpu(tmp_path: Path) -> None:
    path = beside(tmp_path, ONE)
    gone, new = lines_of(path, gpus=4)
    assert gone == "\n".join(
        [
            "#SBATCH -N 1 --gres=gpu:1   # one of four",
            "#SBATCH --ntasks=1",
            "#SBATCH --cpus-per-task=12",
            "#SBATCH --mem=60G",
            "export CUDA_VISIBLE_DEVICES=0",
            'srun --label python -u train.py --data "$SCRATCH/my data" \\',
        ]
    )
    assert new == "\n".join(
        [
            "#SBATCH -N 2 --gres=gpu:4   # one of four",
            "#SBATCH --cpus-per-task=48",
            "#SBATCH --mem=240G",
            "#SBATCH --ntasks-per-node=1",
            "# rankup port: export CUDA_VISIBLE_DEVICES=0",
            'on_all_gpus python -u train_dist.py --data "$SCRATCH/my data" \\',
            "rankup_status=$? # a failed run is a failed job",
            "exit $rankup_status",
        ]
    )
    done = port(path, gpus=4)
    assert done.path == tmp_path / "job_dist.sbatch"
    said = "\n".join(done.notes)
    for words in ("left out of srun: --label", "CUDA_VISIBLE_DEVICES", "rankup port train.py"):
        assert words in said
    assert path.read_text() == ONE  # nothing is written


def test_a_second_time_changes_nothing_and_finds_nothing(tmp_path: Path) -> None:
    done = port(beside(tmp_path, ONE), gpus=4)
    done.path.write_text(done.text)
    again = port(done.path)
    assert (again.text, again.changed) == (done.text, False)
    (tmp_path / "train_dist.py").touch()
    assert check(done.path) == []
    assert subprocess.run(["bash", "-n", done.path], check=False).returncode == 0
    linted = ["shellcheck", "--severity=warning", "--exclude=SC1091", str(done.path)]
    assert subprocess.run(linted, check=False).returncode == 0


def test_an_edited_port_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = beside(tmp_path, ONE)
    made = tmp_path / "job_dist.sbatch"
    monkeypatch.setattr("sys.argv", ["rankup", "port", str(path)])
    with pytest.raises(SystemExit):
        main()
    made.write_text(made.read_text() + "# mine\n")
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert made.read_text().endswith("# mine\n")


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """An environment in which the commands of a job say what they were given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in _FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "123",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_CPUS_PER_TASK": "48",
        "SLURM_GPUS_ON_NODE": "4",
        "SCRATCH": "/a b",
    }


def ran(path: Path, env: dict[str, str], fails: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", path], env={**env, "FAILS": str(fails)}, cwd=path.parent, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def test_bash_runs_it(tmp_path: Path, fakes: dict[str, str]) -> None:
    done = port(beside(tmp_path, ONE), gpus=4)
    done.path.write_text(done.text)
    found = ran(done.path, fakes)
    assert found.returncode == 0, found.stderr
    assert "<-u><train_dist.py><--data></a b/my data><--epochs><3>" in found.stdout
    assert "--nnodes=2 --nproc-per-node=gpu" in found.stdout
    assert "--node-rank=0 --master-addr=10.0.0.1 --master-port=10123" in found.stdout
    assert "--no-python -- python -u" in found.stdout
    assert "srun --ntasks=2" in found.stdout
    failed = ran(done.path, fakes, fails=3)
    assert failed.returncode == 3
    assert failed.stdout.endswith("through\n")


# How the line is written that starts the script -> what it becomes.
SHAPES = [
    ("python train.py", "on_all_gpus python train_dist.py"),
    ("python3 -u ./train.py -x 1", "on_all_gpus python3 -u ./train_dist.py -x 1"),
    ("CUDA_VISIBLE_DEVICES=0 python train.py", "on_all_gpus python train_dist.py"),
    ("env CUDA_VISIBLE_DEVICES=0 python train.py", "on_all_gpus env python train_dist.py"),
    ("exec python train.py", "on_all_gpus python train_dist.py"),
    ("A=1 time srun -n1 python train.py", "time A=1 on_all_gpus python train_dist.py"),
    ("time -p python train.py", "time -p on_all_gpus python train_dist.py"),
    ("time srun -n1 python train.py", "time on_all_gpus python train_dist.py"),
    ("time A=1 CUDA_VISIBLE_DEVICES=0 python train.py",
     "time A=1 on_all_gpus python train_dist.py"),
    ("A=1 B='x y' python train.py", "A=1 B='x y' on_all_gpus python train_dist.py"),
    ("timeout 30m python train.py", "on_all_gpus timeout 30m python train_dist.py"),
    ("srun env A=1 python train.py > o.txt", "on_all_gpus env A=1 python train_dist.py > o.txt"),
    ("torchrun --standalone train.py -x", "on_all_gpus python -u train_dist.py -x"),
    ("srun torchrun --nproc_per_node=4 train.py", "on_all_gpus python -u train_dist.py"),
    ("srun bash -c 'python train.py -x $A'", "on_all_gpus bash -c 'python train_dist.py -x $A'"),
    ('python "$HERE/train.py"', 'on_all_gpus python "$HERE/train_dist.py"'),
    ("for i in 1 2; do python train.py $i; done",
     "for i in 1 2; do on_all_gpus python train_dist.py $i; done"),
    ("python train.py --log train.py.log", "on_all_gpus python train_dist.py --log train.py.log"),
    ("python train.py 2> err.txt --lr 1", "on_all_gpus python train_dist.py 2> err.txt --lr 1"),
    ("if ! python train.py; then echo no; fi",
     "if ! on_all_gpus python train_dist.py; then echo no; fi"),
]  # fmt: skip


def test_how_a_script_is_started(tmp_path: Path) -> None:
    """`check` has nothing to say of the port, and still sees what it starts."""
    head = "#!/bin/bash\n#SBATCH --gres=gpu:1 --cpus-per-task=8"
    for line, becomes in SHAPES:
        done = port(beside(tmp_path, f"{head} --time=1:00:00\n{line}\n"))
        done.path.write_text(done.text.replace(" --time=1:00:00", ""))
        (tmp_path / "train_dist.py").touch()
        assert [one.code for one in check(done.path)] == ["RK155"], line
        (tmp_path / "train_dist.py").unlink()
        assert done.text.splitlines()[-1] == becomes
        bash = subprocess.run(["bash", "-n"], input=done.text, text=True, check=False)
        assert bash.returncode == 0, line


def test_a_pipe_keeps_its_status(tmp_path: Path, fakes: dict[str, str]) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py 2>&1 | tee log.txt\n"
    done = port(beside(tmp_path, text))
    done.path.write_text(done.text)
    assert ran(done.path, fakes, fails=5).returncode == 5
    assert "<train_dist.py>" in (tmp_path / "log.txt").read_text()
    path = beside(tmp_path, text + "echo through\n")
    done = port(path)
    done.path.write_text(done.text)
    assert "RK160" not in {one.code for one in check(done.path)}
    found = ran(done.path, fakes, fails=5)
    assert found.returncode == 5
    assert found.stdout.endswith("through\n")


DIRECTIVES = [
    ("--gres=gpu:a100:1", "--gres=gpu:a100:4"),
    ("--gres=gpu", "--gres=gpu:4"),
    ("--gpus-per-node=1", "--gpus-per-node=4"),
    ("--gpus=1", "--gpus-per-node=4"),
    ("-G a100:1", "--gpus-per-node=a100:4"),
    ("--gpus-per-task=1 --ntasks=1", "--gpus-per-node=4"),
    ("--gres=craynetwork:1,gpu:1", "--gres=craynetwork:1,gpu:4"),
    ("--gres=gpu:1 # not --gres=gpu:2", "--gres=gpu:4 # not --gres=gpu:2"),
]


@pytest.mark.parametrize(("one", "many"), DIRECTIVES)
def test_gpus_are_asked_for_in_many_ways(tmp_path: Path, one: str, many: str) -> None:
    text = f"#!/bin/bash\n#SBATCH {one}\n#SBATCH --nodes=3 --exclusive\npython train.py\n"
    _, new = lines_of(beside(tmp_path, text), gpus=4)
    assert new.splitlines()[0] == f"#SBATCH {many}"
    assert "#SBATCH --ntasks-per-node=1" in new
    assert "--nodes=3 --exclusive" not in new  # it stays


def test_cores_that_were_asked_for_as_tasks_are_kept(tmp_path: Path) -> None:
    for asked in ("-n 8", "--ntasks-per-node=4 -c 2", "-c 8"):
        text = f"#!/bin/bash\n#SBATCH {asked} --gres=gpu:1\npython train.py\n"
        _, new = lines_of(beside(tmp_path, text), gpus=4)
        assert re.search(r"(--cpus-per-task=|-c )32\b", new)


def test_what_hides_gpus_is_named_where_it_cannot_go(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\n{}\npython train.py\n"
    last = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\nCUDA_VISIBLE_DEVICES=0 "
    tail = port(beside(tmp_path, last)).text.splitlines()[-2:]
    assert tail == ["# rankup port: CUDA_VISIBLE_DEVICES=0", "exit $rankup_status"]
    for line in ("export CUDA_VISIBLE_DEVICES=0; cd x", "if a; then CUDA_VISIBLE_DEVICES=0; fi"):
        done = port(beside(tmp_path, text.format(line)))
        assert f"\n{line}\n" in done.text
        assert any("line 3: CUDA_VISIBLE_DEVICES hides GPUs" in note for note in done.notes)


def test_without_a_slurm_the_partition_tells_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    text = "#!/bin/bash\n#SBATCH -p dc-gpu --gres=gpu:1\npython train.py\n"
    done = port(beside(tmp_path, text))
    assert "#SBATCH -p dc-gpu --gres=gpu:4" in done.text
    assert "#SBATCH --cpus-per-task=128" in done.text
    assert "suffix=i" in done.text
    assert "JURECA-DC" in done.notes[0]


def test_which_of_several_trains(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython prepare.py\npython train.py\n"
    (tmp_path / "prepare.py").write_text("import torch\ntokenizer.train(files)\n")
    done = port(beside(tmp_path, text))
    assert done.text.endswith("\npython prepare.py\non_all_gpus python train_dist.py\n")
    (tmp_path / "train.py").write_text(f"import rankup\nrankup.setup()\n{TRAIN}")  # in place
    assert port(tmp_path / "job.sbatch").text.endswith("on_all_gpus python train.py\n")


def test_a_script_behind_a_variable_is_named(tmp_path: Path) -> None:
    """Every rank would run the script for one GPU, and nothing said so."""
    text = '#!/bin/bash\n#SBATCH --gres=gpu:1\nSCRIPT="{}"\npython "$SCRIPT"\n'
    for name, said in (("train.py", True), ("train_dist.py", False)):
        done = port(beside(tmp_path, text.format(name)))
        assert any("line 4: $SCRIPT (train.py) stays" in note for note in done.notes) is said


def test_a_script_that_needs_no_port_keeps_its_name(tmp_path: Path) -> None:
    """`rankup port` of a script for Lightning makes none, and one for DDP by hand neither."""
    job = beside(tmp_path, "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\n")
    path = tmp_path / "train.py"
    path.write_text("import torch, lightning as L\nt = L.Trainer()\nt.fit(model, loader)\n")
    done = port(job)
    assert done.text.endswith("\non_all_gpus python train.py\n")
    assert any("train.py stays: the script uses Lightning" in note for note in done.notes)
    path.write_text(f"import torch.distributed as d\nd.init_process_group()\n{TRAIN}")
    assert port(job).text.endswith("\non_all_gpus python train.py\n")
    path.write_text("import torch\nprint(torch.ones(1))\n")
    assert any("is to be written by hand" in note for note in port(job).notes)


REFUSED = [
    (ONE.replace("--ntasks=1", "--array=0-3"), "job array"),
    (ONE.replace("--ntasks=1", "hetjob"), "heterogeneous"),
    (ONE.replace("python -u train.py", "accelerate launch train.py"), "launcher of its own"),
    (ONE.replace("python", "apptainer exec i.sif python"), "--container"),
    (ONE.replace("-u train.py", "- <<EOF\nEOF\ntrue"), "starts no Python script"),
    (ONE.replace("long\n", "long\n&\n").replace("   # long\n&", " & kill $!"), "in the background"),
    (ONE.replace("   # long", " &\npython train.py &\nwait"), "in the background"),
    (ONE.replace("--ntasks=1", "--ntasks=4"), "several times already"),
    (ONE.replace("#SBATCH", "##SBATCH"), "no #SBATCH line"),
    (ONE.replace("#!/bin/bash", "#!/bin/csh"), "no bash"),
    (ONE.replace("\n", "\r\n"), "Windows"),
    (ONE + 'echo "\n', "bash cannot read it"),
    (ONE + "<<<<<<< HEAD\n=======\n>>>>>>> b\n", "conflict markers"),
    (ONE + "python other.py\n", None),
    ("#!/bin/bash\n#SBATCH -N1\npython a.py\npython b.py\n", "cannot be told"),
    (MANY, "several nodes already"),
    (ONE.replace("python -u", "nsys profile -o a python"), "nsys profiles it"),
    (ONE.replace("python -u", "uv run"), "uv starts it in an environment of its own"),
    (ONE.replace("\nsrun --label", '\nrun() { "$@"; }\nrun'), "the function run starts it"),
    (
        ONE.replace("python -u train.py", "bash -c 'cp train.py x; python train.py'"),
        "not named once",
    ),
    (
        ONE.replace("python -u train.py", '"${RUN[@]}"').replace(
            "\nsrun", "\nRUN=(python a.py)\nsrun"
        ),
        "in a variable",
    ),
    (ONE.replace("--label", "--container-image=a#b"), "--container IMAGE"),
    (ONE.replace("python -u train.py", "bash -c 'torchrun train.py'"), "by a shell"),
    (ONE.replace("srun --label", "srun --label 2>err.txt"), "redirection"),
    (ONE + "for name do echo; done\n", "port cannot"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_is_refused(tmp_path: Path, text: str, why: str | None) -> None:
    path = beside(tmp_path, text)
    if why is None:
        assert "\npython other.py\n" in port(path).text
        return
    with pytest.raises(UserError, match=why):
        port(path)
    assert list(tmp_path.glob("*_dist*")) == []


def test_the_status_is_kept_behind_a_here_document(tmp_path: Path, fakes: dict[str, str]) -> None:
    """The line that keeps it stands behind the text, not in it."""
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py <<EOF\nyes\nEOF\necho end\n"
    done = port(beside(tmp_path, text))
    done.path.write_text(done.text)
    found = ran(done.path, fakes, fails=4)
    assert found.returncode == 4
    assert found.stdout.endswith("end\n")


def test_the_status_of_a_run_is_kept_before_another_script(
    tmp_path: Path, fakes: dict[str, str]
) -> None:
    """Either of them fails the job."""
    (tmp_path / "evaluate.py").write_text("import torch\n")
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\npython evaluate.py\n"
    done = port(beside(tmp_path, text))
    for fails, code in (("train", 3), ("evaluate", 3), ("none", 0)):
        done.path.write_text(done.text)
        body = f'case "$*" in *{fails}*) exit 3;; esac'
        (tmp_path / "bin" / "python").write_text(f"#!/bin/bash\n{body}\n")
        assert ran(done.path, fakes).returncode == code


def test_a_run_that_is_waited_for_may_be_in_the_background(
    tmp_path: Path, fakes: dict[str, str]
) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\ntrap 'touch x' TERM\npython train.py &\nwait $!\n"
    done = port(beside(tmp_path, text))
    assert "\non_all_gpus python train_dist.py &\n" in done.text
    done.path.write_text(done.text)
    assert ran(done.path, fakes, fails=4).returncode == 4


def test_a_line_that_goes_on_keeps_the_lines_below(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun \\\n  --label \\\n  python train.py\n"
    done = port(beside(tmp_path, text + "export CUDA_VISIBLE_DEVICES=0\n"))
    tail = done.text.splitlines()
    assert "# rankup port: export CUDA_VISIBLE_DEVICES=0" in tail
    assert subprocess.run(["bash", "-n"], input=done.text, text=True, check=False).returncode == 0
    assert "on_all_gpus \\\n\\\npython train_dist.py\n" in done.text
