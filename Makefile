# Everything that is done in this repository. The environment (.venv) is made once and again when what it is
# made from changes; see CONTRIBUTING.md.

PYTHON ?= python3
VENV   ?= .venv
# Another release of torch, in an environment of its own: make test TORCH=2.15.0 PYTHON=python3.14
TORCH ?=
# More words for pip when it installs torch, e.g. TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
TORCH_ARGS ?=
# More words for pytest: make test ARGS="-k timeline"
ARGS ?=
# Damaged profiles to try: make fuzz CASES=100000
CASES ?= 1000

ifneq ($(TORCH),)
  VENV := .venv-torch-$(TORCH)-$(notdir $(PYTHON))
endif
BIN   := $(VENV)/bin
STAMP := $(VENV)/.made-from-pins
PIP   := $(BIN)/python -m pip install --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help setup demo view test bench fuzz lint format docs figures gallery dist compatibility screenshots browser clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the environment .venv (every other command does it by itself)

# torch goes first and alone: the rest then finds it there and cannot bring another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "IPUscope needs Python 3.11 or later, but $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo not there);" \
	       "say which to use: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@rm -f $@
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "no virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	@echo "Into $(VENV), which takes minutes: PyTorch, then what constraints.txt lists. From PyPI that is PyTorch with CUDA;"
	@echo "make $(MAKECMDGOALS) TORCH_ARGS='--index-url https://download.pytorch.org/whl/cpu' takes the one for the CPU"
	$(PIP) $(TORCH_ARGS) $(if $(TORCH),torch==$(TORCH),"$$(grep '^torch==' constraints.txt)")
	$(PIP) -c $(VENV)/constraints.txt -e '.[cluster,dev,docs,examples,lightning]'
	@touch $@

demo: $(STAMP) ## Train the example on four modelled IPUs and print its profile
	$(BIN)/python examples/mnist_pipeline.py --profile-dir demo
	@echo
	$(BIN)/ipu-report summary demo/training
	@echo
	$(BIN)/ipu-report stages demo/training
	@echo
	@echo "The pipeline as a picture: 'make view', or $(BIN)/ipu-report view demo/training"

demo/training/profile.pop:
	@$(MAKE) --no-print-directory demo

view: $(STAMP) demo/training/profile.pop ## Open the viewer on the demo's profile (and make that, if need be)
	$(BIN)/ipu-report view demo/training

test: $(STAMP) ## Run the tests on all cores; ARGS="-k timeline" for some of them
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

fuzz: $(STAMP) ## Read damaged profiles by everything, CASES=1000 of them, within time and memory
	$(BIN)/python -m tools.fuzz --cases $(CASES)
	$(BIN)/python -m tools.fuzz --cases $(CASES) --columns

lint: $(STAMP) ## Check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Put the sources into the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Build the documentation's site into site/, without a warning
	$(BIN)/python -m tools.site

gallery: $(STAMP) ## Profiles of ResNet-50, BERT-Large, GPT-2 and ViT as HTML reports, in gallery/
	$(BIN)/python -m tools.gallery

dist: $(STAMP) ## Build and check wheel and sdist, and run the wheel outside of the clone
	$(BIN)/python -m tools.wheel

# A page names the commit that its figures were made at. Timings want a machine that does nothing else.
figures: $(STAMP) ## Make all pages of figures again: predictions (half an hour) and timings (hours)
	for page in fidelity scaling rebalance plan advise compile overhead profile viewer clients; do \
	  $(BIN)/python -m benchmarks.$$page || exit 1; \
	done

bench: $(STAMP) ## Ratios of CPU seconds beside docs/ratios.md; fails where one is 20 % worse
	$(BIN)/python -m benchmarks.ratios

compatibility: $(STAMP) ## Write docs/compatibility.md again
	$(BIN)/python -m tools.compatibility > docs/compatibility.md

screenshots: $(STAMP) browser demo/training/profile.pop ## Pictures of the pages of the demo, in gallery/demo
	$(BIN)/python -m tools.screenshots

browser: ## See that there is a chromium for the viewer's tests and screenshots
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium fonts-dejavu-core; \
	else \
	  echo "no chromium: the viewer's browser tests will be skipped. Install one: apt-get install chromium" >&2; \
	fi

clean: ## Remove what was made: environment, caches, the demo's profiles
	rm -rf $(VENV) .venv-torch-* demo gallery site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find ipuscope ipu_exec profiler viewer reports tests examples benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
