# make setup | demo | test | docs | gpu-test | format
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,report,pandas,medical,h5,flower,privacy,ray,slurm,export,docs

.PHONY: setup demo test docs gpu-test format lint types pytest clean

# Bytecode is kept, whatever the surroundings say: without it every process compiles PyTorch again, and the tests start a hundred.
export PYTHONDONTWRITEBYTECODE :=

# Without --no-compile, pip compiles every file of PyTorch, most of which are never imported.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

setup: $(VENV)/.done

# The package with its page and figures is enough for the demo and for what it names next; `setup` adds the extras and the development tools.
$(VENV)/.base: pyproject.toml constraints.txt
	@echo "Making an environment in $(VENV): 1 GB on the disk, in half a minute or a few, as the line allows."
	@$(PYTHON) -m venv $(VENV)
	@echo "pip fetches PyTorch now (200 MB without CUDA, several GB with it), and is silent until it has it ..."
	@$(PIP) torch hatchling editables
	@echo "... and what Unseen takes besides: numpy, scipy, scikit-learn, pillow, safetensors, rich, typer, matplotlib, jinja2."
	@$(PIP) --no-build-isolation -e ".[report]"
	@touch $@

$(VENV)/.done: $(VENV)/.base
	@echo "pip fetches the extras and the development tools (some 600 MB), and is silent until it has them ..."
	@$(PIP) --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

demo: $(VENV)/.base
	@echo "FedAvg, FedSB and best on each of four unseen domains of digits that are made here: about a minute on two cores."
	$(BIN)/unseen bench experiments/demo.toml --out runs/demo --seeds 0

# Format, lint, types and documents first, side by side: a mistake that they find need not wait for the tests.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint types docs
	@$(MAKE) --no-print-directory pytest

# The documents as a site, in site/. A warning is an error (`strict` in mkdocs.yml).
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Three at a time on two cores: the tests between processes mostly wait.
pytest: setup
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

# What needs a GPU, with the system's Python: torch, pytest and what `unseen` imports are enough.
gpu-test:
	PYTHONPATH=src $(PYTHON) -c "import torch; print(torch.cuda.get_device_name())"
	UNSEEN_CACHE=$${UNSEEN_CACHE:-$$(mktemp -d)} PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu -W default -p no:cacheprovider tests/gpu

format: setup
	$(BIN)/python docs/making/tables.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
