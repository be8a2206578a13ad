# shellcheck shell=bash
# Modules of this environment, for the kind modules; it is yours. Name versions, too:
# others come when the site changes its defaults. `module spider NAME` lists them.

# module purge
# module load Python || return
