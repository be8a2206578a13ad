"""What a batch file would start, and what is wrong with it: a file of each kind that is posted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankup.port.batch import examine
from rankup.port.batch.allocation import Allocation
from rankup.port.batch.answers import answer
from rankup.port.batch.script import load
from rankup.port.batch.table import Table, table
from tests.conftest import RunRankup

# A DDP script that reads what torchrun sets; one of Lightning; one with an option of old.
DDP = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
"""
LIGHTNING = "import lightning as L\n\ntrainer = L.Trainer(devices=4, num_nodes=2)\n"
OLD = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
"""
NODE = """\
torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR \\
    --master_port=$MASTER_PORT "$@" train.py
"""
TIME = "#!/bin/bash\n#SBATCH --time=02:00:00 --cpus-per-task=8\n"
TWO = "#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4\n"
FOUR = "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
ONE = "#SBATCH --nodes=1 --gres=gpu:4\n"
MEET = """\
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
"""
ENDPOINT = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
STATIC = "--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"
TOLD = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
ALONE = "torchrun --standalone --nproc-per-node=4 train.py"


def written(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text(DDP)
    (folder / "lit.py").write_text(LIGHTNING)
    (folder / "old.py").write_text(OLD)
    (folder / "node.sh").write_text(NODE)
    path = folder / "job.sbatch"
    path.write_text(text)
    return path


def tabled(folder: Path, text: str) -> Table:
    return table(load(written(folder, text)))


# (a name, the file, how many ranks it starts; None where that is not to be known)
RIGHT: list[tuple[str, str, int | None]] = [
    ("options in an array",
     f"{TIME}{TWO}{MEET}ARGS=(--nnodes 2\n  --nproc_per_node 4\n  {ENDPOINT})\n"
     'srun torchrun "${ARGS[@]}" train.py\n', 8),
    ("options in a string",
     f'{TIME}{TWO}{MEET}ARGS="--nnodes $SLURM_NNODES --nproc_per_node 4 {ENDPOINT}"\n'
     "srun torchrun $ARGS train.py\n", 8),
    ("a launcher and a script in strings, put together in the task",
     f'{TIME}{TWO}{MEET}L="python -m torch.distributed.run --nproc_per_node 4 --nnodes 2 '
     f'{ENDPOINT}"\n'
     'srun --jobid $SLURM_JOB_ID bash -c "$L --node_rank \\$SLURM_PROCID train.py"\n', 8),
    ("options from the command line", f'{TIME}{ONE}torchrun "$@" train.py\n', None),
    ("options from a file elsewhere",
     f'{TIME}{TWO}{MEET}source "$HOME/not/there.env"\nsrun torchrun $ARGS train.py\n', None),
    ("a branch by an argument",
     f"{TIME}{ONE}case $1 in small) N=2 ;; *) N=1 ;; esac\n"
     "torchrun --standalone --nproc-per-node=$N train.py\n", 1),
    ("activate, found in PATH",
     f"{TIME}{ONE}module load Anaconda3\nsource activate torch\n{ALONE}\n", 4),
    ("conda's hook", f'{TIME}{ONE}eval "$(conda shell.bash hook)"\nconda activate x\n{ALONE}\n', 4),
    ("conda's file", f"{TIME}{ONE}. ~/c/etc/profile.d/conda.sh\nconda activate x\n{ALONE}\n", 4),
    ("a function around srun",
     f'{TIME}{TWO}{MEET}run() {{ srun "$@"; }}\n'
     f"run torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc-per-node gpu {ENDPOINT} train.py\n", 8),
    ("a node each, side by side",
     f"{TIME}{TWO}{MEET}nodes=($(scontrol show hostnames))\nfor i in 0 1; do\n"
     "  srun -N1 -n1 -w ${nodes[$i]} torchrun --nnodes=2 --node_rank=$i --nproc_per_node=4 "
     f"{STATIC} train.py &\ndone\nwait\n", 4),
    ("a container", f"{TIME}{TWO}{MEET}srun apptainer exec --nv a.sif bash -c "
     f'"torchrun --nnodes=2 --nproc_per_node=4 {ENDPOINT} train.py"\n', 8),
    ("a rank for each task", f"{TIME}{FOUR}{MEET}srun bash -c '{TOLD} python train.py'\n", 8),
    ("accelerate, told within the task",
     f"{TIME}{TWO}{MEET}srun bash -c 'accelerate launch --multi_gpu --num_processes 8 "
     "--num_machines 2 --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR "
     "--main_process_port $MASTER_PORT train.py'\n", 8),
    ("an address and a port that are asked for",
     f"{TIME}{TWO}{MEET}ip=$(srun -N1 -n1 hostname --ip-address | awk '{{print $1}}')\n"
     "port=$(python -c 'import socket; print(socket.socket().getsockname()[1])')\n"
     "srun torchrun --nnodes=2 --nproc_per_node=$(nvidia-smi -L | wc -l) --rdzv_backend=c10d "
     "--rdzv_id=$RANDOM --rdzv_endpoint=$ip:$port train.py\n", 8),
    ("a signal, a trap, and a wait",
     f"{TIME}{ONE}#SBATCH --signal=B:USR1@120\n{MEET}"
     "trap 'scontrol requeue $SLURM_JOB_ID' SIGUSR1\n"
     f"srun {ALONE} &\nwait\n", 4),
    ("a program by its path", f"{TIME}{ONE}/opt/x/bin/python -m torch.distributed.run "
     "--standalone --nproc-per-node=4 train.py\n", 4),
    ("a script that a task reads",
     f"{TIME}{TWO}{MEET}srun bash <<'EOF'\ntorchrun --nnodes=2 --node_rank=$SLURM_NODEID "
     f"--nproc_per_node=4 {STATIC} train.py\nEOF\n", 8),
    ("a file that a task executes",
     f"{TIME}{TWO}{MEET}srun bash node.sh --nproc_per_node=4\n", 8),
    ("a loop that waits",
     f"{TIME}{ONE}#SBATCH --signal=B:TERM@120\n{MEET}trap 'echo' TERM\nsrun {ALONE} &\npid=$!\n"
     "while kill -0 $pid; do wait $pid; done\n", 4),
    ("tasks on nodes that Slurm chooses",
     f"{TIME}#SBATCH --ntasks=4 --gpus-per-task=1\n{MEET}"
     f"srun bash -c '{TOLD} python train.py'\n", 4),
    ("a log, a pipe, errors that end it",
     f"{TIME}{TWO}set -euo pipefail\nmkdir -p out; cd $SLURM_SUBMIT_DIR || exit 1\n{MEET}"
     f"srun torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py 2>&1 | tee out/log\n", 8),
    ("accelerate in a string, its rank in the task",
     f'{TIME}{TWO}{MEET}L="accelerate launch --num_processes $((SLURM_NNODES * 4)) '
     "--num_machines $SLURM_NNODES --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
     '"\nsrun bash -c "$L --machine_rank \\$SLURM_PROCID train.py"\n', 8),
    ("defaults, a trap at the end, functions",
     f"{TIME}{TWO}set -euo pipefail\n{MEET}N=${{SLURM_NNODES:-1}}\n: ${{GPUS:=4}}\n"
     'die() { echo "$@" >&2; exit 1; }\n[[ -n $N ]] || die none\ntrap "rm -f x" EXIT\n'
     'main() {\n  srun torchrun --nnodes="$N" --nproc-per-node="$GPUS" '
     f'{ENDPOINT} train.py "${{@:-}}"\n  echo through\n}}\nmain "$@"\n', 8),
    ("a trap that hands the signal on and puts the job back",
     f"{TIME}{ONE}#SBATCH --signal=B:USR1@120\n{MEET}"
     'again() { kill -TERM "$p"; wait "$p"; scontrol requeue "$SLURM_JOB_ID"; exit 0; }\n'
     f'trap again USR1\nsrun {ALONE} &\np=$!\nwait "$p"\nrc=$?\nexit $rc\n', 4),
    ("a run that is tried again",
     f"{TIME}{ONE}for i in 1 2; do\n  {ALONE} && break\n  sleep 60\ndone\n", 4),
    ("the first node's address, and seeds one after the other",
     f"{TIME}{TWO}{MEET}ip=$(getent hosts $MASTER_ADDR | awk '{{ print $1 }}')\n"
     "for s in 1 2; do\n  srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d "
     "--rdzv-id=$s --rdzv-endpoint=$ip:$MASTER_PORT train.py --seed $s\ndone\necho through\n", 8),
    ("words that may be left empty", f"{TIME}{ONE}{ALONE} $EXTRA --epochs 3 ${{MORE}}\n", 4),
    ("words in an array, by exec",
     f'{TIME}{ONE}set -eu\nA=("--nnodes=1" "--nproc-per-node=4")\n'
     'exec torchrun --standalone "${A[@]}" train.py "$@"\n', 4),
    ("a failed run is asked about",
     f"{TIME}{ONE}if ! {ALONE}; then\n  echo failed\n  exit 1\nfi\necho through\n", 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ranks"), [one[1:] for one in RIGHT], ids=[one[0] for one in RIGHT]
)
def test_a_file_that_is_right_has_no_finding(text: str, ranks: int | None, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    shown, findings = examine(path)
    assert not findings
    [step] = {one.line: one for one in table(load(path)).steps}.values()
    assert (None if None in (step.ranks, step.count) else step.ranks * step.count) == ranks  # type: ignore[operator]
    assert not shown[0].startswith("read only")


# (a name, the code, the line, the file)
WRONG: list[tuple[str, str, int, str]] = [
    ("one task wins over two per node", "RK161", 7,
     f"{TIME}#SBATCH --nodes=1 --ntasks=1 --ntasks-per-node=2 --gres=gpu:2\n{MEET}"
     f"srun bash -c '{TOLD} python train.py'\n"),
    ("fewer ranks than GPUs", "RK161", 7,
     f"{TIME}#SBATCH --nodes=2 --ntasks=4 --gres=gpu:4\n{MEET}"
     f"srun bash -c '{TOLD} python train.py'\n"),
    ("--gpus is of the job", "RK162", 7,
     f"{TIME}#SBATCH -N 2 -G 4 --ntasks-per-node 1\n{MEET}"
     f"srun torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("more ranks than GPUs", "RK162", 7,
     f"{TIME}{TWO}{MEET}srun torchrun --nnodes=2 --nproc-per-node=8 {ENDPOINT} train.py\n"),
    ("srun --gres", "RK162", 7,
     f"{TIME}{TWO}{MEET}"
     f"srun --gres=gpu:1 torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("--gpus-per-task and one task", "RK162", 7,
     f"{TIME}#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-task=1\n{MEET}"
     f"srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("--gpus-per-task and a local rank", "RK162", 7,
     f"{TIME}#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-task=1\n{MEET}"
     f"srun bash -c '{TOLD} python train.py'\n"),
    ("a torchrun for each task, by the synonym", "RK162", 7,
     f"{TIME}#SBATCH --nodes=2 --tasks-per-node=2 --gres=gpu:2\n{MEET}"
     f"srun torchrun --nnodes=2 --nproc-per-node=2 {ENDPOINT} train.py\n"),
    ("srun python", "RK158", 7, f"{TIME}{FOUR}{MEET}srun python train.py\n"),
    ("python alone", "RK158", 4, f"{TIME}{ONE}python train.py\n"),
    ("Lightning without srun", "RK158", 4, f"{TIME}{FOUR}python lit.py\n"),
    ("--local_rank under torchrun", "RK158", 4,
     f"{TIME}{ONE}torchrun --standalone --nproc-per-node=4 old.py\n"),
    ("hostname in the task", "RK164", 7,
     f"{TIME}{TWO}{MEET}srun bash -c 'torchrun --nnodes=2 --nproc-per-node=4 "
     "--node-rank=$SLURM_NODEID --master-addr=$(hostname) --master-port=$MASTER_PORT train.py'\n"),
    ("hostname in the task's variables", "RK164", 7,
     f"{TIME}{FOUR}{MEET}srun bash -c 'MASTER_ADDR=$(hostname -s) {TOLD} python train.py'\n"),
    ("a cut list of nodes", "RK164", 8,
     f"{TIME}{TWO}{MEET}MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d, -f1)\n"
     f"srun torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("localhost", "RK164", 8,
     f"{TIME}{TWO}{MEET}MASTER_ADDR=localhost\n"
     f"srun torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("a port that each node draws", "RK164", 7,
     f"{TIME}{TWO}{MEET}srun bash -c 'torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d "
     "--rdzv-id=1 --rdzv-endpoint=$MASTER_ADDR:$((20000 + RANDOM)) train.py'\n"),
    ("two sruns, one after the other", "RK164", 7,
     f"{TIME}{TWO}{MEET}srun -N1 -n1 torchrun --nnodes=2 --node_rank=0 --nproc_per_node=4 {STATIC} "
     "train.py\n"
     f"srun -N1 -n1 torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 {STATIC} train.py\n"),
    ("srun -N1 for two nodes", "RK163", 7,
     f"{TIME}{TWO}{MEET}srun -N1 -n1 torchrun --nnodes=2 --nproc-per-node=4 {ENDPOINT} train.py\n"),
    ("accelerate without srun", "RK163", 7,
     f"{TIME}{TWO}{MEET}accelerate launch --num_processes 8 --num_machines 2 --machine_rank 0 "
     "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py\n"),
    ("a number that arrives as letters", "RK157", 7,
     f"{TIME}{TWO}{MEET}srun accelerate launch --num_processes 8 --num_machines 2 --machine_rank "
     "\\$SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py\n"),
    ("a number in a variable of the batch shell", "RK157", 8,
     f"{TIME}{TWO}{MEET}NODE_RANK=$SLURM_NODEID\n"
     f"srun torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK {STATIC} train.py\n"),
    ("a container on each node by itself", "RK164", 7,
     f"{TIME}{TWO}{MEET}srun apptainer exec --nv a.sif {ALONE}\n"),
    ("hostname as a default in the task", "RK164", 7,
     f"{TIME}{FOUR}{MEET}srun bash -c 'unset MASTER_ADDR; "
     f"export MASTER_ADDR=${{MASTER_ADDR:-$(hostname)}}; {TOLD} python train.py'\n"),
    ("ranks that the batch shell sets", "RK157", 7,
     f"{TIME}{FOUR}{MEET}export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=8\n"
     "srun python train.py\n"),
    ("a run that fails unseen, in a function", "RK160", 5,
     f"{TIME}{ONE}main() {{\n  {ALONE}\n  echo through\n}}\nmain\n"),
    ("a pipe, and set -e alone", "RK160", 5, f"{TIME}{ONE}set -e\n{ALONE} | tee log\n"),
    ("a trap behind a function in the foreground", "RK168", 9,
     f"{TIME}{ONE}#SBATCH --signal=B:USR1@300\n{MEET}trap 'echo' USR1\n"
     f"run() {{ srun {ALONE}; }}\nrun\n"),
    ("a signal without a trap", "RK168", 4, f"{TIME}{ONE}#SBATCH --signal=B:USR1@300\n{ALONE}\n"),
    ("a trap for another signal", "RK168", 4,
     f"{TIME}{ONE}#SBATCH --signal=B:USR2@300\ntrap 'echo' USR1\n{ALONE} &\nwait\n"),
    ("a trap behind a run in the foreground", "RK168", 9,
     f"{TIME}{ONE}#SBATCH --signal=B:USR1@300\n{MEET}trap 'echo' USR1\nsrun {ALONE}\n"),
    ("a signal before the beginning", "RK168", 4,
     f"{TIME}{ONE}#SBATCH --signal=B:USR1@9000\ntrap 'echo' USR1\n{ALONE} &\nwait\n"),
    ("a script without a handler", "RK168", 4,
     f"{TIME}{ONE}#SBATCH --signal=USR1@300\n{MEET}srun {ALONE}\n"),
    ("conda before its hook", "RK180", 4, f"{TIME}{ONE}conda activate x\n{ALONE}\n"),
    ("a variable of another option", "RK190", 4,
     f"{TIME}{ONE}torchrun --standalone --nproc-per-node=$SLURM_GPUS_PER_NODE train.py\n"),
    ("a variable of a slip", "RK190", 7,
     f"{TIME}{TWO}{MEET}srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d "
     "--rdzv-id=1 --rdzv-endpoint=$MASTER_ADDR:$MASTER_PROT train.py\n"),
    ("a misspelt directive", "RK151", 4, f"{TIME}{ONE}#SABTCH --exclusive\n{ALONE}\n"),
    ("a directive without its #", "RK151", 3, f"{TIME}SBATCH -G4\n#SBATCH -N 2\n{ALONE}\n"),
    ("a first line without its #", "RK153", 1, f"{TIME[1:]}#SBATCH -N 2\n{ALONE}\n"),
    ("a first line without its !", "RK153", 1, f"#{TIME[2:]}#SBATCH -N 2\n{ALONE}\n"),
    ("a fixed port", "RK156", 7,
     f"{TIME}{TWO}{MEET}PORT=29500\nsrun torchrun --nnodes=2 --nproc-per-node=4 "
     "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$MASTER_ADDR:$PORT train.py\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "line", "text"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
def test_a_file_that_is_wrong_has_the_finding_on_its_line(
    code: str, line: int, text: str, tmp_path: Path
) -> None:
    found = [
        (one.code, int(one.place.rpartition(":")[2])) for one in examine(written(tmp_path, text))[1]
    ]
    assert (code, line) in found
    assert {one for one, _ in found} == {code}


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["-d ", "-f1"], "n1"),
        (["-d", " ", "-f", "2"], "n2"),
        (["--delimiter=:", "--fields=2"], "n1 n2 n3"),  # a line without it is whole
        (["-c1-2"], "n1"),
        (["-c", "4"], "n"),
        (["-d ", "-f1-2"], None),
        (["-d ", "-f2-"], None),
        (["-c2-"], None),
        (["-c-2"], None),
        (["-d ", "-f1", "hosts.txt"], None),
        (["-s", "-d ", "-f1"], None),
    ],
)
def test_what_cut_prints_is_known_of_one_field_or_closed_letters(
    words: list[str], printed: str | None
) -> None:
    job = Allocation({}, 3, 3, 4, None, None)
    said = answer(job, 0, "n1", "n1 n2 n3\n", ["cut", *words], "?")
    assert said == f"{printed or '?'}\n"


def test_the_table_says_what_every_node_computes(tmp_path: Path) -> None:
    found = tabled(
        tmp_path,
        f"{TIME}{FOUR}{MEET}module load Python\n"
        "srun --ntasks-per-node=1 bash -c 'torchrun --nnodes=2 "
        f"--node-rank=$SLURM_NODEID --nproc-per-node=4 {STATIC} train.py'\n",
    )
    [step] = found.steps
    assert (step.nodes, step.each, step.gpus, step.ranks, step.count) == (2, 1, 4, 4, 2)
    assert [(one.node, one.address, one.rank) for one in step.places] == [
        (0, "n1", "0"),
        (1, "n1", "1"),
    ]
    assert list(found.lines()) == [
        "line 8: torchrun train.py: 2 nodes x 1 task x 4 GPUs -> 8 ranks, "
        f"meet at n1:{step.places[0].port}",
        "set-up: module load Python",
    ]


def test_a_job_of_several_parts_is_said_not_to_be_read(tmp_path: Path) -> None:
    text = f"{TIME}#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2\nsrun a.py : python b.py\n"
    shown, findings = examine(written(tmp_path, text))
    assert "heterogeneous job, whose parts are not read" in shown[0]
    assert not findings


def test_what_another_sbatch_reads_is_no_directive_of_the_file(tmp_path: Path) -> None:
    text = f"#!/bin/bash\nset -x\nsbatch <<EOT\n{TIME}srun python train.py\nEOT\n"
    assert examine(written(tmp_path, text))[1] == []


def test_of_a_file_that_goes_round_nothing_is_concluded(tmp_path: Path) -> None:
    """Its end may start what seems to be missing."""
    text = f"{TIME}{FOUR}python lit.py\nwhile :; do :; done\n"
    shown, findings = examine(written(tmp_path, text))
    assert shown[0].startswith("given up, since it goes round")
    assert "RK163" not in {one.code for one in findings}


def test_a_sourced_file_beside_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export ARGS='--standalone --nproc-per-node=8'\n")
    text = f"{TIME}{ONE}source env.sh\ntorchrun $ARGS train.py\n"
    assert [one.code for one in examine(written(tmp_path, text))[1]] == ["RK162"]


def test_the_command_shows_the_table_and_json_has_findings_alone(
    tmp_path: Path, rankup_here: RunRankup
) -> None:
    launch = f"srun torchrun --nnodes=2 --nproc-per-node=8 {ENDPOINT} train.py"
    written(tmp_path, f"{TIME}{TWO}{MEET}{launch}\n")
    text = rankup_here(["check", "job.sbatch"]).stdout.splitlines()
    assert text[0].startswith(
        "job.sbatch: line 7: torchrun train.py: 2 nodes x 1 task x 4 GPUs -> 16 ranks, meet at n1:"
    )
    assert text[1].startswith("job.sbatch:7: RK162 ")
    found = json.loads(rankup_here(["check", "--format", "json", "job.sbatch"]).stdout)
    assert [one["code"] for one in found] == ["RK162"]
