# make demo and make test need nothing prepared: they set .venv up first, from the locked packages.
# PYTHON=/path/to/python3 chooses the Python that .venv is made with.
export PYTHON

BIN := .venv/bin
UV := uv==0.13.8
SOURCES := src tests $(patsubst %/,%,$(sort $(dir $(wildcard benchmarks/*.py examples/*/*.py examples/*/*/*.py fuzz/*.py mutation/*.py tools/*.py))))
BENCHMARKS := $(addprefix benchmarks.,decode encode store kv producer stream fronts dialects replicate \
	spark spark_fixed spark_scaling spark_changelog pipeline spark_latency current large_lake sink \
	xdcr durable durable_read durable_open durable_pause durable_scaling sync_writes rollback_travel \
	pauses quota idle login guessing sdk tls subdoc dashboard typed_documents \
	typed_table micro_batches)
BENCHED := .venv/installed-bench
MUTATED := .venv/installed-mutation
DOCUMENTED := .venv/installed-docs
GENERATORS := $(wildcard tools/generate_*.py)

.PHONY: help
help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

.PHONY: install
install: ## the virtual environment .venv, where it is not there or not as locked
	@tools/install

# The recipe becomes the command itself, so that Ctrl-C reaches it and its exit status is make's.
.PHONY: demo
demo: install ## the main job, start to end; FILE=docs.jsonl KEY=id VALUE=doc COUNT=10000 RATE=200, each optional
	@exec $(BIN)/penstock demo $(if $(FILE),--file '$(FILE)') $(if $(KEY),--key '$(KEY)') \
		$(if $(VALUE),--value '$(VALUE)') $(if $(COUNT),--count '$(COUNT)') $(if $(RATE),--rate '$(RATE)')

# As many tests at a time as there are cores; ARGS='-n 0' runs them one by one, as a debugger needs it.
PARALLEL := -n auto --dist worksteal

# The package is compiled once, and not by each of the hundreds of processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

# Of use only to the Spark beside it. Without it, Spark starts slower.
CLASSES := .venv/spark.jsa
$(CLASSES): requirements/dev.txt tools/archive_classes.py | install
	@echo "Archiving Spark's classes, once."
	@$(BIN)/python tools/archive_classes.py $@

.PHONY: test
test: install $(CLASSES) ## all tests but the long ones; ARGS='-k rollback' chooses
	@exec $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

.PHONY: quick
quick: install ## the tests that take less than a second and need no Spark session and no other process
	@exec $(BIN)/python -m pytest $(PARALLEL) -m "not spark and not process and not long and not soak" --hypothesis-profile=quick $(ARGS)

.PHONY: others
others: install ## programs of others, which tests and benchmarks hold a node against
	@tools/install_compat

.PHONY: compat
compat: others ## the tests with programs of others; without these they are skipped in `make test`
	@PENSTOCK_COMPAT=required exec $(BIN)/python -m pytest tests/compat $(ARGS)

SEEDS := 2000
JOBS := 1
.PHONY: simulate
simulate: install ## simulate a cluster with faults; SEEDS=2000 of them, JOBS=2 at a time
	@exec $(BIN)/python -m tests.simulation 0 $$(( $(SEEDS) - 1 )) --jobs $(JOBS)

.PHONY: drift
drift: install ## a month of schema drift, with typed tables compared in DuckDB, Polars and delta-rs each day; ARGS='--no-spark --seed 2'
	@exec $(BIN)/python -m tests.drift $(ARGS)

# All of it runs, whatever fails; the exit status tells whether something did.
MINUTES := 60
SOAK_MINUTES := 30
.PHONY: soak
soak: $(MUTATED) ## the long tests, a consumer and a cluster under faults for SOAK_MINUTES=30 each, 100,000 simulations, mutation testing, fuzzing; MINUTES=60 a dialect, JOBS=2 at a time
	@failed=; \
	$(BIN)/python -m pytest -m 'soak or hypothesis' --hypothesis-profile=soak $(ARGS) || failed="$$failed tests"; \
	$(BIN)/python -m tests.client.fault_soak --minutes $(SOAK_MINUTES) || failed="$$failed consumer"; \
	$(BIN)/python -m tests.kills.cluster_faults --minutes $(SOAK_MINUTES) || failed="$$failed cluster"; \
	$(BIN)/python -m tests.simulation 0 99999 --jobs $(JOBS) || failed="$$failed simulation"; \
	$(BIN)/python -m tests.drift || failed="$$failed drift"; \
	$(BIN)/python -m mutation || failed="$$failed mutation"; \
	$(BIN)/python -m fuzz --minutes $(MINUTES) --jobs $(JOBS) || failed="$$failed fuzz"; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: mutation
mutation: $(MUTATED) ## change the modules that decide, and see that tests notice; ARGS='store/history/rollback' chooses
	@exec $(BIN)/python -m mutation $(ARGS)

.PHONY: fuzz
fuzz: install ## fuzzing; ARGS='--seconds 60 --dialect tap' chooses
	@exec $(BIN)/python -m fuzz $(ARGS)

.PHONY: check
check: install ## format, lint, types, language, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python tools/check_language.py
	@set -e; for generator in $(GENERATORS); do echo "$$generator --check"; $(BIN)/python $$generator --check; done

.PHONY: format
format: install ## rewrite the code as check wants it, and the generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@set -e; for generator in $(GENERATORS); do echo "$$generator"; $(BIN)/python $$generator; done

# Kept out of what the tests need, as is what mutation testing and the site need.
$(BENCHED): requirements/bench.txt | install
	PIP_USER=0 $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

$(MUTATED): requirements/mutation.txt | install
	PIP_USER=0 $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

$(DOCUMENTED): requirements/docs.txt | install
	PIP_USER=0 $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

# The theme and MkDocs print advertisements for their successors, which these variables silence.
.PHONY: docs
docs: $(DOCUMENTED) ## the site in build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --strict --clean $(ARGS)
	@echo "Built. Look at it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

.PHONY: bench
bench: $(BENCHED) others ## every benchmark, one after the other; benchmarks/RESULTS.md has the figures
	@set -e; for bench in $(BENCHMARKS); do $(BIN)/python -m $$bench $(ARGS); echo; done

# A pin stays as it is while the ranges allow it; UPGRADE=1 moves all to the newest.
.PHONY: lock
lock: ## requirements/*.txt from pyproject.toml and requirements/build.in
	@test -x build/uv/bin/uv || "$$(tools/prerequisites)" -m venv build/uv
	@build/uv/bin/python -m pip install --quiet --disable-pip-version-check $(UV)
	@set -e; compile() { \
		build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
			--generate-hashes --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade) "$$@"; \
	}; \
	compile requirements/build.in --output-file requirements/build.txt; \
	compile pyproject.toml --extra spark --extra opentelemetry --extra dns --extra iceberg --extra kafka --group dev --output-file requirements/dev.txt; \
	compile --group bench --constraint requirements/dev.txt --output-file requirements/bench.txt; \
	compile --group compat --constraint requirements/dev.txt --output-file requirements/compat.txt; \
	compile --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt; \
	compile --group mutation --constraint requirements/dev.txt --output-file requirements/mutation.txt

.PHONY: clean
clean: ## remove all that is made, .venv included
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache src/*.egg-info src/penstock/wire/_native*.so
	find src tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
