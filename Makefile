# make run and make test are all a newcomer needs. Each sets up what it lacks, once.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# mkdocs-material advertises at each build.
export NO_MKDOCS_2_WARNING := 1
# Tests are collected, and hundreds of processes start, from compiled modules, also where the environment says to keep none.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := kernels punica_serve scheduler runner frontend tests examples

.PHONY: install clients run check test test-slow soak compose-smoke demo-model demo-check docs screenshots clean

# All that testing and measuring takes. `make run` needs only the first part of it.
install: .venv/.installed

# torch comes first and alone: pip then takes the CPU build where one is offered, whatever the others would ask for.
.venv/.serving: pyproject.toml constraints.txt
	@echo 'setting up .venv for serving: about 1.1 GB'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine]'
	touch $@

.venv/.installed: .venv/.serving
	@echo 'adding what testing takes: about 2 GB more'
	$(PIP) install --quiet --constraint constraints.txt --editable '.[bench,dev]'
	touch $@

# Clients that others wrote, for tests/e2e/clients, which skip without them.
clients: .venv-clients/.installed

.venv-clients/.installed: constraints-clients.txt
	@echo 'setting up .venv-clients: about 2 GB, some minutes'
	$(PYTHON) -m venv --clear .venv-clients
	.venv-clients/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --requirement $<
	touch $@

run: .venv/.serving
	$(BIN)/punica-serve up

check: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-cache
	$(BIN)/mkdocs build --strict --quiet

# The tests of a file stay together, with what they share.
IN_TWO := --numprocesses 2 --dist loadfile

test: check
	$(BIN)/pytest -rs $(IN_TWO)

# In the order of the folders: the tests of clusters, which take longest, begin first. At last, what hypothesis draws few
# examples for in the fast tier has all of them.
test-slow: install
	$(BIN)/pytest -rs -m 'slow and not alone' $(IN_TWO) --no-loadscope-reorder
	$(BIN)/pytest -rs -m 'slow and alone'
	$(BIN)/pytest -rs -m 'hypothesis and not slow and not gpu' --hypothesis-profile=ci $(IN_TWO)

# Random faults under load; MINUTES=10 SEED=7 make soak breaks the same things again.
soak: MINUTES ?= 10
soak: install
	MINUTES=$(MINUTES) SEED=$(SEED) $(BIN)/pytest -m slow tests/faults/test_soak.py

# Builds and runs docker/compose.yaml; needs a Docker engine, with `docker compose` or docker-compose.
compose-smoke: install
	$(BIN)/pytest -m slow -rs tests/docker

demo-model: install
	$(BIN)/python -m punica_serve.demo.train

demo-check: install
	$(BIN)/python -m punica_serve.demo.check

# Writes the parts of docs/ that come from the code, and the site in build/site.
docs: install
	$(BIN)/python -m punica_frontend.websocket.stream_schema docs/generate-stream.schema.json
	$(BIN)/python -m punica_frontend.watch.schema docs/cluster-watch.schema.json
	$(BIN)/python -m punica_frontend.metrics.table docs/metrics.md
	$(BIN)/mkdocs build --strict

# Makes pictures of the dashboard in Debian's Chromium.
screenshots: install
	SCREENSHOTS_TO=docs/dashboard $(BIN)/pytest -m slow tests/e2e/test_dashboard.py -k screenshots

clean:
	rm -rf .venv .venv-clients build dist bench-results
