# make test and make demo do all the set-up: they need only Python >= 3.11, pip and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One process per core, up to what fits in a few gigabytes; a file's tests stay together, so that what
# they share is made once.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

.PHONY: help install test test-all test-core coverage lint docs dist demo clean

help:
	@echo "make demo       what the project does, in a minute"
	@echo "make test       the test suite, without what takes minutes"
	@echo "make test-all   the whole test suite"
	@echo "make test-core  the wheel with its core dependencies alone, in an environment of its own"
	@echo "make coverage   make test, and which lines and branches it never ran"
	@echo "make lint       ruff and mypy"
	@echo "make docs       the documentation site, in build/site; warnings are errors"
	@echo "make dist       wheel and source distribution, in dist"
	@echo "make install    create $(VENV) and install the package, its extras and the tools"

# Reinstalled only when what would be installed or compiled has changed.
$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(wildcard src/tp_transformer/ops/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev,docs]"
	@touch $@

install: $(INSTALLED)

test: $(INSTALLED)
	$(PYTEST)

test-all: $(INSTALLED)
	$(PYTEST) -m "slow or not slow"

coverage: $(INSTALLED)
	$(PYTEST) --cov --cov-report=term --cov-report=html:build/coverage

dist:
	rm -rf dist build/dist-env
	$(PYTHON) -m venv build/dist-env
	build/dist-env/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	build/dist-env/bin/python -m build --outdir dist

# TORCH=2.6.0 installs another version of torch than the one in constraints.txt.
test-core: dist
	$(PYTHON) -m venv --clear .venv-core
	sed "$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)" constraints.txt > .venv-core/constraints.txt
	.venv-core/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-core/constraints.txt dist/*.whl
	cd .venv-core && bin/python ../tests/support/smoke.py
	cd .venv-core && bin/tpt models && bin/tpt solve "What is 3 + 4?"

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(INSTALLED)
	$(BIN)/tpt demo

clean:
	rm -rf $(VENV) .venv-core build dist .pytest_cache .mypy_cache .ruff_cache
