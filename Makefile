# `make demo` runs two scripts on photographs; `make test` is everything that a change must pass.
PYTHON ?= python3
# A Python with PyTorch (and JAX), for the comparison that `make bench` ends with.
PEERS ?= $(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes: each reads its modules compiled, also where the surroundings say otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-gpu sanitize fuzz mutants malformed soak bench clean

# The two stamps: the package alone, and the package with what the tests need. pip runs only when the
# requirements have changed; the package itself is installed in place, so that its code is always the present one.
$(VENV)/demo.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/test.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $(VENV)/demo.stamp $@

demo: $(VENV)/demo.stamp
	$(BIN)/loopfuse run examples/10_blur.lf
	$(BIN)/loopfuse run examples/11_histeq.lf

test: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

# With the tests marked slow, and new random examples.
test-all: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -m "not gpu" --hypothesis-profile=explore

# Random programs, from where the last run stopped: figures and what fails stay in out/; then the table in docs/trust.md.
TIME ?= 10m
JOBS ?= 1
fuzz: $(VENV)/demo.stamp
	mkdir -p out/fuzz
	$(BIN)/loopfuse fuzz --gen --time $(TIME) --jobs $(JOBS) --failures 20 --state out/fuzz/state.json --save out/fuzz; \
	code=$$?; $(BIN)/python tests/bench/fuzz_table.py out/fuzz/state.json && exit $$code

# Planted faults: which check finds each, from where the last run stopped; then the table in docs/trust.md. An hour for all.
mutants: $(VENV)/test.stamp
	$(BIN)/python -m tests.mutants --rest --table

# Damaged bytes for everything that reads, CASES a target; then guided by coverage, SECONDS a target, where atheris can be
# imported (pip install atheris).
CASES ?= 20000
SECONDS ?= 60
malformed: $(VENV)/test.stamp
	mkdir -p out/malformed
	cd tests && ../$(BIN)/python -m malformed.worker --cases $(CASES) --save ../out/malformed
	cd tests && ../$(BIN)/python -m malformed.guided --seconds $(SECONDS) --save ../out/malformed

# Ten thousand compilations in one process, and what they leave.
soak: $(VENV)/test.stamp
	$(BIN)/python tests/soak.py

# With what the GPU needs: PyCUDA is built here, by a C++ compiler and the CUDA headers.
$(VENV)/gpu.stamp: $(VENV)/test.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,cuda]'
	touch $@

# Without a GPU every test is skipped, and says why. What measures memory runs alone.
test-gpu: $(VENV)/gpu.stamp
	$(BIN)/python -m pytest -m gpu -n 4 --ignore tests/test_gpu_concurrency.py --ignore tests/test_gpu_runtime.py
	$(BIN)/python -m pytest -m gpu tests/test_gpu_concurrency.py tests/test_gpu_runtime.py

# The same tests under compute-sanitizer's memcheck, racecheck and initcheck.
sanitize: $(VENV)/gpu.stamp
	$(BIN)/python tests/sanitize.py

bench: $(VENV)/test.stamp
	$(BIN)/python tests/bench/scale.py
	@if $(PEERS) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then $(PEERS) tests/bench/peers.py; \
	else echo 'peers were not timed: $(PEERS) has no PyTorch, or there is no GPU'; fi

clean:
	rm -rf $(VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
