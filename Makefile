# Two commands do everything on a fresh Debian machine with python3, make and root:
#   make demo   set up, then tune a captured model's problems on this CPU and print the verdicts
#   make test   set up, then lint and run every suite that this machine can run
VENV   := .venv
PYTHON := $(VENV)/bin/python
DEMO_PROBLEMS := docs/examples/gpt2-untuned.csv
# Problems over this size are skipped and counted: the demo ends within three minutes.
DEMO_MAX_GFLOP := 2.5
DEMO_SECONDS   := 140

.PHONY: demo test lint format setup dev clean

demo: setup
	@$(VENV)/bin/gemmtune tune $(DEMO_PROBLEMS) --max-gflop $(DEMO_MAX_GFLOP) \
	    --total-seconds $(DEMO_SECONDS) --output .demo/results.jsonl.$$(date +%s) && \
	echo "every outcome, with its evidence: .demo/"

test: dev lint
	@marks="not cuda and not hip"; \
	$(PYTHON) -c 'import torch' 2>/dev/null || { marks="$$marks and not torch"; \
	    echo "torch is not installed: its suites are deselected"; }; \
	unshare --map-root-user --mount true 2>/dev/null || { marks="$$marks and not mounts"; \
	    echo "no mount namespaces here: the suites that fill a disk up are deselected"; }; \
	$(PYTHON) -m pytest -m "$$marks"

lint: dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

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

$(VENV)/.dev: $(VENV)/.setup
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .demo build *.egg-info
