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
# Some packages (seqeval, promise) are published as source only; pip's legacy builder fails on them.
export PIP_USE_PEP517 := 1
# Python caches the bytecode of the modules that it imports. Compiling all packages ahead of time
# would take two fifths of the installation, and most modules are never imported.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# Environments are installed from locks/, by hash. LOCKED= (empty) resolves the newest versions that
# pyproject.toml allows instead; the index is the one that pip is configured with in both cases.
LOCKED ?= yes

# The files with such a test: no process has to import all the others.
marked = $(shell grep -rl --include=test_*.py "mark\.$(1)\b" tests | sort)

.PHONY: demo smoke babylm test quick full mark-slow launch chaos beam browser lint types parity compiler core site upgrade release clean help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Checks the Python version before pip downloads packages for an unsupported one.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || \
	{ echo "make: bert-jax needs Python 3.11 to 3.13, and $(PYTHON) is" \
	"$$($(PYTHON) --version 2>/dev/null || echo not there); name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
endef

# alone COMMAND: not while another `make` installs this tree, whose builds would meet in it.
alone := $(PYTHON) -c 'import fcntl, subprocess, sys; file = open("pyproject.toml"); \
	fcntl.flock(file, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

# install LOCK,EXTRAS: the packages of locks/LOCK.txt and the project, which is built with the locked
# build tools. Locks are complete, so pip resolves nothing.
ifdef LOCKED
define install
	$(INSTALL) --no-deps --require-hashes -r locks/build.txt
	$(INSTALL) --no-deps --require-hashes --no-build-isolation -r locks/$(1).txt
	$(alone) $(INSTALL) --no-deps --no-build-isolation --editable .
endef
else
define install
	$(alone) $(INSTALL) --upgrade --editable '.$(2)'
endef
endif

# One stamp per environment: installation is repeated only when its inputs change.
$(VENV)/.demo: pyproject.toml locks/build.txt locks/run.txt
	$(environment)
	$(call install,run)
	touch $@

$(VENV)/.dev: pyproject.toml locks/build.txt locks/dev.txt
	$(environment)
	$(call install,dev,[dev])
	touch $@ $(VENV)/.demo

$(VENV)/.parity: $(VENV)/.dev
	$(INSTALL) torch==$(TORCH) sentence-transformers==$(SENTENCE_TRANSFORMERS)
	touch $@

TORCH ?= 2.13.0
SENTENCE_TRANSFORMERS ?= 6.2.0

demo: $(VENV)/.demo  ## train a small BERT on real text and look at it: minutes, on a CPU
	@BIN=$(abspath $(BIN)) sh examples/demo.sh runs/demo

smoke: $(VENV)/.demo  ## does it work here? text to a filled-in word, with a kill: within a minute
	@BIN=$(abspath $(BIN)) sh examples/smoke.sh

babylm: $(VENV)/.demo  ## an entry to BabyLM's table, from text to scores: hours, on a CPU (docs/guides/babylm.md)
	@BIN=$(abspath $(BIN)) sh examples/babylm/babylm.sh runs/babylm

SUITE := not parity and not chaos and not browser and not beam and not full
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: $(VENV)/.dev  ## the whole suite of the package; SHUFFLE=SEED shuffles the files
	$(if $(SHUFFLE),@echo "shuffled: make test SHUFFLE=$(SHUFFLE)")
	$(if $(SHUFFLE),BERT_JAX_SHUFFLE=$(SHUFFLE)) $(QUICK) $(PYTEST) --durations=20 -m "$(SUITE)" --ignore=tests/launch $(TESTS)

quick: $(VENV)/.dev  ## the suite without the tests that tests/slow.txt lists: a signal in three minutes
	$(QUICK) $(PYTEST) -p tests.slow -m "$(SUITE) and not slow" --ignore=tests/launch $(TESTS)

full: $(VENV)/.dev  ## all tests that need no TPU compiler, before an issue is closed: at most 90 minutes
	$(MAKE) test launch
	$(QUICK) $(PYTEST) -m full $(call marked,full)
	BERT_JAX_CHAOS=long $(MAKE) chaos
	$(MAKE) beam browser parity

mark-slow: $(VENV)/.dev  ## run the suite and rewrite tests/slow.txt from the measured durations
	$(QUICK) $(PYTEST) -p tests.slow --mark-slow -m "$(SUITE)" --ignore=tests/launch

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
	PYTHONPATH=$(abspath $(VENV)-libtpu) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m tpu_compiler $(call marked,tpu_compiler) $(TESTS)

# What a worker has, and Beam, which allows other versions than the rest of the package.
$(VENV)-beam/.there: $(VENV)/.dev
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --no-compile "$$($(BIN)/python -m bert_jax.data.cluster.package $(@D) gcs near-duplicates)" 'apache-beam[gcp]' pytest rich
	touch $@

beam: $(VENV)-beam/.there  ## corpora made by Apache Beam: equal bytes, jobs killed, none there
	$(VENV)-beam/bin/python -m pytest --noconftest -W default -m beam $(call marked,beam)

parity: $(VENV)/.parity  ## numbers against transformers on torch
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m parity $(call marked,parity)

browser: $(VENV)/.dev  ## pages in a headless Chromium (apt-get install chromium): every control, widths, colours
	$(QUICK) $(BIN)/python -m pytest -rs -s -m browser $(call marked,browser)

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck -x tpu_setup.sh examples/*.sh launch/tpu launch/*.sh .ci/run

types: $(VENV)/.dev  ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

$(VENV)-site/.there:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check zensical==$(ZENSICAL)
	touch $@

ZENSICAL ?= 0.0.72

site: $(VENV)-site/.there  ## README and docs/ as a site, in build/site/site
	$(VENV)-site/bin/python docs/site.py build/site
	cd build/site && $(abspath $(VENV))-site/bin/zensical build --strict

# uv resolves for all supported Pythons and platforms at once. `--no-header` because the header would
# hold the path of the environment. jax, jaxlib and flax move together (see pyproject.toml).
UV ?= 0.13.9
compile = $(VENV)-upgrade/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --upgrade --no-emit-index-url --no-emit-find-links
$(VENV)-upgrade/.there:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check uv==$(UV)
	touch $@

upgrade: $(VENV)-upgrade/.there  ## rewrite locks/ with the newest versions that pyproject.toml allows
	$(compile) pyproject.toml locks/build.in --extra dev -o locks/dev.txt
	$(compile) pyproject.toml locks/build.in -c locks/dev.txt -o locks/run.txt
	$(compile) locks/build.in -c locks/dev.txt -o locks/build.txt
	git diff --stat -- locks

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
