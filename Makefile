# The two commands are `make run` and `make test`; the rest is for developers (CONTRIBUTING.md).
# Logic lives in tools/*.py; a recipe here only says what is run.

# The newest that runs: a name on the PATH may be a shim of pyenv's for a version that is not chosen.
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11 python3; do \
	$$each -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && echo $$each && break; done)
HAS_PYTHON = test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "tallystick needs Python 3.11 or later on the PATH"; exit 1; }
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Test processes: where a third one would compete with what runs beside them, or with Javas that are killed.
TWO    := -n logical --maxprocesses 2
# Of `make test`: its tests wait for time limits and for others, and two would leave the processors idle.
FOUR   := -n 4
# `make test` and `make check` are the same every time: one order of tests, one seed for what a test draws, one
# order of sets. `make test-full` draws a seed, or takes one: make test-full SEED=n.
FIXED  := --randomly-seed=939
SETS   := PYTHONHASHSEED=0
# Tests start hundreds of Python processes: without compiled modules each would compile all it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: no-python help run test ahead test-full check unit format interop spark-versions crash soak sim sim-nightly mutants fuzz hostile bench browser screenshots docs dist wheels scripts-rewrite clean

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Also where the Python that it was made with has been removed.
$(READY): pyproject.toml constraints.txt setup.py src/tallystick/_native.c $(shell test -x $(BIN)/python || echo no-python)
	@$(HAS_PYTHON)
	@$(PYTHON) tools/environment.py dev
	@touch $@

run: ## see it: payments while everything is killed, within a minute; then flights through Spark
	@$(HAS_PYTHON)
	@$(PYTHON) tools/environment.py run

test: $(READY) ## everything a change must pass
	@$(BIN)/python -m tools.gate --beside $(MAKE) --no-print-directory ahead
	@$(SETS) HYPOTHESIS_PROFILE=gate $(BIN)/python -m pytest $(FOUR) --dist loadfile $(FIXED)

# Once, while types are checked on the other processor, what each test process would do: to archive Spark's classes,
# and to compile tests as pytest does. Pytest reports what cannot be collected when it runs the tests.
ahead: $(READY)
	@$(BIN)/python -m tests.support.class_archive
	@$(BIN)/python -m pytest --collect-only -p no:randomly >/dev/null 2>&1 || true

test-full: $(READY) ## everything there is, in a random order with random examples: hours
	@$(BIN)/python -m tools.gate --beside $(BIN)/python -m tests.support.class_archive
	@$(BIN)/python -m tools.dist --wheels
	@$(BIN)/python -m tools.mutate
	@TALLYSTICK_LONG=1 TALLYSTICK_INTEROP_KAFKA=1 HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -o timeout=3600 $(TWO) --dist loadfile $(if $(SEED),--randomly-seed=$(SEED))

check: $(READY) ## the quick loop: format, lint, types of the sources, layers, twins, quick unit tests (under a minute)
	@$(BIN)/python -m tools.gate --quick --beside $(MAKE) --no-print-directory unit

# A signal ends a test that hangs; the thread of `make test`, which also ends one in C, is a millisecond a test.
unit: $(READY) ## the tests of make check alone
	@$(SETS) $(BIN)/python -m pytest -o timeout_method=signal $(TWO) --dist loadfile $(FIXED) -m "not gate and not slow and not server and not kafka and not mount" tests/unit tests/meta

format: $(READY) ## rewrite the sources in the house format, and the twins that are generated from them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python -m tools.async_to_sync

interop: $(READY) ## Apache's and librdkafka's clients, on our broker and on Apache Kafka 4.3 and 4.4
	@for version in 4.3.1 4.4.0; do \
		TALLYSTICK_APACHE_KAFKA=$$version TALLYSTICK_INTEROP_KAFKA=1 $(BIN)/python -m pytest tests/interop || exit 1; \
	done

spark-versions: $(READY) ## the Spark parts with each older PySpark that they work with, taken once (1.8 GB)
	@$(BIN)/python -m tools.servers.pyspark_versions
	@$(BIN)/python -m pytest tests/integration/spark/test_spark_versions.py

crash: $(READY) ## the long form of every crash test; more of the random ones: make crash SEEDS=24
	@TALLYSTICK_LONG=1 $(if $(SEEDS),TALLYSTICK_SEEDS=$(SEEDS)) $(BIN)/python -m pytest -o timeout=3600 $(TWO) --dist loadfile tests/crash

soak: $(READY) ## dual writes for ten minutes, while everything is killed at random
	@$(BIN)/python -m tools.soak

sim: $(READY) ## simulate 10,000 runs with faults, or one: make sim SEED=n [TRACE=1], make sim SEEDS=a..b
	@$(BIN)/python -m tools.sim $(if $(SEED),--seed $(SEED) $(if $(TRACE),--trace),$(if $(SEEDS),--seeds $(SEEDS)))

sim-nightly: $(READY) ## 20,000 seeds that are new each time (SEEDS=n); those that fail go to tests/sim/seeds.txt
	@$(BIN)/python -m tools.sim --nightly $(if $(SEEDS),$(SEEDS),20000) --processes 2

mutants: $(READY) ## break every invariant in turn and see its test fail, or one: make mutants ONLY=TXN-7
	@$(BIN)/python -m tools.mutate $(ONLY)

fuzz: $(READY) ## a million hostile inputs to every decoder, and a million hostile logins
	@$(BIN)/python -m tools.fuzzing.decoders --inputs 1000000
	@$(BIN)/python -m tools.fuzzing.logins --inputs 1000000

hostile: $(READY) ## the largest requests, and 10,000 half-open connections, beside others; rewrites docs/hostile-clients.md
	@$(BIN)/python -m tools.hostile --write
	@$(BIN)/python -m tools.half_open --write

bench: $(READY) ## measure beside Apache Kafka and rewrite docs/benchmarks.md
	@$(BIN)/python -m tools.bench

browser: $(READY) ## the console in a browser: every page in every window, by keyboard, on paper
	@$(SETS) $(BIN)/python -m pytest $(TWO) --dist loadfile $(FIXED) tests/browser

screenshots: $(READY) ## the console's pictures in docs/images, anew; look at each before you commit it
	@$(BIN)/python -m tools.screenshots

docs: $(READY) ## the documentation as a site, in build/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

dist: $(READY) ## the source distribution and the wheel, in dist/; both are installed without the sources and tried
	@$(BIN)/python -m tools.dist

wheels: $(READY) ## the same, with a wheel for other Linux machines: the tag is what auditwheel finds true
	@$(BIN)/python -m tools.dist --wheels

scripts-rewrite: $(READY) ## write the transcripts in tests/scripts anew; read the diff before you commit it
	@TALLYSTICK_REWRITE_SCRIPTS=1 $(BIN)/python -m pytest tests/scripts

clean: ## remove the environment and every cache
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
