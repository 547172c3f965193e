# Every target works alone on a fresh clone: it makes .venv and installs what it needs.
# `make PYTHON=python3.12 test` uses another Python, `make TESTS=tests/guards/retries test` runs a part of the tests.

PYTHON ?= $(shell python3.11 -c "print('python3.11')" 2>/dev/null || echo python3)
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip compiles what it installs, but not what it only points at
COMPILE := $(BIN)/python -m compileall -q prefect_resilience
TESTS ?= tests
KILLS ?= 1000
MINUTES ?= 30
SECONDS ?= 60
SEED ?= 0
# How many examples Hypothesis tries in `make test-all`: `nightly` tries 300
PROFILE ?= all
# Fast tests without a Prefect API, and those with one that stand for their noun
FAST := smoke or not (api or slow or docs or long)
# Only all the tests together reach the coverage that the gates ask for
ALL := $(filter tests,$(TESTS))
COVER := $(if $(ALL),--cov=prefect_resilience --cov-report= --cov-fail-under=0)
# A worker that dies ends the run and names its test: xdist would wait for ever for what the new worker was given
# Three workers keep two cores busy where tests wait for servers and processes; four with all the slow ones
TOGETHER := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# A Prefect home of this run's own, removed when it ends, no server that happens to be configured, and time
# for one that starts on a busy machine
IN_A_HOME_OF_ITS_OWN = home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT INT TERM && \
	env -u PREFECT_API_URL -u PREFECT_API_KEY PREFECT_HOME="$$home" PREFECT_SERVER_ANALYTICS_ENABLED=false \
	PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=120

# MAJOR.MINOR: a patch replaces the pages of its minor version
VERSION = $(shell sed -n 's/^version = "\([0-9]*\.[0-9]*\).*/\1/p' pyproject.toml)
FOR_MKDOCS = env -u PREFECT_API_URL DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1

.DEFAULT_GOAL := help
# Two targets at once would install into one environment at once
.NOTPARALLEL:
.PHONY: help demo docs docs-version test kills check bench bad-day wheel clean browser newcomer fleet long agents mutants fuzz soak growth store-scale house matrix runners dist test-all

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: .venv/.installed ## a flow on a service that has a bad day, in about a minute after installation
	@$(BIN)/python -m flows.quickstart

test: .venv/.installed-dev ## the fast tests and one or two real runs of each noun, in five minutes; `check` has those of the documents
	@$(IN_A_HOME_OF_ITS_OWN) HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -n 3 $(TOGETHER) -m "$(FAST)" $(TESTS)

# What fails beside other tests is tried once more alone: both results are printed, the second one counts.
test-all: .venv/.installed-dev ## all tests; then the coverage gates
	@$(IN_A_HOME_OF_ITS_OWN) HYPOTHESIS_PROFILE=$(PROFILE) sh -c '\
		$(BIN)/python -m pytest -n 4 $(TOGETHER) $(COVER) -m "not long" $(TESTS); code=$$?; \
		[ $$code = 1 ] || exit $$code; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "not long" $(TESTS)'
	@$(if $(COVER),$(BIN)/python -m coverage report)
	@$(if $(COVER),$(BIN)/python -m tests.project.coverage_gates)

mutants: .venv/.installed-dev ## changes what decides, a thing at a time, and asks the tests; goes on where it was stopped (SUBJECTS="machine window")
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m tests.project.mutants $(SUBJECTS)

fuzz: .venv/.installed-dev ## SECONDS=60 of hostile input for each reader of what others write
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m tests.fuzz --seconds $(SECONDS)

soak: .venv/.installed-dev ## MINUTES=30 of mixed load: memory, threads, files and store must stay flat
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m tests.soak --minutes $(MINUTES)

growth: .venv/.installed-dev ## cost as the work grows, as curves: writes docs/growth.md
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.growth --write

store-scale: .venv/.installed-dev ## what a million effects and letters cost, on all stores: writes docs/store_scale.md
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.store_scale --write

kills: .venv/.installed-dev ## KILLS=1000 processes of deployed flows killed at any instruction, and recovered
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m tests.durable.effects.long kills $(KILLS) --seed $(SEED)

matrix: .venv/.installed-dev ## `make demo` and `make test` with every Python of this machine and each Prefect, in an hour; writes docs/versions.md
	@$(BIN)/python -m tests.project.matrix --write

house: .venv/.installed-dev ## how large the package is, how long the road of a failure is, and whether the limits hold
	@$(BIN)/python -m tests.project.house
	@$(IN_A_HOME_OF_ITS_OWN) PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL=CRITICAL $(BIN)/python -m tests.project.failure_road

check: .venv/.installed-dev ## lint, format, types (strict in the package), the contracts between the rooms, documents that match the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	@echo 'the types that users see: all of them known'
	@mkdir -p .pytest_cache
	@PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes prefect_resilience --ignoreexternal > .pytest_cache/types.txt \
		|| { grep -B1 -A3 'error:' .pytest_cache/types.txt; exit 1; }
	$(BIN)/lint-imports --no-cache --no-logo
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -q -p no:xdist -m "docs and not api" tests/docs tests/project tests/requirements

bench: .venv/.installed-dev ## what a guarded call costs
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.overhead
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.cold
	@-$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.commands  # the bars of the command line
	@-$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.instructions  # needs perf or valgrind, and says so
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.circuit_call
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.circuits
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.plan_scheduling
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.plans
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.dead_letters
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.report
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.summary_end
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.effects
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.any_call
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.spans
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.failing_call
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.adaptive_limit

bad-day: .venv/.installed-dev ## four ways through two minutes of trouble, ten minutes in all; writes docs/bad_day.md
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m benchmarks.bad_day --page docs/bad_day.md --readme README.md

browser: .venv/.installed-dev ## both of Prefect's UIs in Debian's Chromium, with pictures for docs/
	@$(IN_A_HOME_OF_ITS_OWN) PICTURES=1 $(BIN)/python -m pytest -m long tests/ui

newcomer: .venv/.installed-dev ## the README's way from an empty folder to a flow under a worker
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -m long tests/project/test_readme_steps.py

fleet: .venv/.installed-dev ## automations at work; Prefect on PostgreSQL and Redis with two workers
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -m long tests/operations/installation tests/deployments

runners: .venv/.installed-dev ## one flow on threads, processes, Dask and Ray, and what the service counted
	@$(BIN)/python -m flows.runners

long: .venv/.installed-dev ## the other long forms: races, kills of replays and recoveries, a report of a thousand runs
	@$(IN_A_HOME_OF_ITS_OWN) $(BIN)/python -m pytest -m long tests/guards/circuits tests/durable/letters tests/durable/effects tests/guards/model tests/graphs/plans \
		tests/operations/reports tests/operations/tuning tests/operations/cli tests/stores tests/flows tests/testing

agents: .venv/.installed-dev ## the examples of flows/once with LangGraph, pydantic-ai, OpenAI Agents and FastMCP themselves, each killed at three points
	@test -d .venv-agents || $(PYTHON) -m venv .venv-agents
	@.venv-agents/bin/python -m pip install --quiet --disable-pip-version-check -r tests/calls/once/requirements.txt
	@$(IN_A_HOME_OF_ITS_OWN) ONCE_PYTHON=$(CURDIR)/.venv-agents/bin/python $(BIN)/python -m pytest -m long tests/calls/once

docs: .venv/.installed-docs ## the documentation as pages in site/, strictly: a broken link is an error
	@$(BIN)/python -m docs.making.tables
	@$(BIN)/python -m docs.making.pictures
	@$(FOR_MKDOCS) $(BIN)/mkdocs build --strict --quiet --clean

docs-version: .venv/.installed-docs ## the pages of this version, beside those of earlier ones: a commit on the branch gh-pages
	@$(FOR_MKDOCS) $(BIN)/mike deploy --alias-type copy --update-aliases $(VERSION) latest
	@$(FOR_MKDOCS) $(BIN)/mike set-default latest

wheel: .venv/bin/python ## dist/prefect_resilience-*.whl, to be installed elsewhere
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

dist: .venv/.installed-dev ## wheel and source distribution in dist/, checked as a package index does; and docs/licences.md
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl
	@$(BIN)/python -m docs.making.licences

clean: ## remove the environment and everything that was generated
	rm -rf .venv .venv-agents .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage coverage.xml build dist site
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

.venv/.installed-docs: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP_INSTALL) -e '.[docs]'
	@$(COMPILE)
	@touch .venv/.installed $@
