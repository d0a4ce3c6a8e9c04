# make install, make run and make test are all a newcomer needs. Each sets up what it lacks.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := kernels punica_serve scheduler runner frontend tests

.PHONY: install run check test test-slow soak demo-model demo-check clean

install: .venv/.installed

# torch comes first and alone: pip then takes the CPU build where one is offered, whatever the others would ask for.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine,bench,dev]'
	touch $@

run: install
	$(BIN)/punica-serve up

check: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: check
	$(BIN)/pytest

test-slow: install
	$(BIN)/pytest -m slow

# Random faults under load; MINUTES=10 SEED=7 make soak breaks the same things again.
soak: MINUTES ?= 10
soak: install
	MINUTES=$(MINUTES) SEED=$(SEED) $(BIN)/pytest -m slow tests/faults/test_soak.py

demo-model: install
	$(BIN)/python -m punica_serve.demo.train

demo-check: install
	$(BIN)/python -m punica_serve.demo.check

clean:
	rm -rf .venv build dist bench-results
