# One target per task, the same here and in CI. Each target installs what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DATA ?= ./data
DEMO ?= ./demo-data
LISTENER ?= PLAINTEXT://127.0.0.1:9092
METRICS ?= 127.0.0.1:9464
# INSECURE=1 lets LISTENER be another address than loopback, without encryption and authentication.
INSECURE ?=
# More than half of the tests' time is waiting, so there are more workers than cores, and no more than nine brokers at a time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? 2 * n + 1 : 9)))
# Brokers that tests start would compile their modules each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run demo broker test test-fast test-compiled check format docs site bench campaign sim sim-planted extras clean

# A broker, a shop that sends events to it, a pipeline on Spark, and a view of all three, until Ctrl-C. It kills its driver
# and its broker once each; DEMO_ARGS=--no-kills does not.
run: $(VENV)/.run ## a broker, a shop, a pipeline on Spark and a view of all three, until Ctrl-C
	@exec $(BIN)/ottla demo --data $(DEMO) --listener $(LISTENER) --metrics $(METRICS) $(if $(INSECURE),--insecure) $(DEMO_ARGS)

# The same with an end: prints the tables and the quarantine, and compares every figure with the events sent. It deletes
# its tables at the end; KEEP=1 keeps them.
demo: $(VENV)/.run ## the same with an end: EVENTS=5000 SEED=1 KEEP=1
	@exec $(BIN)/ottla demo --events $(or $(EVENTS),5000) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep) $(DEMO_ARGS)

# The broker alone.
broker: $(VENV)/.run ## the broker alone: DATA=./data LISTENER=PLAINTEXT://127.0.0.1:9092
	@echo "Starting a broker on $(LISTENER), data in $(DATA). Stop it with Ctrl-C."
	@echo "In another terminal:"
	@echo "  $(BIN)/ottla topic create hello --partitions 3"
	@echo "  echo 'hello world' | $(BIN)/ottla produce hello"
	@echo "  $(BIN)/ottla consume hello --exit"
	@echo "  kcat -b 127.0.0.1:9092 -L            # or any other Kafka client"
	@echo "  $(BIN)/ottla doctor                  # if something does not work"
	@exec $(BIN)/ottla broker --data $(DATA) --listener $(LISTENER) --metrics $(METRICS) $(if $(INSECURE),--insecure)

# Everything, in parallel: WORKERS=1 for less memory, PYTEST_ARGS="-n 0 tests/unit" for no workers and some of the tests.
test: $(VENV)/.dev kcat kerberos chromium ## all tests: WORKERS=1, PYTEST_ARGS="-n 0 tests/unit"
	$(BIN)/pytest -n $(WORKERS) --durations 15 --durations-min 2 $(PYTEST_ARGS)

# Tests that start no other process: seconds.
test-fast: $(VENV)/.dev ## the tests that start no other process
	$(BIN)/pytest -n $(WORKERS) -W error::ResourceWarning -m "not broker and not client and not foreign and not crash and not spark" $(PYTEST_ARGS)

check: $(VENV)/.dev ## format, lint, types, layers, deleted names and generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/deleted_names.py
	$(BIN)/python tools/generate_docs.py --check
	$(BIN)/python tools/generate_cli_docs.py --check
	$(BIN)/python tools/generate_pipeline_docs.py --check
	$(BIN)/python tools/generate_spark_docs.py --check

format: $(VENV)/.dev ## format the code and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## write the generated pages of docs/
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tools/generate_cli_docs.py
	$(BIN)/python tools/generate_pipeline_docs.py
	$(BIN)/python tools/generate_spark_docs.py

# The pages of docs/ as a web site in build/site. It fails if a link or an anchor leads nowhere.
site: $(VENV)/.dev ## build the web site of docs/ in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Compares Ottla with Apache Kafka on this machine; writes docs/reference/performance.md. Takes long. BENCH=secure (TLS, SCRAM, ACLs and
# quotas: five minutes) and BENCH=edge (registry and REST proxy: four minutes) run one part.
bench: $(VENV)/.dev ## measure Ottla beside Apache Kafka: BENCH=secure or BENCH=edge for one part
	$(if $(BENCH),,$(BIN)/python -m benchmarks $(BENCH_ARGS))
	$(if $(filter secure,$(BENCH))$(if $(BENCH)$(BENCH_ARGS),,all),$(BIN)/python -m benchmarks.secure --write $(BENCH_ARGS))
	$(if $(filter edge,$(BENCH))$(if $(BENCH)$(BENCH_ARGS),,all),$(BIN)/python -m benchmarks.edge --write $(BENCH_ARGS))

# Tests of running brokers, with the hot modules compiled by mypyc: needs a C compiler.
test-compiled: $(VENV)/.dev ## tests of brokers with the hot modules compiled by mypyc
	$(BIN)/python tools/compile_hot_modules.py .bench/compiled
	PYTHONPATH=$(CURDIR)/.bench/compiled $(BIN)/pytest -n $(WORKERS) tests/clauses tests/broker tests/hostile \
	  tests/compat/test_client_records.py tests/compat/test_client_transactions.py $(PYTEST_ARGS)

# Long runs that kill, pause and overload brokers and services. Without NAME it lists them with their options, for example
# NAME=cluster-kills KILLS=5 SEED=2. It ends with one line of verdict.
campaign: $(VENV)/.dev ## run a campaign: NAME=cluster-kills KILLS=5; lists them without NAME
	@$(BIN)/python tests/campaign $(MAKEOVERRIDES)

# The broker in a simulated world (docs/internals/simulation.md): SEED=7 replays one seed with its trace, SEEDS=1000 is a campaign,
# BROKERS=3 runs a cluster. Bugs that are planted into the broker: BUGS="two-leaders kip-101" selects checks and bugs.
sim: ## run the simulation: SEEDS=1000 BROKERS=3, or SEED=7
sim-planted: ## show that the simulation finds planted bugs
extras: ## install each extra into an empty environment and start its commands: EXTRA=edge VERSIONS=minimum
sim sim-planted extras: $(VENV)/.dev
	@$(BIN)/python tests/campaign NAME=$@ $(MAKEOVERRIDES)

# Every other name is that of a campaign: `make groups CHANGES=100` is `make campaign NAME=groups CHANGES=100`.
.DEFAULT:
	@$(MAKE) --no-print-directory campaign NAME=$@

clean: ## delete the virtual environment and all caches
	rm -rf $(VENV) $(VENV)-spark-previous .bench .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ottla needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) tools/install.py --venv $(VENV)

$(VENV)/.run: pyproject.toml $(BIN)/python
	@$(BIN)/python tools/install.py spark,edge
	@touch $@

$(VENV)/.dev: pyproject.toml $(BIN)/python
	@$(BIN)/python tools/install.py dev
	@touch $@ $(VENV)/.run

# kcat is the one foreign client that is small enough to fetch; without it its tests skip and say so.
.PHONY: kcat
kcat:
	@command -v kcat >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq && apt-get install -y -qq kcat; } >/dev/null 2>&1; } || \
	  echo "kcat is not installed and cannot be: its tests will skip (apt-get install kcat)"

# A KDC, and what kcat needs to log in with Kerberos; without it the tests of GSSAPI skip and say so.
.PHONY: kerberos
kerberos:
	@[ -x /usr/sbin/krb5kdc ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq krb5-kdc krb5-admin-server krb5-user \
	  libsasl2-modules-gssapi-mit; } >/dev/null 2>&1; } || \
	  echo "Kerberos is not installed and cannot be: its tests will skip (apt-get install krb5-kdc krb5-admin-server)"

# The browser of the tests of the console, 440 MB; without it they skip and say so.
.PHONY: chromium
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } || \
	  echo "chromium is not installed and cannot be: the tests of the console in a browser will skip (apt-get install chromium)"

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1#/p' Makefile | awk -F'#' '{ printf "%-14s %s\n", $$1, $$2 }'
