# make test and make demo do all the set-up: they need only Python >= 3.11, pip and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One process per core, up to what fits in a few gigabytes; a file's tests stay together, so that what
# they share is made once.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

.PHONY: help install test test-all test-core coverage lint demo clean

help:
	@echo "make demo       what the project does, in a minute"
	@echo "make test       the test suite, without what takes minutes"
	@echo "make test-all   the whole test suite"
	@echo "make test-core  the package with its core dependencies alone, in an environment of its own"
	@echo "make coverage   make test, and which lines and branches it never ran"
	@echo "make lint       ruff and mypy"
	@echo "make install    create $(VENV) and install the package, its extras and the tools"

# Reinstalled only when what would be installed or compiled has changed.
$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(wildcard src/tp_transformer/foundation/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@

install: $(INSTALLED)

test: $(INSTALLED)
	$(PYTEST)

test-all: $(INSTALLED)
	$(PYTEST) -m "slow or not slow"

coverage: $(INSTALLED)
	$(PYTEST) --cov --cov-report=term --cov-report=html:build/coverage

test-core:
	$(PYTHON) -m venv --clear .venv-core
	.venv-core/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	.venv-core/bin/python -c "import tp_transformer as tpt; m = tpt.build('tp-transformer-tiny'); \
	  print(tpt.__version__, 'core alone:', m.n_parameters, 'parameters;', m.solve(['What is 3 + 4?']))"
	.venv-core/bin/tpt models
	@if [ -e src/tp_transformer/bundled/models.json ]; then \
	  cd .venv-core && set -x && bin/tpt solve "What is 3 + 4?"; fi

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(INSTALLED)
	$(BIN)/tpt demo

clean:
	rm -rf $(VENV) .venv-core .pytest_cache .mypy_cache .ruff_cache
