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
# Half of the tests' time is waiting, so there are two workers for each core, and no more than eight brokers at a time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? 2 * n : 8)))
# Brokers that tests start would compile their modules each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run demo broker test test-fast test-compiled check format docs bench bench-secure bench-edge properties sim sim-planted cluster-kills client-failover cluster-faults partitions crash groups transactions transactions-divided streams-kills quotas hostile security schemas registry-kills validation-kills registry-hostile registry-clients openapi-fuzz edge-kafka spark-kills pipeline-kills spark-cluster spark-previous screens sdp extras clean

# A broker, a shop that sends events to it, a pipeline on Spark, and a view of all three, until Ctrl-C. It kills its driver
# and its broker once each; DEMO_ARGS=--no-kills does not.
run: $(VENV)/.run
	@exec $(BIN)/ottla demo --data $(DEMO) --listener $(LISTENER) --metrics $(METRICS) $(if $(INSECURE),--insecure) $(DEMO_ARGS)

# The same with an end: prints the tables and the quarantine, and compares every figure with the events sent. It deletes
# its tables at the end; KEEP=1 keeps them.
demo: $(VENV)/.run
	@exec $(BIN)/ottla demo --events $(or $(EVENTS),5000) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep) $(DEMO_ARGS)

# The broker alone.
broker: $(VENV)/.run
	@echo "Starting a broker on $(LISTENER), data in $(DATA). Stop it with Ctrl-C."
	@echo "In another terminal:"
	@echo "  $(BIN)/ottla topic create hello --partitions 3"
	@echo "  echo 'hello world' | $(BIN)/ottla produce hello"
	@echo "  $(BIN)/ottla consume hello --exit"
	@echo "  kcat -b 127.0.0.1:9092 -L            # or any other Kafka client"
	@echo "  $(BIN)/ottla doctor                  # if something does not work"
	@exec $(BIN)/ottla broker --data $(DATA) --listener $(LISTENER) --metrics $(METRICS) $(if $(INSECURE),--insecure)

# Everything, in parallel: WORKERS=1 for less memory, PYTEST_ARGS="-n 0 tests/unit" for no workers and some of the tests.
test: $(VENV)/.dev kcat kerberos
	$(BIN)/pytest -n $(WORKERS) --durations 15 --durations-min 2 $(PYTEST_ARGS)

# Tests that start no other process: seconds.
test-fast: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) -W error::ResourceWarning -m "not broker and not client and not foreign and not crash and not spark" $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_docs.py --check
	$(BIN)/python tools/generate_cli_docs.py --check
	$(BIN)/python tools/generate_pipeline_docs.py --check
	$(BIN)/python tools/generate_spark_docs.py --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tools/generate_cli_docs.py
	$(BIN)/python tools/generate_pipeline_docs.py
	$(BIN)/python tools/generate_spark_docs.py

# Compares Ottla with Apache Kafka on this machine; writes docs/reference/performance.md. Takes long.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(if $(BENCH_ARGS),,$(MAKE) bench-secure bench-edge)

# Produce and consume with TLS, SCRAM, ACLs and quotas beside Apache Kafka: about five minutes.
bench-secure: $(VENV)/.dev
	$(BIN)/python -m benchmarks.secure --write $(BENCH_ARGS)

# Requests per second, memory and start of the schema registry and the REST proxy: about four minutes.
bench-edge: $(VENV)/.dev
	$(BIN)/python -m benchmarks.edge --write $(BENCH_ARGS)

# Tests of running brokers, with the hot modules compiled by mypyc: needs a C compiler.
test-compiled: $(VENV)/.dev
	$(BIN)/python tools/compile_hot_modules.py .bench/compiled
	PYTHONPATH=$(CURDIR)/.bench/compiled $(BIN)/pytest -n $(WORKERS) tests/clauses tests/broker tests/hostile \
	  tests/compat/test_client_records.py tests/compat/test_client_transactions.py $(PYTEST_ARGS)

# Property tests with new random examples, ROUNDS=10 times over; `make test` always takes the same examples.
properties: $(VENV)/.dev
	for round in $$(seq $(or $(ROUNDS),10)); do \
	  OTTLA_RANDOM_EXAMPLES=1 $(BIN)/pytest -q -n $(WORKERS) -m hypothesis tests/unit tests/model || exit 1; done

# The broker in a simulated world (docs/internals/simulation.md): SEED=7 replays one seed with its trace, SEEDS=1000 is a campaign,
# BROKERS=3 runs a cluster.
sim: $(VENV)/.dev
	$(BIN)/python tests/sim/sim_campaign.py $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) --brokers $(or $(BROKERS),1) $(if $(PROFILE),--profile '$(PROFILE)')

# Bugs that are planted into the broker, and the seed with which each check of the simulation reports its bug first: some minutes.
# BUGS="two-leaders kip-101" selects checks and bugs.
sim-planted: $(VENV)/.dev
	$(BIN)/python tests/sim/sim_planted.py --seeds $(or $(SEEDS),100) $(if $(BUGS),--only $(BUGS))

# kill -9 of the brokers of a cluster under load: KILLS=100 SEED=1 ROLE=leader|controller|group|transaction|any, all of
# them optional. SECURE=1: clients and brokers use TLS and SCRAM, and certificates are replaced meanwhile.
cluster-kills: $(VENV)/.dev
	$(BIN)/python tests/cluster/cluster_kills.py --kills $(or $(KILLS),20) --seed $(or $(SEED),1) --role $(or $(ROLE),any) \
	  $(if $(SECURE),--secure)

# Kill the leader of three registry instances while clients register schemas and an exporter copies them.
registry-kills: $(VENV)/.dev
	$(BIN)/python tests/edge/registry_kills.py --kills $(or $(KILLS),50) --seed $(or $(SEED),1) --exporter

# Kill the broker and stop the registry while producers send records to a topic with schema.validation=dlq.
validation-kills: $(VENV)/.dev
	$(BIN)/python tests/edge/validation_kills.py --kills $(or $(KILLS),20) --seed $(or $(SEED),1)

# Registry clients for JavaScript, Java and Go (fetched once, about 200 MB): with the leader, with a follower, with both
# instances, and with TLS and a password. About a minute.
registry-clients: $(VENV)/.dev
	OTTLA_REGISTRY_CLIENTS=all $(BIN)/pytest tests/edge/test_registry_clients.py -v $(PYTEST_ARGS)

# Hostile schemas against a registry, with clients beside them: prints times and memory. ROUNDS=3 repeats them.
registry-hostile: $(VENV)/.dev
	$(BIN)/python tests/edge/registry_hostile.py --rounds $(or $(ROUNDS),1)

# The tests of the registry and of the REST proxy with Apache Kafka instead of Ottla: about five minutes, needs Java.
edge-kafka: $(VENV)/.dev
	OTTLA_EDGE_KAFKA=1 $(BIN)/pytest $$(grep -lE "edge_broker|rest_broker|rest: RestClient" tests/edge/test_*.py) $(PYTEST_ARGS)

# schemathesis over the OpenAPI documents of the registry and the REST proxy: EXAMPLES=50 random requests for each operation, and
# the limits of each value. SEED=2 chooses other requests. Some minutes.
openapi-fuzz: $(VENV)/.dev
	$(BIN)/python tests/edge/openapi_fuzz.py --examples $(or $(EXAMPLES),50) --seed $(or $(SEED),1)

# Pauses, kills, power cuts, restarts and a missing ZooKeeper in a cluster under load, with what was predicted: CASE=kill-two
# runs one case. Power cuts need root. The limits on times need a quiet machine. About ten minutes.
cluster-faults: $(VENV)/.dev
	$(BIN)/python tests/cluster/cluster_faults.py --case $(or $(CASE),all) --seed $(or $(SEED),1)

# Network partitions of a cluster under load (docs/internals/network-partitions.md): about ten minutes, needs root. CASE=P2 selects,
# CASE=P7 all one-way cuts.
partitions: $(VENV)/.dev nftables
	$(BIN)/python tests/cluster/network_partitions.py $(if $(CASE),--case $(CASE))

# Clients of others (confluent-kafka, kafka-python, aiokafka, sarama, franz-go, kafkajs, Java) while the leader and the coordinator of their
# group are killed: SECONDS=30 CLIENT=sarama, both optional.
client-failover: $(VENV)/.dev
	PYTHONPATH=tests/compat:. $(BIN)/python tests/compat/client_failover.py --seconds $(or $(SECONDS),30) $(if $(CLIENT),--client $(CLIENT))

# Crash campaigns with many more kills than in `make test`.
crash: $(VENV)/.dev
	$(BIN)/pytest tests/crash -m crash --kills $(or $(KILLS),50) -s
	OTTLA_CUT_EVERY=1 $(BIN)/pytest tests/model/test_transaction_cuts.py tests/model/test_compaction_cuts.py

# Long storms over consumer groups: CHANGES=100 SEED=1 AGAINST=kafka, all of them optional.
groups: $(VENV)/.dev
	$(BIN)/pytest tests/groups --changes $(or $(CHANGES),100) \
	  $(if $(SEED),--storm-seed $(SEED)) $(if $(AGAINST),--against $(AGAINST)) -s

# Exactly-once under kills and on a bad network: KILLS=100 RECORDS=1000000 RUNS=200 SEED=1, all of them optional.
transactions: $(VENV)/.dev
	$(BIN)/pytest tests/transactions --txn-kills $(or $(KILLS),100) --txn-records $(or $(RECORDS),1000000) \
	  --txn-runs $(or $(RUNS),200) $(if $(SEED),--txn-seed $(SEED)) -s
	OTTLA_LONG=1 $(BIN)/pytest tests/clauses/test_transaction_clauses.py tests/compat/test_client_transactions.py \
	  -k "used_up or thousands or a_restart"

# The tests of transactions with a cluster in the place of each broker, in which one broker coordinates the transactions, one leads
# the topics and one has the groups. Some minutes.
transactions-divided: $(VENV)/.dev
	OTTLA_DIVIDED=1 $(BIN)/pytest -n 2 $(or $(PYTEST_ARGS),tests/clauses/test_transaction_clauses.py \
	  tests/compat/test_client_transactions.py tests/compat/test_foreign_transactions.py tests/broker/test_cli_txn.py \
	  tests/transactions/test_transactions_bank.py tests/transactions/test_transactions_copy.py \
	  tests/transactions/test_transactions_offsets.py)

# Kafka Streams with exactly_once_v2 on three brokers, of which some are killed: KILLS=20 SEED=1 ROLE=transaction|changelog|group|
# application|mixed, all of them optional. Fetches about 90 MB of jars once; needs Java and Maven. Some minutes.
streams-kills: $(VENV)/.dev
	$(BIN)/python tests/cluster/streams_kills.py --kills $(or $(KILLS),20) --seed $(or $(SEED),1) --role $(or $(ROLE),mixed)

# Producers and consumers of librdkafka and Java with quotas, for SECONDS=60 at RATE=2000000 bytes per second each: the measured rates
# must be within 10 % of the quotas. CLIENT=java selects.
quotas: $(VENV)/.dev
	PYTHONPATH=tests/compat:. $(BIN)/python tests/compat/quota_rates.py --seconds $(or $(SECONDS),60) --rate $(or $(RATE),2000000) $(if $(CLIENT),--client $(CLIENT))

# Hostile clients at full size, with limits on latency and memory: needs a quiet machine. ATTACKS="fetch" selects some.
hostile: $(VENV)/.dev
	OTTLA_HOSTILE=1 $(BIN)/pytest tests/hostile -s $(if $(ATTACKS),-k "$(ATTACKS)")

# Random ACLs and requests against a reference: CASES=1000000 SEED=1, both optional; ZooKeeper over TLS; brokers with
# files server.properties that were written for Kafka. KAFKA=1 sends the requests of the access
# matrix to Ottla and to Apache Kafka and compares the replies, and lets clients use delegation tokens in a cluster: two minutes.
security: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python tests/security/acl_campaign.py --cases $(or $(CASES),1000000) --seed $(or $(SEED),1)
	$(BIN)/python tests/security/zookeeper_tls.py
	OTTLA_SECURITY=1 $(BIN)/pytest -q tests/compat/test_server_properties.py
	$(if $(KAFKA),PYTHONPATH=. $(BIN)/python tests/security/kafka_matrix.py)
	$(if $(KAFKA),OTTLA_SECURITY=1 $(BIN)/pytest -q tests/compat/test_cluster_tokens.py)

# Schemas of each format, random pairs of them, against the reference of that format: Java's Avro, protoc, ... PAIRS=10000 SEED=1.
schemas: $(VENV)/.dev
	for campaign in tests/schemas/*_campaign.py; do \
	  PYTHONPATH=. $(BIN)/python $$campaign --pairs $(or $(PAIRS),10000) --seed $(or $(SEED),1) || exit 1; done

# Exactly once through Spark, into a topic and a table, while drivers, executors and brokers are killed: KILLS=100
# ROWS=1000000 SEED=1 BROKERS=3, all of them optional. BROKERS=3 runs ZooKeeper and a cluster.
spark-kills: $(VENV)/.dev
	$(BIN)/python tests/spark/kill_campaign.py --kills $(or $(KILLS),100) --rows $(or $(ROWS),1000000) \
	  --brokers $(or $(BROKERS),1) $(if $(SEED),--seed $(SEED))

# Exactly once through `ottla pipeline run` with the settings that ship, while drivers, executors, workers and brokers
# are killed or frozen and the disk of the checkpoints loses its power (needs root): KILLS=150 ROWS=1000000 SEED=1
# BROKERS=3, all of them optional. BROKERS=3 runs ZooKeeper and a cluster.
pipeline-kills: $(VENV)/.dev
	$(BIN)/python tests/spark/pipeline_campaign.py --kills $(or $(KILLS),150) --rows $(or $(ROWS),1000000) \
	  --brokers $(or $(BROKERS),1) $(if $(SEED),--seed $(SEED))

# The demonstration on a standalone cluster that loses a worker, compared with a run in one process: some minutes.
spark-cluster: $(VENV)/.dev
	OTTLA_SPARK_CLUSTER=1 $(BIN)/pytest tests/spark/test_standalone_cluster.py -s

# The Spark tests with the minor release before the newest, in a virtual environment of its own: some minutes. `make test` runs the newest
# that pyproject.toml allows.
SPARK_PREVIOUS := 4.2
spark-previous: $(VENV)-spark-previous/.dev
	$(VENV)-spark-previous/bin/pytest --durations 5 $(or $(PYTEST_ARGS),tests/spark tests/unit/spark tests/unit/pipeline)

# Screens of the demonstration as text, in terminals of 80 and 140 columns: writes docs/start/screens. Takes some minutes.
screens: $(VENV)/.run
	$(BIN)/python tools/capture_screens.py --size 80x24 --size 140x50 --out docs/start/screens

# Spark Declarative Pipelines: the example of the documentation, killed and continued.
sdp: $(VENV)/.dev
	OTTLA_SDP=1 $(BIN)/pytest tests/sdp -s

# Each extra, installed by pip into an empty virtual environment, with the newest and with the minimum versions: its commands must
# start, and tests of security, services and schemas pass with the minimum versions. EXTRA=edge VERSIONS=minimum select. Long: Spark is downloaded for each.
extras: $(VENV)/.dev
	$(BIN)/python tests/packaging/extras_check.py $(if $(EXTRA),--extra $(EXTRA)) $(if $(VERSIONS),--versions $(VERSIONS))

clean:
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

$(VENV)-spark-previous/.dev: pyproject.toml $(BIN)/python
	$(PYTHON) -m venv $(VENV)-spark-previous
	$(VENV)-spark-previous/bin/pip install --quiet --disable-pip-version-check -e '.[dev]' 'pyspark==$(SPARK_PREVIOUS).*'
	@touch $@

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

# The rules that drop packets in `make partitions`, which says what is missing if this fails.
.PHONY: nftables
nftables:
	@command -v nft >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq && apt-get install -y -qq nftables; } >/dev/null 2>&1; } || true
