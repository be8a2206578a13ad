# shellcheck shell=bash
# Modules of this environment, for the kind modules; it is yours. Name versions, too:
# others come when the site changes its defaults. `module spider NAME` lists them.

module purge
module load Stages/2026 || return
module load GCC/14.3.0 || return
module load ParaStationMPI || return
module load CUDA/13 || return
module load Python || return
