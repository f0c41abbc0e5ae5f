# Everything a newcomer needs: `make demo` and `make test` set themselves up in .venv.
# .venv is of the newest Python found, which gets the newest jax; PYTHON=... chooses another.
PYTHON ?= $(shell .ci/find-python)
VENV ?= .venv
WORKERS ?= 2
# Which tests, e.g. TESTS=tests/kernels; all of them if empty.
TESTS ?=
# DURATIONS=1 lists the 30 tests that took longest.
DURATIONS ?=
BIN = $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(if $(DURATIONS),--durations=30 --durations-min=0.1)

# glibc: back large blocks with huge pages. A step on the CPU allocates its scratch memory anew, and without
# this a quarter of its time is page faults. Other C libraries ignore it.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: help demo check test test-slow test-oldest test-prerelease selection versions lint same-python bench docs docs-serve gpu-wheels format clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

# One stamp per set of extras: the same venv serves the demo and the tests. Python compiles what it imports; pip
# would compile all there is, most of which nothing imports.
$(VENV)/.installed-%: pyproject.toml
	@test -x $(BIN)/python || $(or $(PYTHON),false) -m venv $(VENV)
	@echo 'installing based-jax[$*] into $(VENV), usually a minute'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[$*]'
	@touch $@

demo: $(VENV)/.installed-plot ## train based-tiny on Python's own source, sample from it, plot the loss
	$(BIN)/based-jax train demo --workdir runs/demo

VERSION = -c 'import sys; print("%d.%d" % sys.version_info[:2])'

same-python: $(VENV)/.installed-test
	@has=$$($(BIN)/python $(VERSION)); new=$$($(or $(PYTHON),$(BIN)/python) $(VERSION)); test $$has = $$new || \
	  echo "$(VENV) has Python $$has, which the tests now use: after 'rm -rf $(VENV)' they use $$new"

lint: same-python ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python -p pyright.strict.json

check: lint ## five minutes: lint, types and the core tests
	$(PYTEST) --core $(TESTS)

# The site is part of what must hold, unless TESTS picks some tests.
SITE = $(if $(TESTS),,docs)

# Where runs write the versions that they had, for `make versions`.
RECORD ?= build/tested
RECORDED = $(if $(filter-out tests,$(TESTS)),,--record $(RECORD))

test: lint $(SITE) ## ten minutes: all that must hold before a release (PYTHON=... chooses the interpreter)
	$(PYTEST) $(RECORDED) $(TESTS)

test-slow: lint $(SITE) ## an hour and more: every test there is
	$(PYTEST) --run-slow $(TESTS)

test-oldest: ## a selection of the tests on Python 3.11 with its jax, the oldest, where there is a Python 3.11
	@py=$$(.ci/find-python 3.11) || { echo "make test-oldest: skipped, no Python 3.11 found"; exit 0; }; \
	  echo "make test-oldest: $$py"; $(MAKE) --no-print-directory selection PYTHON=$$py VENV=.venv-oldest

test-prerelease: $(VENV)/.installed-test ## the selection with pre-releases of jax and flax, if pip has any
	.ci/prerelease $(VENV) .venv-prerelease

# Tests of what depends most on the versions of jax and Python.
SELECTION = tests/test_compat.py tests/kernels tests/models tests/parity tests/export tests/generate/test_loop.py \
  tests/training/test_step.py tests/training/test_sharding.py

selection: $(VENV)/.installed-test
	$(PYTEST) $(RECORDED) $(or $(TESTS),$(SELECTION))

versions: $(VENV)/.installed-test ## write the versions of the runs since `make clean` into docs/install.md
	cp build/tested/*.json results/versions/
	PYTHONPATH=. $(BIN)/python docs/studies.py

bench: $(VENV)/.installed-test ## time and memory of the ops on this machine, side by side
	$(BIN)/python -m benchmarks ops

# Without --quiet, which keeps warnings from being counted. The setting leaves out an announcement of other programs.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

docs: $(VENV)/.installed-docs ## build the site in build/site; a warning is an error
	$(BIN)/python -m mkdocs build

docs-serve: $(VENV)/.installed-docs ## show the site on this machine, and build it anew after a change
	$(BIN)/python -m mkdocs serve

# For Python 3.12 on Linux, whatever runs here; pip matches each manylinux version by its exact name.
GPU_PLATFORMS = $(foreach n,2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17,manylinux_$(n)_x86_64) manylinux2014_x86_64
GPU_WHEELS_KB = 65536

gpu-wheels: benchmarks/gpu_wheels.txt ## collect in wheels/ what a GPU machine without a network may lack (benchmarks/gpu.md)
	rm -rf wheels
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
	  --implementation cp $(foreach p,$(GPU_PLATFORMS),--platform $(p)) -d wheels -r benchmarks/gpu_wheels.txt
	@size=$$(du -sk wheels | cut -f1); echo "wheels/: $$(ls wheels | wc -l) wheels, $$size kB of at most $(GPU_WHEELS_KB)"; \
	  test $$size -lt $(GPU_WHEELS_KB)

format: $(VENV)/.installed-test ## format and sort the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean: ## remove what the commands above made
	rm -rf .venv .venv-* .cache build runs .hypothesis .ruff_cache
