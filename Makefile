# rankup's chores. `make help` lists them; each does all its set-up by itself.

# Any Python >= 3.10: make setup PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests wait more than they compute, the slow ones above all: three processes share two cores, or
# four. JOBS=0 runs them in one.
JOBS ?= 3
SLOW_JOBS ?= $(if $(filter 3,$(JOBS)),4,$(JOBS))
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup
FAST = -m 'not slow and not gpu'
SHELL_FILES = .ci/run src/rankup/port/batch/recorder.bash \
	$(wildcard tools/*.sh tests/slurm/golden/*.sh tests/login/env/golden/*/*.sh)
BENCHES = $(filter-out bench/_%,$(wildcard bench/*.py))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-slow test-stress lint docs docs-serve bench pictures system-packages dali clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY) ## make .venv with .venv/bin/rankup in it

# The stamp is written last: a setup that was interrupted is done again. An environment whose pip
# answers is kept, so that after a change of pyproject.toml torch is not fetched anew.
$(READY): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "rankup needs Python >= 3.10, and $(PYTHON) is not: make setup PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "could not make $(VENV); on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,hf,dev]'
	@touch $@

demo: setup ## train a small language model on 1 and 2 ranks, and compare
	$(BIN)/rankup demo

test: setup system-packages dali ## each invariant and each feature once
	$(PYTEST) $(FAST)

test-slow: setup system-packages dali ## the full matrices, fuzzing, many kills
	$(PYTEST) --numprocesses $(SLOW_JOBS) -m 'slow and not gpu'

test-stress: setup system-packages dali ## the fast tests five times: plain, beside busy loops, in random order
	tools/stress.sh $(PYTEST) $(FAST)

lint: setup system-packages ## ruff, mypy, shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then set -x; shellcheck $(SHELL_FILES); \
	else echo "shellcheck is not installed: $(SHELL_FILES) were not checked"; fi

pictures: setup ## draw the pictures of the docs anew
	$(BIN)/python docs/pictures.py

docs: setup ## build the site of the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: setup ## the same site, anew after each change of a page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: setup ## every benchmark's quick version
	@failed=; for file in $(BENCHES); do \
	  echo "== $$file"; $(BIN)/python $$file --quick || failed="$$failed $$file"; done; \
	if [ -n "$$failed" ]; then echo "without a claim:$$failed" >&2; exit 1; fi

system-packages: # as root on Debian and Ubuntu install what is missing; NO_SYSTEM=1 prevents it
	@tools/system-packages.sh

dali: setup # half a gigabyte: in CI, where nothing is skipped; elsewhere its tests skip without it
ifeq ($(CI),true)
	@test -e $(VENV)/.dali || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dali]'
	@touch $(VENV)/.dali
endif

clean: ## remove what make made, .venv included; runs are kept
	rm -rf $(VENV) .venv-* build dist src/*.egg-info .gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
