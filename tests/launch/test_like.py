"""`run --like FILE` and `port FILE`: what of a batch file becomes a run, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster
from tests.slurm.fake import FakeSlurm, recorded

from .live import script as write_script
from .on_slurm import Site, asked

DDP = """\
import os
import torch

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""
TIME = "#!/bin/bash\n#SBATCH --cpus-per-task=8 --time=00:40:00\n"
FOUR = "#SBATCH -N 4 --ntasks-per-node=1 --gpus-per-node=8\n"
ONE = "#SBATCH --nodes=1 --gpus-per-node=4\n"
HEAD = """\
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
"""
MEET = "--rdzv_backend c10d --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $head:$((10000 + SLURM_JOB_ID))"
ALONE = "torchrun --standalone --nproc-per-node=4 train.py"


@pytest.fixture
def slurm_of_eight(tmp_path: Path) -> FakeSlurm:
    """The recorded Slurm with nine nodes of eight GPUs, which several jobs may share."""
    (tmp_path / "site").mkdir()
    fake = FakeSlurm(tmp_path / "site")
    nodes = recorded("22.05.8/partitions.txt").replace("TotalNodes=3", "TotalNodes=9")
    fake.answers("scontrol show partition", out=nodes.replace("=EXCLUSIVE", "=NO"))
    nodes = recorded("22.05.8/sinfo.txt").replace("booster|3|8|", "booster|9|64|")
    fake.answers("sinfo", out=nodes.replace("gpu:2", "gpu:8"))
    fake.answers("scontrol show config", out=recorded("22.05.8/config.txt"))
    fake.answers("sacctmgr", err="no such plugin", code=1)
    fake.answers("squeue")
    return fake


class User:
    """Somebody with a batch file and a script, in front of that Slurm."""

    def __init__(self, slurm: FakeSlurm, rankup: RunRankup, folder: Path) -> None:
        self.slurm, self.rankup, self.folder = slurm, rankup, folder
        write_script(folder, DDP, "train.py")
        self.file = folder / "job.sbatch"

    def run(
        self, *words: str | Path, code: int = 0, verb: str = "run"
    ) -> subprocess.CompletedProcess[str]:
        done = self.rankup([verb, *words], cwd=self.folder, env=self.slurm.environment)
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def like(self, text: str, *words: str) -> str:
        """The job script of a run like a file of this text; bash can read it."""
        self.file.write_text(text)
        out = self.run("--like", self.file.name, "--dry-run", *words).stdout
        assert subprocess.run(["bash", "-n"], input=out, text=True).returncode == 0
        return out


@pytest.fixture
def user(slurm_of_eight: FakeSlurm, rankup_here: RunRankup, tmp_path: Path) -> User:
    return User(slurm_of_eight, rankup_here, tmp_path / "work")


def set_up(text: str) -> list[str]:
    """The set-up lines of a job script."""
    lines = text.splitlines()
    if not (at := [i for i, one in enumerate(lines) if "this job is like" in one]):
        return []
    return lines[at[0] + 2 : lines.index("trap - EXIT", at[0])]


# (a name, the file, the settings of its job script, its set-up)
RIGHT: list[tuple[str, str, str, list[str]]] = [
    ("options in an array over lines",
     f"{TIME}{FOUR}{HEAD}ARGS=(\n    --nproc_per_node 8\n    --nnodes $SLURM_NNODES {MEET})\n"
     'srun torchrun "${ARGS[@]}" train.py --epochs 3\n', "nodes=4 ranks=8 gpus=8", []),
    ("options in a string",
     f'{TIME}{FOUR}{HEAD}ARGS="--nproc_per_node 8 --nnodes 4 {MEET}"\n'
     "srun torchrun $ARGS train.py --epochs 3\n", "nodes=4 ranks=8 gpus=8", []),
    ("a launcher and a command in strings",
     f'{TIME}{FOUR}{HEAD}export LAUNCHER="python -u -m torch.distributed.run --nnodes 4 \\\n'
     f'    --nproc_per_node 8 {MEET} "\nexport DATA="my data"\n'
     'srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID train.py --epochs 3"\n',
     "nodes=4 ranks=8 gpus=8", ['export DATA="my data"']),
    ("options of the command line",
     f'{TIME}#SBATCH --gpus-per-node=8\ntorchrun "$@" train.py --epochs 3\n',
     "nodes=1 ranks=8 gpus=8", []),
    ("modules and an environment",
     f"{TIME}{ONE}module load Anaconda3\nsource activate torch24\necho now\n"
     f"export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun {ALONE} --epochs 3\n",
     "nodes=1 ranks=4 gpus=4", ["module load Anaconda3", "source activate torch24"]),
    ("a file that is not here",
     f'{TIME}#SBATCH -N 2 --gpus-per-node=8\nsource "$HOME/cluster.env"\n'
     "srun torchrun $LAUNCH_ARGS train.py --epochs 3\n",
     "nodes=2 ranks=8 gpus=8", ['source "$HOME/cluster.env"']),
    ("conda, a function, a branch, a variable that others use, and one for the command alone",
     f"{TIME}{ONE}base=/p/conda\nunused=1\n"
     "set_up() {\n    module load CUDA\n    conda activate torch\n}\n"
     'eval "$($base/bin/conda shell.bash hook)"\nset_up\n'
     "if [ -d /p/cache ]; then\n    export HF_HOME=/p/cache\nfi\n"
     "export MASTER_PORT=7010 NCCL_DEBUG=INFO\n"
     f"OMP_NUM_THREADS=3 srun {ALONE} --epochs 3\n",
     "nodes=1 ranks=4 gpus=4",
     ["base=/p/conda", "set_up() {", "    module load CUDA", "    conda activate torch", "}",
      'eval "$($base/bin/conda shell.bash hook)"', "set_up", "if [ -d /p/cache ]; then",
      "    export HF_HOME=/p/cache", "fi", "export NCCL_DEBUG=INFO", "export OMP_NUM_THREADS=3"]),
    ("conda without its hook, and the nodes of one launch one after the other",
     f"{TIME}#SBATCH -N 2 --gpus-per-node=4\nconda activate torch\n"
     "srun torchrun --nproc_per_node=4 --nnodes=2 --node_rank=0 train.py --epochs 3\n"
     "srun torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 train.py --epochs 3\n",
     "nodes=2 ranks=4 gpus=4", ['eval "$(conda shell.bash hook)"', "conda activate torch"]),
    ("the Python of an environment, by its path",
     f"{TIME}{ONE}/p/venv/bin/python -m torch.distributed.run --standalone --nproc_per_node=4 "
     "train.py --epochs 3\n", "nodes=1 ranks=4 gpus=4", ["export PATH=/p/venv/bin:$PATH"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "settings", "lines"), RIGHT, ids=[n for n, *_ in RIGHT])
def test_the_job_script_is_that_of_the_file(
    user: User, name: str, text: str, settings: str, lines: list[str]
) -> None:
    out = user.like(text)
    assert f"\n{settings} #" in out
    assert f"words=({user.folder / 'train.py'} --epochs 3)" in out
    assert "#SBATCH --time=00:40:00" in out
    assert set_up(out) == lines
    # A Python of its own is not preceded by the one that has written this.
    loads = any(word in " ".join(lines) for word in ("module", "source", "conda", "PATH="))
    assert (f"export PATH={Path(sys.executable).parent}" in out or "activate()" in out) != loads
    assert ('OMP_NUM_THREADS="$((threads' in out) != ("export OMP_NUM_THREADS=3" in lines)
    written = user.folder / "rankup.sbatch"
    written.write_text(out)
    log = next(line for line in out.splitlines() if line.startswith("#SBATCH --output="))
    Path(log.partition("=")[2]).parent.mkdir(parents=True)
    assert user.run(written.name, verb="check").stdout.splitlines()[-1].startswith("nothing found")


def test_directives_have_their_own_options_or_go_through(user: User) -> None:
    text = (
        f"{TIME}#SBATCH -N 1 -J lm -p booster -A abc --gres=gpu:a100:4 --exclude=n7\n"
        f"#SBATCH --mem=60G -o x.out --mail-user=me@example.org --signal=USR2@9 -C fast\n{ALONE}\n"
    )
    out = user.like(text)
    head = [line.removeprefix("#SBATCH ") for line in out.splitlines() if line[:8] == "#SBATCH "]
    for one in ("--job-name=lm", "--partition=booster", "--account=abc", "--nodes=1"):
        assert one in head
    assert head[-4:] == ["--exclude=n7", "--mem=60G", "--constraint=fast", "--gres=gpu:a100:4"]
    assert "--mail-user=me@example.org" in head
    assert "--signal=USR1@60" in head
    assert not any("x.out" in one for one in head)
    for option, gpus in (
        ("--gpus-per-node=h100:2", "h100:2"),
        ("--gres=gpu:2,nvme:1", None),
        ("--gres=nvme:1", ""),
    ):
        out = user.like(f"{TIME}#SBATCH {option}\n{ALONE}\n")
        last = out.split("#SBATCH --requeue\n")[1].splitlines()[0]
        expected = f"gpu:{gpus}" if gpus else "nvme:1" if gpus == "" else "nvme:1,gpu:2"
        assert last == f"#SBATCH --gres={expected}"
    plain = user.like(f"{TIME}#SBATCH --gres=gpu:2\n{ALONE}\n")
    assert plain.count("--gres=") == 1


def test_options_of_the_command_line_win(user: User) -> None:
    text = f"{TIME}{ONE}#SBATCH --exclude=n7\nmodule load CUDA\n{ALONE} --nodes $SLURM_NNODES\n"
    words = ("--nodes", "2", "--time", "5m", "--nproc", "2", "--sbatch=--exclude=n8")
    out = user.like(text, *words)
    assert "\nnodes=2 ranks=2 gpus=2 #" in out
    assert "train.py --nodes 2)" in out
    assert "#SBATCH --time=00:05:00" in out
    assert out.index("--exclude=n7") < out.index("#SBATCH --exclude=n8")
    write_script(user.folder, DDP, "other.py")
    other = user.like(f"{text}python second.py\n", "other.py", "--lr", "1")
    assert f"words=({user.folder / 'other.py'} --lr 1)" in other
    assert set_up(other) == ["module load CUDA"]


def test_a_module_is_started_as_one(user: User) -> None:
    write_script(user.folder / "pkg", DDP, "train.py")
    (user.folder / "pkg" / "__init__.py").touch()
    out = user.like(f"{TIME}{ONE}torchrun --standalone --nproc-per-node=4 -m pkg.train --lr 1\n")
    assert "words=(-m pkg.train --lr 1)" in out


def test_what_is_left_out_is_named(user: User) -> None:
    user.file.write_text(f"{TIME}{ONE}mkdir -p out\nrsync -a data /tmp\n{ALONE}\nmv out done\n")
    done = user.run("--like", "job.sbatch", "--dry-run")
    said = "note: not taken out of job.sbatch: line 4 (mkdir -p out); line 5 (rsync -a data /tmp)"
    assert said in done.stderr
    assert "note: like job.sbatch: --nodes 1 --nproc 4 train.py" in done.stderr


REFUSED: list[tuple[str, str, str]] = [
    ("two programs", f"{TIME}{ONE}python prepare.py\n{ALONE}\n",
     "it starts several programs, prepare.py (line 4) and torchrun train.py (line 5)"),
    ("one program twice", f"{TIME}{ONE}for i in 1 2; do {ALONE}; done\n", "is started 2 times"),
    ("none", f"{TIME}{ONE}echo through\n", "it starts no Python that can be seen"),
    ("an unknown word", f'{TIME}{ONE}{ALONE} --data "$1"\n', "known in the job alone"),
    ("the job's number", f"{TIME}{ONE}{ALONE} --name $SLURM_JOB_ID\n", "known in the job alone"),
    ("a node's name", f"{TIME}{ONE}{HEAD}{ALONE} --url tcp://$head:7\n", "known in the job alone"),
    ("another word in each task",
     f"{TIME}#SBATCH --ntasks-per-node=4 --gpus-per-node=4\n"
     "srun bash -c 'python train.py --rank $SLURM_PROCID'\n", "known in the job alone"),
    ("something unknown decides", f'{TIME}{ONE}if [ "$1" != a ]; then\n{ALONE}\nfi\n',
     "job.sbatch:5: whether it comes to this is known in the job alone"),
    ("a heterogeneous job", f"{TIME}{ONE}#SBATCH hetjob\n#SBATCH -N 1\n{ALONE}\n",
     "it is a heterogeneous job, whose parts are not read"),
    ("an array", f"{TIME}{ONE}#SBATCH --array=0-3\n{ALONE}\n", "it is an array"),
    ("a launcher with settings", f"{TIME}{ONE}accelerate launch train.py\n",
     "accelerate has settings of its own"),
    ("a container", f"{TIME}{ONE}apptainer exec a.sif python train.py\n", "apptainer starts it"),
    ("another folder", f"{TIME}{ONE}cd sub\n{ALONE}\n", "job.sbatch:4: go to sub, and take `cd`"),
    ("no bash", f"{TIME}{ONE}if true; then\n{ALONE}\n", "bash cannot read it"),
    ("a token", f"{TIME}{ONE}export HF_TOKEN=hf_{'x' * 30}\n{ALONE}\n", "holds a token"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_cannot_be_taken_is_said(user: User, name: str, text: str, said: str) -> None:
    user.file.write_text(text)
    done = user.run("--like", "job.sbatch", "--dry-run", code=2)
    assert said in done.stderr
    assert done.stdout == ""


def test_port_writes_the_same_beside_the_file(user: User) -> None:
    text = f"{TIME}{ONE}module load CUDA\n{ALONE} --epochs 3\n"
    out = user.like(text)
    done = user.run("job.sbatch", verb="port")
    port = user.folder / "job_dist.sbatch"
    assert f"wrote {port.name}" in done.stdout
    assert user.file.read_text() == text

    def settings(script: str) -> list[str]:
        lines = script.splitlines()
        return [line for line in lines if "/runs/" not in line and "Made by" not in line]

    assert settings(port.read_text()) == settings(out)
    assert "--force overwrites it" in user.run("job.sbatch", verb="port", code=2).stderr
    assert "-module load CUDA" not in user.run("--diff", "job.sbatch", verb="port").stdout
    user.run("--force", "job.sbatch", verb="port")
    assert "stays as it is" in user.run("--in-place", "job.sbatch", verb="port", code=2).stderr
    assert "rankup has written it" in user.run(port.name, verb="port", code=2).stderr
    assert user.slurm.calls("sbatch") == []


def test_the_port_of_a_script_for_one_gpu_is_started(user: User) -> None:
    write_script(user.folder, "import torch\nmodel = torch.nn.Linear(1, 1)\n", "train.py")
    write_script(user.folder, DDP, "train_dist.py")
    out = user.like(f"{TIME}#SBATCH --gres=gpu:1\npython -u train.py --lr 1\n", "--nproc", "8")
    assert f"words=({user.folder / 'train_dist.py'} --lr 1)" in out


def test_without_slurm_port_of_a_batch_file_says_where_to_go(
    user: User,
) -> None:
    user.file.write_text(f"{TIME}{ONE}{ALONE}\n")
    done = user.rankup(["port", user.file], cwd=user.folder, env={"PATH": "/usr/nowhere"})
    assert done.returncode == 2
    assert "run this on a login node" in done.stderr


def test_check_names_the_way_out_of_an_error(user: User) -> None:
    user.file.write_text(f"{TIME}{ONE}torchrun --standalone --nproc-per-node=8 train.py\n")
    lines = user.run("job.sbatch", verb="check", code=1).stdout.splitlines()
    assert lines[-1] == "`rankup run --like job.sbatch` writes such a script by itself"
    user.file.write_text(f"#!/bin/bash\n{ONE}#SBATCH --cpus-per-task=8\n{ALONE}\n")
    lines = user.run("job.sbatch", verb="check", code=1).stdout.splitlines()
    assert lines[-1] == "found 1 warning"
    # Where it would refuse, it is not named.
    user.file.write_text(f"{TIME}{ONE}accelerate launch --num_processes 8 train.py\n")
    lines = user.run("job.sbatch", verb="check", code=1).stdout.splitlines()
    assert lines[-1] == "found 1 error"


PROBE = """
import json, os, sys
from pathlib import Path
Path(os.environ["RANKUP_RUN_DIR"], "rank" + os.environ["RANK"]).write_text(json.dumps(
    [sys.argv[1:], os.environ["WORLD_SIZE"], os.environ["WHERE"], os.environ["HOW"]]
))
"""


def test_a_run_like_a_file_on_real_nodes(
    slurm: Cluster, rankup_here: RunRankup, tmp_path: Path
) -> None:
    site = Site(slurm, rankup_here, tmp_path)
    write_script(tmp_path, PROBE, "probe.py")
    bin_folder = Path(sys.executable).parent
    (tmp_path / "env.sh").write_text(f'PATH="{bin_folder}:$PATH"\nexport HOW="as it is"\n')
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --job-name=lm\n"
        f"{HEAD}here=my\nexport WHERE=\"$here 'place'\"\nsource ./env.sh\n"
        f"srun torchrun --nnodes 2 --nproc_per_node 2 {MEET} probe.py 'a b' --lr 1\n"
    )
    job, run = site.submit("--like", "job.sbatch")
    site.ended(job, "COMPLETED", run)
    found = slurm.job(job)
    assert (found["NumNodes"], found["JobName"]) == ("2", "lm")
    answers = [json.loads((run / f"rank{at}").read_text()) for at in range(4)]
    assert answers == [[["a b", "--lr", "1"], "4", "my 'place'", "as it is"]] * 4
    kept = json.loads((run / "job.json").read_text())["launch"]["setup"]
    assert kept == ["here=my", "export WHERE=\"$here 'place'\"", "source ./env.sh"]
    assert asked(run) == [str(job)]
    again, _ = site.submit("--resume", str(run))
    site.ended(again, "COMPLETED", run)
    assert "source ./env.sh" in (run / "job.sh").read_text()
