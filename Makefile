# make setup | demo | test | docs | gpu-test | format
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,report,pandas,medical,h5,flower,privacy,ray,slurm,export,docs

.PHONY: setup demo test docs gpu-test format lint types pytest clean

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

setup: $(VENV)/.done

# The package alone is enough for the demo; `setup` adds the extras and the development tools.
$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e .
	touch $@

$(VENV)/.done: $(VENV)/.base
	$(PIP) --no-build-isolation -e ".[$(EXTRAS)]"
	touch $@

demo: $(VENV)/.base
	$(BIN)/unseen bench experiments/demo.toml --out runs/demo --seeds 0

# Format, lint, types and documents first: they take half a minute, and a mistake that they find need not wait for the tests.
test: lint types docs pytest

# The documents as a site, in site/. A warning is an error (`strict` in mkdocs.yml).
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Three at a time on two cores: the tests between processes mostly wait.
pytest: setup
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

# What needs a GPU, with the system's Python: torch, pytest and what `unseen` imports are enough.
gpu-test:
	PYTHONPATH=src $(PYTHON) -c "import torch; print(torch.cuda.get_device_name())"
	UNSEEN_CACHE=$${UNSEEN_CACHE:-$$(mktemp -d)} PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu -W default -p no:cacheprovider tests/gpu

format: setup
	$(BIN)/python docs/making/methods_table.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
