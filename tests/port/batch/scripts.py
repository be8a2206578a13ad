"""Batch scripts that the tests start from."""

from __future__ import annotations

from pathlib import Path

# A correct one of many nodes, as `torchrun_jsc` is used on JSC's machines.
MANY = r"""#!/bin/bash
#SBATCH --account=abc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=48
#SBATCH --time=01:00:00
#SBATCH --output=log/%j.out

source env.sh
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)i
export MASTER_ADDR MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
srun --cpu_bind=none bash -c "torchrun_jsc \
    --nnodes=$SLURM_NNODES --nproc_per_node=gpu --rdzv_id=$RANDOM --rdzv_backend=c10d \
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \
    --rdzv_conf=is_host=\$(if ((SLURM_NODEID)); then echo 0; else echo 1; fi) \
    train.py --name \"a b\""
rc=$?
echo "ended with $rc"
exit $rc
"""

# One GPU, in the shapes of the course.
ONE = """#!/bin/bash
# the language model
#SBATCH --job-name=lm
#SBATCH -N 1 --gres=gpu:1   # one of four
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=12
#SBATCH --mem=60G
#SBATCH --time=02:00:00

module load Python CUDA
source env.sh
export CUDA_VISIBLE_DEVICES=0

srun --label python -u train.py --data "$SCRATCH/my data" \\
    --epochs 3   # long
echo "through"
"""


TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(8, 2), torch.randn(8, 1)), batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


# A rank that reads who it is from what torchrun sets.
DDP = """\
import os
import torch

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""


def beside(folder: Path, text: str, name: str = "job.sbatch") -> Path:
    """A batch script, with the files that it names beside it."""
    (folder / "log").mkdir(exist_ok=True)
    (folder / "env.sh").touch()
    (folder / "train.py").write_text(TRAIN)
    (folder / "ddp.py").write_text(DDP)
    path = folder / name
    path.write_bytes(text.encode())
    return path
