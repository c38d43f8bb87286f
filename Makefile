# Two commands do all set-up: `make demo` and `make test`. Everything lives in .venv (and .venv-skyrl for `make test-tinker`).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
SKYRL := .venv-skyrl
# Many tests train on the base students; built once, before any of their time limits runs.
STUDENTS := $(BIN)/python -m trainwright.students.registry

.PHONY: demo test test-slow test-tinker lint bench lock clean help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(INSTALLED) ## Train the trainer agent on this machine's cores, about ten minutes
	$(BIN)/trainwright run examples/nano.toml

test: $(INSTALLED_DEV) ## Lint, types and the default tests, under ten minutes on two cores
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(STUDENTS)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(INSTALLED_DEV) ## The tests that take minutes each
	$(STUDENTS)
	$(BIN)/python -m pytest -m slow

test-tinker: $(INSTALLED_DEV) $(SKYRL)/.installed ## The agent on Tinker against SkyRL's server, in an environment of its own (2.3 GB)
	$(STUDENTS)
	TRAINWRIGHT_SKYRL=$(CURDIR)/$(SKYRL)/bin/python $(BIN)/python -m pytest -m tinker -s

bench: $(INSTALLED_DEV) ## CPU seconds of one job, and engine against engine with TRL
	$(BIN)/python benchmarks/job.py

lock: ## Pin again what pyproject.toml asks for (a scratch environment, a few minutes)
	sh scripts/lock.sh $(PYTHON)

clean: ## Remove the environment and caches of tools; runs and the user's cache folder stay
	rm -rf $(VENV) $(SKYRL) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "trainwright needs Python 3.11 or newer; name one with: make PYTHON=python3.12 demo" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(INSTALLED): $(VENV)/.python pyproject.toml requirements.lock
	$(PIP) install --quiet -r requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(SKYRL)/.installed: tests/skyrl/skyrl-requirements.txt
	$(PYTHON) -m venv $(SKYRL)
	$(SKYRL)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --ignore-requires-python -r $<
	touch $@

$(INSTALLED_DEV): $(INSTALLED) requirements-dev.lock
	$(PIP) install --quiet -r requirements-dev.lock
	touch $@
