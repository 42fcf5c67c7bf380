# `make demo` runs two scripts on photographs; `make test` is everything that a change must pass.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all test-gpu bench clean

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

test-gpu: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m gpu || test $$? -eq 5  # 5: no test is marked gpu

bench: $(VENV)/test.stamp
	$(BIN)/python tests/bench/scale.py

clean:
	rm -rf $(VENV) out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
