# Every target makes its own environment if it is missing: on a bare machine with Python >= 3.11,
# `make run` and `make test` are each all there is to type.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.PHONY: help environment run test test-all test-types test-slow mutants lint format bench bench-gpu bench-aot clean
.DEFAULT_GOAL := help

help:
	@echo 'make environment what tests and lint need, installed at once'
	@echo 'make run        the main experiment: user-level privacy against utility on real data'
	@echo 'make test       the quick tests, in minutes (WORKERS=n processes)'
	@echo 'make test-all   these, and then all others that are not slow (tests/full_tests.txt names them)'
	@echo 'make test-types all of these with shapes and types of all annotations checked at run time'
	@echo 'make test-slow  statistical audits and other long tests'
	@echo 'make mutants    plants faults in privacy-bearing lines; the tests must notice (most of an hour)'
	@echo 'make lint       ruff, mypy, the import contract'
	@echo 'make format     apply ruff fixes and formatting'
	@echo 'make bench      speed against peers; bench-gpu: the same on a GPU machine with its own JAX'
	@echo 'make bench-aot  bytes and kernels of programs compiled for an H100 and a TPU, which need not be there'
	@echo 'make clean      remove the environment and caches'

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)

# Bytecode is left to the first import: half of what is installed is never imported.
QUIETLY := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# One stamp for each set of extras, remade when the project file or the constraints change.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[$*]'
	@touch $@

# All that `make lint` and `make test` need, at once, which takes half as long as set by set.
environment: | $(VENV)/bin/python
	$(BIN)/python -m pip install $(QUIETLY) --editable '.[lint,test]'
	@touch $(VENV)/.installed-lint $(VENV)/.installed-experiments $(VENV)/.installed-test

run: $(VENV)/.installed-experiments
	$(BIN)/python -m experiments run user-level-tradeoff
	$(BIN)/python -m experiments report user-level-tradeoff

# Most of the suite's time is compilation: cheaper code generation saves a third of it. Rewriting of
# programs, where JAX has its traps, stays as it is; `make test-slow` compiles as users do. A
# program that needs more asks for it (tests/support/compiled.py).
CHEAP_COMPILATION := --xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false \
	--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true

# Programs that did not change are compiled once, and not in every process and every run.
COMPILED := .jax_cache
CACHED := JAX_COMPILATION_CACHE_DIR="$(CURDIR)/$(COMPILED)" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1

# Every worker imports every test: to rewrite their assertions, which only says more of those that fail,
# takes half as long as to import them. What fails runs again with them rewritten.
PYTEST = $(CACHED) XLA_FLAGS="$(CHEAP_COMPILATION)" $(BIN)/python -m pytest
TESTED = $(PYTEST) -n $(WORKERS) --dist worksteal --durations=25 --assert=plain -m $(1) \
	|| { $(PYTEST) --last-failed --last-failed-no-failures=none --maxfail=25; exit 1; }

test: $(VENV)/.installed-test
	$(call TESTED,'not slow and not full')

# After the quick tests, so that none is run twice.
test-all: test
	$(call TESTED,'full and not slow')

test-types: $(VENV)/.installed-test
	CHECK_TYPES=1 $(PYTEST) -n $(WORKERS) --dist worksteal --durations=25

test-slow: $(VENV)/.installed-test
	$(CACHED) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

mutants: $(VENV)/.installed-test
	XLA_FLAGS="$(CHEAP_COMPILATION)" $(BIN)/python -m tests.mutation

lint: $(VENV)/.installed-lint $(VENV)/.installed-experiments
	$(BIN)/ruff check dpsco_jax experiments tests
	$(BIN)/ruff format --check dpsco_jax experiments tests
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix dpsco_jax experiments tests
	$(BIN)/ruff format dpsco_jax experiments tests

bench: $(VENV)/.installed-bench
	$(BIN)/python -m experiments.benchmarks

# On a GPU machine with its own JAX: no environment is made, the interpreter's packages are used.
bench-gpu:
	$(PYTHON) -u -m experiments.benchmarks --require-gpu

# Each chip has an environment of its own: the packages of both do not go together.
AOT_PACKAGES_h100 := jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12
AOT_PACKAGES_v5e := 'jax[tpu]==0.10.2'
AOT_RUN_h100 := JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1
# Compiling takes no chip, so that several may do it at once.
AOT_RUN_v5e := JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1
CHIPS := h100 v5e

.aot-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .aot-$*
	.aot-$*/bin/python -m pip install $(QUIETLY) --editable . jax-privacy $(AOT_PACKAGES_$*)
	@touch $@

bench-aot: $(CHIPS:%=.aot-%/.installed)
	@for chip in $(CHIPS); do $(MAKE) --no-print-directory bench-aot-$$chip || exit 1; done

bench-aot-%: .aot-%/.installed
	TF_CPP_MIN_LOG_LEVEL=3 $(AOT_RUN_$*) .aot-$*/bin/python -m experiments.benchmarks.aot $* --check $(AOT)

clean:
	rm -rf $(VENV) .aot-* $(COMPILED) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
