# `make run` and `make test` install what is missing and need nothing but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA := bfcl-eval==2026.3.23

.PHONY: run test chaos lint clean

run: $(STAMP)
	$(BIN)/rods run

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest

# Kills processes of a run a hundred times in named states; about twenty minutes.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos.campaign --points 100

lint: $(STAMP)
	$(BIN)/ruff check .

# bfcl-eval is taken without its requirements: its pins cannot be installed beside ours, and only data and simulators are used.
$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip==26.3
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[train,test]'
	$(BIN)/python -m pip install --quiet --no-deps $(DATA)
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
