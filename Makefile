# `make demo` and `make test` work on a fresh machine: both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check format bench bench-train bench-long bench-long-line bench-memory bench-save bench-load bench-corpus \
	bench-baseline test-asan clean

.venv/ready: pyproject.toml setup.py constraints.txt $(wildcard src/saccade/csrc/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/saccade demo

# Two processes of one thread each: most tests are too small for a second thread. A crashed process ends the run; without the
# option, pytest-xdist waits for ever.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --max-worker-restart=0

test: .venv/ready
	$(PYTEST) -m 'not slow'

test-all: .venv/ready
	$(PYTEST)

# The tests of kernels, ops and plans under AddressSanitizer and UBSan, with kernels that are built into build/asan. Leaks of Python
# and PyTorch are not reported. The first error ends the run; --capture=sys lets its report through.
ASAN := build/asan
ASAN_TESTS := tests/csrc tests/ops tests/plans

test-asan: .venv/ready
	SACCADE_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext --build-lib $(ASAN) --build-temp $(ASAN)/objects
	ls $(ASAN)/saccade/csrc/native_v1.*.so
	SACCADE_KERNELS=$(CURDIR)/$(ASAN)/saccade/csrc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		$(PYTEST) --capture=sys -m 'not slow' $(ASAN_TESTS)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Saccade and other toolkits in alternating runs; ARGUMENTS="--only training --sizes tiny" for a part of it. See docs/guide/benchmarks.md.
bench: .venv/ready
	$(BIN)/python -m bench.run $(ARGUMENTS)

bench-train: .venv/ready
	$(BIN)/python -m bench.training_loop $(ARGUMENTS)

bench-long: .venv/ready
	$(BIN)/python -m bench.long_input $(ARGUMENTS)

# One line of 100,000 characters among 20 short ones: time to the first output, total, and from Ctrl-C to the exit.
bench-long-line: .venv/ready
	$(BIN)/python -m bench.long_line $(RUN) $(ARGUMENTS)

bench-memory: .venv/ready
	$(BIN)/python -m bench.memory $(RUN) $(ARGUMENTS)

bench-save: .venv/ready
	$(BIN)/python -m bench.checkpoint_saving

bench-load: .venv/ready
	$(BIN)/python -m bench.model_loading

bench-corpus: .venv/ready
	$(BIN)/python -m bench.large_corpus

# Weights, outputs, logits and speed of two versions; ARGUMENTS="speed --before COMMIT". See bench/baseline.py.
bench-baseline: .venv/ready
	$(BIN)/python -m bench.baseline $(ARGUMENTS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
