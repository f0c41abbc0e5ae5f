# Everything a newcomer needs: `make demo` and `make test` set themselves up in .venv.
PYTHON ?= python3
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

.PHONY: help demo check test test-slow test-newest test-newest-with lint bench docs docs-serve gpu-wheels format clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# One stamp per set of extras: the same venv serves the demo and the tests. Python compiles what it imports; pip
# would compile all there is, most of which nothing imports.
$(VENV)/.installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing based-jax[$*] into $(VENV), usually a minute'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[$*]'
	@touch $@

demo: $(VENV)/.installed-plot ## train based-tiny on Python's own source, sample from it, plot the loss
	$(BIN)/python -m train.demo --workdir runs/demo

lint: $(VENV)/.installed-test ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python -p pyright.strict.json

check: lint ## five minutes: lint, types and the core tests
	$(PYTEST) --core $(TESTS)

# The site is part of what must hold, unless TESTS picks some tests.
SITE = $(if $(TESTS),,docs)

test: lint $(SITE) ## twelve minutes: all that must hold before a release (PYTHON=... chooses the interpreter)
	$(PYTEST) $(TESTS)

test-slow: lint $(SITE) ## hours: every test there is
	$(PYTEST) --run-slow $(TESTS)

test-newest: ## the suite on Python >= 3.12 with the newest jax, where such a Python exists
	@py=$$(.ci/find-python 3.12) || { echo "make test-newest: skipped, no Python >= 3.12 found"; exit 0; }; \
	  echo "make test-newest: $$py"; $(MAKE) --no-print-directory test-newest-with PYTHON=$$py VENV=.venv-newest

test-newest-with: $(VENV)/.installed-test
	$(PYTEST) $(TESTS)

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
	rm -rf .venv .venv-newest .cache build/site runs .hypothesis .ruff_cache
