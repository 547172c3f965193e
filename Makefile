# Every target works alone on a fresh clone: it makes .venv and installs what it needs.
# `make PYTHON=python3.12 test` uses another Python, `make TESTS=tests/retries test` runs a part of the tests.

PYTHON ?= $(shell python3.11 -c "print('python3.11')" 2>/dev/null || echo python3)
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip compiles what it installs, but not what it only points at
COMPILE := $(BIN)/python -m compileall -q prefect_resilience
TESTS ?= tests
WORKERS ?= 4
KILLS ?= 1000
SEED ?= 0
# Only all the tests together can cover the pure files
GATE := $(if $(filter tests,$(TESTS)),--cov=prefect_resilience)

# A Prefect home of this run's own, removed when it ends, and no server that happens to be configured
IN_A_HOME_OF_ITS_OWN = home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT INT TERM && \
	env -u PREFECT_API_URL -u PREFECT_API_KEY PREFECT_HOME="$$home" PREFECT_SERVER_ANALYTICS_ENABLED=false

.DEFAULT_GOAL := help
# Two targets at once would install into one environment at once
.NOTPARALLEL:
.PHONY: help demo test kills check bench wheel clean browser newcomer fleet

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

demo: .venv/.installed ## a flow on a service that has a bad day, in about a minute after installation
	@$(BIN)/python -m flows.quickstart

test: .venv/.installed-dev ## all tests; the pure files must be covered to the last branch
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(GATE) $(TESTS)

kills: .venv/.installed-dev ## KILLS=1000 processes of deployed flows killed at any instruction, and recovered; goes on where it was stopped
	@mkdir -p .pytest_cache
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m tests.effects.long kills $(KILLS) --seed $(SEED) \
		--journal .pytest_cache/kills-$(SEED).jsonl

check: .venv/.installed-dev ## lint, format, types (strict) and the contracts between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache --no-logo

bench: .venv/.installed-dev ## what a guarded call costs
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.overhead
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.circuit_call
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.circuits
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.plan_scheduling
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.plans
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.dead_letters
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.report
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.effects

browser: .venv/.installed-dev ## both of Prefect's UIs in Debian's Chromium, with pictures for docs/
	@$(IN_A_HOME_OF_ITS_OWN) PICTURES=1 $(BIN)/python -m pytest -m long tests/ui

newcomer: .venv/.installed-dev ## the README's way from an empty folder to a flow under a worker
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -m long tests/project/test_readme_steps.py

fleet: .venv/.installed-dev ## automations at work; Prefect on PostgreSQL and Redis with two workers
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -m long tests/installation tests/deployments

wheel: .venv/bin/python ## dist/prefect_resilience-*.whl, to be installed elsewhere
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## remove the environment and everything that was generated
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage coverage.xml build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) -e .
	@$(COMPILE)
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) -e '.[dev]'
	@$(COMPILE)
	@touch .venv/.installed $@
