# Two commands do everything on a fresh Debian machine with python3, make and root:
#   make demo   set up, then serve, import a captured model's file, tune it over HTTP, export, stop
#   make test   set up, then lint and run every suite that this machine can run
# In addition: make quick (the inner loop), make exhaustive (the full grids), make genuine (AMD's own libraries),
# make chaos (1,000 jobs while processes are killed), make wheels (both distributions).
SHELL  := bash
VENV   := .venv
PYTHON := $(VENV)/bin/python
DEMO_PROBLEMS := docs/examples/gpt2-untuned.csv
# Larger problems are skipped and counted, so that the demo ends within three minutes.
DEMO_MAX_GFLOP := 1.5
DEMO_SECONDS   := 1.5
# Four test files at a time, in the order of tests/conftest.py: suites wait for processes and disks a third of their time,
# and three at a time left two processors idle for a ninth of it.
SIDE_BY_SIDE   := -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo test quick exhaustive genuine chaos bundles lint format wheels setup dev clean

demo: setup
	@$(VENV)/bin/gemmtune demo $(DEMO_PROBLEMS) --folder .demo \
	    --max-gflop $(DEMO_MAX_GFLOP) --seconds $(DEMO_SECONDS)

# Suites start hundreds of processes, so bytecode is written even if the environment disables it.
# One process reads all of them first: those that start at once would each compile every module.
# The linters run in parallel, while suites wait for processes and disks; their output is shown at the end.
test: dev
	@bash .ci/test-packages
	@marks=$$(bash .ci/marks $(PYTHON)) || exit 1; \
	$(MAKE) --no-print-directory lint >.lint.log 2>&1 & linters=$$!; \
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest --collect-only -qq >/dev/null 2>&1; \
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest $(SIDE_BY_SIDE) --durations=20 --durations-min=3 \
	    -m "$$marks"; suites=$$?; \
	wait $$linters; linted=$$?; cat .lint.log; rm -f .lint.log; exit $$((suites || linted))

# The inner loop: no compiler, no processes, SQLite only.
quick: dev
	@PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest $(SIDE_BY_SIDE) -q -m "not cuda and not hip and not exhaustive and not compiler and not process and not postgres and not image and not browser and not torch and not mounts and not clang"

# Runs in full the grids that `make test` samples; records the date and the commit of a run that passed.
exhaustive: dev
	@bash .ci/test-packages
	@marks=$$(bash .ci/marks $(PYTHON)) || exit 1; \
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest $(SIDE_BY_SIDE) -q \
	    -m "exhaustive and $${marks/ and not exhaustive/}"
	@echo "$$(date -u +%F) $$(git rev-parse HEAD)" > tests/exhaustive.txt

# Queries Debian sid's hipBLASLt, rocBLAS, HIP runtime and hipRTC, and compares the answers with the recording
# that the suites replay. Never in continuous integration: sid changes, and the packages take 2.3 GB.
# UPDATE=--update asks sid for newer packages first.
genuine: dev
	@$(PYTHON) -m tests.backends.hip.genuine.fetch $(UPDATE)
	@$(PYTHON) -m tests.backends.hip.genuine.record --compare

# 1,000 jobs on PostgreSQL and 200 on SQLite, while workers, servers and PostgreSQL are killed, stopped and limited
# and disks are full: every acknowledged job must end once. Minutes; needs PostgreSQL's programs, and root for full
# disks. SEED=N repeats a run's choices.
chaos: dev
	@bash .ci/test-packages
	@$(PYTHON) -m benchmarks.chaos $(if $(SEED),--seed $(SEED))

# A bundle of every pre-tuned table, dist/bundles/NAME.gtb: needs the compilers of the tables' devices, and no device.
bundles: setup
	@mkdir -p dist/bundles
	@for table in db/pretuned/*.jsonl; do \
	    env -u GEMMTUNE_SERVER GEMMTUNE_MAX_COMPILES=$$(nproc) $(VENV)/bin/gemmtune bundle --pretuned $$table \
	        -o dist/bundles/$$(basename $$table .jsonl).gtb || exit 1; \
	done

lint: dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Both distributions, gemmtune and gemmtune-client, in dist/.
wheels: setup
	@$(PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist . ./client
	@ls dist

format: dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

setup: $(VENV)/.setup

dev: $(VENV)/.dev

$(VENV)/.setup: pyproject.toml .ci/system-packages
	@bash .ci/system-packages
	@test -x $(PYTHON) || python3 -m venv $(VENV)
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

# One call of pip finds the versions of everything once; ALSO names more packages for it. Modules are compiled when
# they are imported: most of what the tools bring never is.
$(VENV)/.dev: pyproject.toml .ci/system-packages
	@bash .ci/system-packages
	@test -x $(PYTHON) || python3 -m venv $(VENV)
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --no-compile --editable '.[dev]' $(ALSO)
	@touch $(VENV)/.setup $@

clean:
	rm -rf $(VENV) .demo build dist *.egg-info client/build client/*.egg-info
