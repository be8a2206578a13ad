# shellcheck shell=bash
# Modules of this environment, for the kind modules; it is yours. Name versions, too:
# others come when the site changes its defaults. `module spider NAME` lists them.

module purge
module load Stages/2026 || return
module load GCC || return
module load OpenMPI || return
module load CUDA || return
module load Python || return
module load PyTorch || return
module load torchvision || return
