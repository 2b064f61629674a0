# Two commands a newcomer needs: `make demo` and `make test`. Each makes its own environment.
# PYTHON chooses the interpreter, VENV where the environment goes.

PYTHON ?= python3
VENV ?= .venv
# Tests at a time, each file by one of them, in the order of their names: ordered by their number of
# tests, the files that start many processes would come last, all at once.
JOBS ?= 2
BIN := $(VENV)/bin
# Much of the tests' time is compilation, so most run without the optimiser of LLVM (tests/conftest.py
# adds what else helps). `parity` and the long form of `chaos` run what users run.
QUICK := XLA_FLAGS="--xla_backend_optimization_level=0"
# seqeval comes as source only, and its old way to build it no longer works.
export PIP_USE_PEP517 := 1
# Python keeps the bytecode of what it imports. Making that of all packages beforehand, most of which
# is never imported, would be two fifths of the time of the installation.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

# The files with such a test: no process has to import all the others.
marked = $(shell grep -rl --include=test_*.py "mark\.$(1)\b" tests | sort)

.PHONY: demo smoke test launch chaos beam browser lint types parity compiler core site release clean help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Said before pip asks an index for two hundred versions of what no other Python can have.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	{ echo "make: bert-jax needs Python 3.11 to 3.13, and $(PYTHON) is" \
	"$$($(PYTHON) --version 2>/dev/null || echo not there); name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
endef

# A stamp an extra: installing is repeated only when pyproject.toml changes.
$(VENV)/.demo: pyproject.toml
	$(environment)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(environment)
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.demo

$(VENV)/.parity: $(VENV)/.dev
	$(INSTALL) torch==$(TORCH)
	touch $@

TORCH ?= 2.13.0

demo: $(VENV)/.demo  ## train a small BERT on real text and look at it: minutes, on a CPU
	@BIN=$(abspath $(BIN)) sh examples/demo.sh runs/demo

smoke: $(VENV)/.demo  ## does it work here? text to a filled-in word, with a kill: within a minute
	@BIN=$(abspath $(BIN)) sh examples/smoke.sh

test: $(VENV)/.dev  ## the package's suite, in one process a worker
	$(QUICK) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=20 -m "not parity and not chaos and not browser and not beam" --ignore=tests/launch

launch: $(VENV)/.dev  ## the launch scripts, on a fake cloud
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not chaos and not tpu_compiler" tests/launch

chaos: $(VENV)/.dev  ## several processes, a bucket, faults in real processes: a sample of each; BERT_JAX_CHAOS=long for all
	$(if $(filter long,$(BERT_JAX_CHAOS)),,$(QUICK)) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15 -m chaos $(call marked,chaos)

core: $(VENV)/.dev  ## model, step, checkpoint and end to end: what a second version pair must pass
	$(QUICK) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m core $(call marked,core)

# Beside the environment, not in it: where libtpu is installed, jax looks for a TPU at every start.
LIBTPU ?= 0.0.51
$(VENV)-libtpu/.there: $(VENV)/.dev
	$(INSTALL) --no-deps --upgrade --target $(@D) libtpu==$(LIBTPU)
	touch $@

compiler: $(VENV)-libtpu/.there  ## steps compiled for TPUs, by the real compiler
	PYTHONPATH=$(abspath $(VENV)-libtpu) $(BIN)/python -m pytest -m tpu_compiler $(call marked,tpu_compiler) $(TESTS)

# What a worker has, and Beam, which allows other versions than the rest of the package.
$(VENV)-beam/.there: $(VENV)/.dev
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile "$$($(BIN)/python -m bert_jax.data.cluster.package $(@D) gcs near-duplicates)" 'apache-beam[gcp]' pytest rich
	touch $@

beam: $(VENV)-beam/.there  ## corpora made by Apache Beam: equal bytes, workers killed, none there
	$(VENV)-beam/bin/python -m pytest --noconftest -W default -m beam $(call marked,beam)

parity: $(VENV)/.parity  ## numbers against transformers on torch
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m parity $(call marked,parity)

browser: $(VENV)/.dev  ## pages in a headless Chromium (apt-get install chromium): every control, widths, colours
	$(QUICK) $(BIN)/python -m pytest -rs -s -m browser $(call marked,browser)

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck -x tpu_setup.sh examples/*.sh launch/tpu launch/boot.sh launch/worker.sh launch/gke/render launch/lib/*.sh .ci/run

types: $(VENV)/.dev  ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

$(VENV)-site/.there:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check zensical==$(ZENSICAL)
	touch $@

ZENSICAL ?= 0.1.3

site: $(VENV)-site/.there  ## README and docs/ as a site, in build/site/site
	$(VENV)-site/bin/python docs/site.py build/site
	cd build/site && $(abspath $(VENV))-site/bin/zensical build --strict

release:  ## the wheel and the source archive in dist/, and the wheel installed bare and tried
	rm -rf dist $(VENV)-release $(VENV)-bare
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/pip install --quiet --disable-pip-version-check build twine
	$(VENV)-release/bin/python -m build --outdir dist .
	$(VENV)-release/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(VENV)-bare
	$(VENV)-bare/bin/pip install --quiet --disable-pip-version-check --no-compile dist/*.whl
	cd dist && BIN=$(abspath $(VENV))-bare/bin sh ../examples/smoke.sh

clean:  ## remove the environment and everything made
	rm -rf $(VENV) $(VENV)-* runs build dist
