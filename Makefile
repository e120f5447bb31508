# Every target makes what it needs: Python 3.11 to 3.13 with pip is all that has to be there.
#
#   PYTHON   the interpreter that makes the environment; the first that fits is looked for
#   VENV     where the environment is
#   WORKERS  how many processes run the tests
#   TESTS    which tests, all by default: make test TESTS=tests/scheduler
#   SCRATCH  where tests write: in memory where there is room

PYTHON  ?=
VENV    ?= .venv
WORKERS ?= 4
TESTS   ?=
SCRATCH ?= $(shell [ "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -ge 4000000 ] 2>/dev/null && echo /dev/shm)

PYTHONS := python3.11 python3.12 python3.13 python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
NODE_PACKAGES := containerd runc podman containernetworking-plugins iptables conntrack iproute2 mmdebstrap gcc libc6-dev etcd-server postgresql

comma := ,
# uv takes a quarter of pip's time; where it finds no index, pip may, which has settings of its own.
install = { $(PIP) install uv && $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(1); } || \
    $(PIP) install --constraint constraints.txt $(1)

# Each part of the tests has processes of its own. A test forks what its process has imported, and one that has imported
# every test has three times as much. Two parts run beside each other, so that fewer processes import each.
PARTS := scenario components pipelines scheduler others
TESTS_scenario := tests/scenario
TESTS_components := tests/components
TESTS_pipelines := tests/pipelines
TESTS_scheduler := tests/scheduler tests/orchestrator
TESTS_others := $(filter-out $(foreach part,$(PARTS),$(TESTS_$(part))) %__pycache__,$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
ABREAST := $(if $(filter 0 1,$(WORKERS)),1,2)
pytest = $(if $(SCRATCH),PYTEST_DEBUG_TEMPROOT=$(SCRATCH)) $(1) -m pytest -n $(2) --dist loadgroup --no-loadscope-reorder
# The parts share the servers of warm commands (tests/warm.py), which end when nobody holds the pipe `life` open.
run_tests = $(if $(TESTS),$(call pytest,$(1),$(WORKERS)) $(2) $(TESTS),export SPANWISE_TEST_WARM=$$(mktemp -d); trap 'rm -rf $$SPANWISE_TEST_WARM' EXIT; \
    mkfifo $$SPANWISE_TEST_WARM/life; exec 9<> $$SPANWISE_TEST_WARM/life; \
    $(MAKE) --no-print-directory --keep-going --jobs $(ABREAST) PART_PYTHON="$(1)" PART_OPTIONS="$(2)" $(PARTS:%=test-part-%) 9>&-)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-service demo-cluster test test-failed test-fast test-lowest soak soak-service graphs chaos-service test-engines test-kubernetes test-hosts test-training test-torch test-storage test-dataflow test-sql test-peers test-mlmd121 law histories lint docs bench bench-input bench-service bench-ui venv constraints clean

help:  ## Say what can be made
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

demo: $(VENV)/.demo  ## Retrain on ten days of real flights, one day at a time
	$(BIN)/python -m spanwise.pipelines.flights_demo

demo-service: $(VENV)/.demo  ## The same, with trainers fed by a data service of two workers
	$(BIN)/python -m spanwise.pipelines.flights_demo --service

# PostgreSQL, Java and Maven are Debian's, Ray is PyPI's, Flink comes from Maven Central, and the S3 server by the proxy of Go's modules.
demo-cluster: $(BIN)/python $(VENV)/storage/versitygw  ## The same on a cluster of PostgreSQL, S3, Ray and Flink, of which a worker and a controller die
	@{ { ls /usr/lib/postgresql/*/bin/postgres || command -v initdb; } && command -v java && command -v mvn; } >/dev/null 2>&1 || \
	    { echo "Installing PostgreSQL, Java and Maven"; \
	    apt-get install --yes --no-install-recommends postgresql default-jdk-headless maven >/dev/null; } || \
	    { echo "apt-get could not install them: apt-get install postgresql default-jdk-headless maven" >&2; exit 1; }
	@[ -x $(VENV)/engines/bin/python ] || $(BIN)/python -m venv $(VENV)/engines
	$(VENV)/engines/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[demo,postgresql,ray,storage]'
	@[ -f $(VENV)/beam/flink-job-server.jar ] || echo "Making Beam's job server for Flink (Maven loads some hundred MB the first time)"
	@tests/contract/beam_engines.sh $(VENV)/beam $(VENV)/engines/bin/python flink
	$(VENV)/engines/bin/python -m spanwise.pipelines.flights_cluster --gateway $(VENV)/storage/versitygw --flink $(VENV)/beam/flink-job-server.jar

test: $(VENV)/.dev  ## Run every test
	@$(call run_tests,$(BIN)/python)

.PHONY: $(PARTS:%=test-part-%)
$(PARTS:%=test-part-%): test-part-%:
	@echo "Running the tests of $*"; mkdir -p .pytest_cache/$*; rm -f .pytest_cache/$*/failed; log=$$(mktemp); \
	    $(call pytest,$(PART_PYTHON),$$(($(WORKERS) / $(ABREAST)))) $(PART_OPTIONS) -o cache_dir=.pytest_cache/$* $(TESTS_$*) >$$log 2>&1 || \
	    touch .pytest_cache/$*/failed; echo "Tests of $*:"; cat $$log; rm -f $$log; [ ! -e .pytest_cache/$*/failed ]

test-failed: $(VENV)/.dev  ## Run the tests that failed in `make test` once more, one at a time
	@failed=0; for part in $(PARTS); do [ ! -e .pytest_cache/$$part/failed ] || \
	    $(call pytest,$(BIN)/python,0) -o cache_dir=.pytest_cache/$$part --last-failed --last-failed-no-failures=none tests || failed=1; done; exit $$failed

test-fast: $(VENV)/.dev  ## Run the tests that neither kill, race nor train
	@$(call run_tests,$(BIN)/python,-m 'not slow')

test-lowest: $(VENV)/.dev  ## Run every test on the oldest versions that pyproject.toml allows
	$(PIP) install uv
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(VENV)/lowest
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --all-extras pyproject.toml --output-file $(VENV)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(VENV)/lowest/bin/python --requirement $(VENV)/lowest.txt
	@$(call run_tests,$(VENV)/lowest/bin/python)

soak: $(VENV)/.dev  ## Run the scheduler tests in their long form: a month of days, 50 kills, 100 pairs (20 minutes)
	SPANWISE_TEST_SOAK_DAYS=30 SPANWISE_TEST_KILLS=50 SPANWISE_TEST_PAIRS=100 SPANWISE_TEST_LOCKED_S=35 \
	    $(BIN)/python -m pytest -s -o timeout=0 tests/scenario/test_soak.py tests/scenario/test_clock.py

law: $(VENV)/.dev  ## Ingest thousands of files of each format and compare them with independent readers (an hour)
	SPANWISE_TEST_FORMATS=3000 SPANWISE_TEST_TEXT_FILES=2000 SPANWISE_TEST_SOURCES=1000 $(BIN)/python -m pytest -o timeout=0 \
	    tests/components/ingest/test_format_law.py tests/components/ingest/test_source_law.py tests/components/ingest/readers/test_text_law.py

histories: $(VENV)/.dev  ## Drive 2,000 generated histories of commands, deaths and restores beside a model of the system (20 minutes)
	SPANWISE_TEST_HISTORIES=2000 SPANWISE_TEST_PARTS=500 SPANWISE_TEST_FACTS=300 $(BIN)/python -m pytest -n $(WORKERS) -o timeout=0 \
	    tests/scenario/test_system.py tests/contract/test_store_model.py tests/scheduler/daemon/test_parts_law.py tests/scenario/test_facts_law.py

soak-service: $(VENV)/.dev  ## Keep a data service busy for an hour: consumers come and go, workers are killed, memory stays flat
	SPANWISE_TEST_SOAK_SERVICE_S=3600 $(BIN)/python -m pytest -s -o timeout=0 tests/scenario/test_service_soak.py

graphs: $(VENV)/.dev  ## Run 20,000 random graphs of datasets in every way there is, and compare them with plain Python (an hour)
	for seed in $$(seq 20); do SPANWISE_TEST_GRAPHS=1000 $(BIN)/python -m pytest -o timeout=0 \
	    --hypothesis-seed=$$seed tests/contract/test_dataset_graphs.py || exit 1; done

chaos-service: $(VENV)/.dev  ## Kill members of a data service in 200 rounds of each mode, and count every element (hours)
	SPANWISE_TEST_CHAOS=200 SPANWISE_TEST_LEASES=20000 $(BIN)/python -m pytest -s -o timeout=0 \
	    tests/scenario/test_service_chaos.py tests/pipelines/input/service/dispatcher/test_leasing.py

# Hosts are network namespaces, which root makes; PostgreSQL is Debian's.
test-hosts: $(VENV)/.dev $(VENV)/storage/versitygw  ## Run schedulers on two hosts with one database and S3, and dispatchers with one journal in S3; kill, stop, cut off and misdate them, and audit what is left; SPANWISE_TEST_PARTITIONS_S=1800 for half an hour of it
	@{ ls /usr/lib/postgresql/*/bin/postgres && command -v mariadbd && command -v ip && command -v cc; } >/dev/null 2>&1 || \
	    { echo "Installing PostgreSQL, MariaDB, iproute2 and a C compiler"; \
	    apt-get install --yes --no-install-recommends postgresql mariadb-server iproute2 gcc libc6-dev >/dev/null; }
	SPANWISE_TEST_HOSTS=1 SPANWISE_TEST_VERSITYGW=$(VENV)/storage/versitygw $(BIN)/python -m pytest -n 0 \
	    -o timeout=0 tests/scenario/test_hosts.py tests/scenario/test_partitions.py \
	    tests/scenario/test_takeover.py tests/scenario/test_takeover_on_hosts.py

# Debian's Chromium; Playwright's own would be another download. CHROMIUM=/path names another.
test-ui: $(VENV)/.ui  ## Look at the web page with a real browser, and run the notebook in a real kernel
	SPANWISE_TEST_UI=1 $(BIN)/python -m pytest -n 0 tests/browser

pictures: $(VENV)/.ui $(VENV)/.demo  ## Make the pictures of the web page in docs/pictures from the demo
	$(BIN)/python docs/_pictures.py

# Slurm and etcd are Debian's; Kubernetes is built from its Go module, once, in half an hour. Jobs and pods are kept in
# cgroups, for which this has to be root.
test-engines: $(BIN)/python $(VENV)/storage/versitygw  ## Run nodes on small clusters of Ray, Slurm and Kubernetes, the demo on a cluster, workers of the data service, and data work on Prism, Flink and Spark; needs go, mvn and java
	@{ command -v slurmd && command -v munged && command -v etcd && { ls /usr/lib/postgresql/*/bin/postgres || command -v initdb; }; } >/dev/null 2>&1 || \
	    { echo "Installing Slurm, etcd and PostgreSQL"; \
	    apt-get install --yes --no-install-recommends slurmctld slurmd slurm-client munge etcd-server postgresql >/dev/null; } || \
	    { echo "apt-get could not install them: apt-get install slurmctld slurmd slurm-client munge etcd-server postgresql" >&2; exit 1; }
	tests/contract/kubernetes.sh $(VENV)/kubernetes
	$(BIN)/python -m venv $(VENV)/engines
	$(VENV)/engines/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[demo,kubernetes,ray,test]'
	tests/contract/beam_engines.sh $(VENV)/beam $(VENV)/engines/bin/python
	SPANWISE_TEST_RAY=1 SPANWISE_TEST_SLURM=1 SPANWISE_TEST_KUBERNETES=$(abspath $(VENV)/kubernetes/kube) SPANWISE_TEST_BEAM_ENGINES=$(abspath $(VENV)/beam) SPANWISE_TEST_VERSITYGW=$(VENV)/storage/versitygw $(VENV)/engines/bin/python -m pytest -n 0 -o timeout=1800 \
	    tests/contract/test_ray_cluster.py tests/contract/test_kubernetes_cluster.py tests/contract/test_executor.py tests/scenario/test_engines.py tests/scenario/test_kubernetes_storage.py tests/scenario/test_demo_cluster.py \
	    tests/scheduler/data_service/test_engine_workers.py
	SPANWISE_TEST_BEAM_ENGINES=$(abspath $(VENV)/beam) $(VENV)/engines/bin/python -m pytest -n 0 -o timeout=0 tests/scenario/test_beam_runners.py

# A network namespace for each machine, cgroups and mounts, for which this has to be root. No registry is asked for images.
test-kubernetes: $(BIN)/python $(VENV)/storage/versitygw  ## Run nodes, replicas, workers and the chart's scheduler in containers on real machines of Kubernetes: kubelet, containerd and runc; needs root and go
	@[ "$$(id -u)" = 0 ] || { echo "make test-kubernetes makes network namespaces and cgroups, which needs root." >&2; exit 1; }
	@{ command -v containerd && command -v runc && command -v podman && command -v mmdebstrap && command -v conntrack && \
	    command -v iptables && command -v ip && command -v etcd && command -v cc && ls /usr/lib/cni/bridge && { ls /usr/lib/postgresql/*/bin/postgres || command -v initdb; }; } >/dev/null 2>&1 || \
	    { echo "Installing containerd, runc, podman, CNI plugins, etcd and PostgreSQL"; \
	    apt-get install --yes --no-install-recommends $(NODE_PACKAGES) >/dev/null; } || \
	    { echo "apt-get could not install them: apt-get install $(NODE_PACKAGES)" >&2; exit 1; }
	tests/contract/kubernetes.sh $(VENV)/kubernetes
	$(BIN)/python -m venv $(VENV)/engines
	$(VENV)/engines/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[demo,kubernetes,ray,test]'
	SPANWISE_TEST_KUBERNETES_NODES=1 SPANWISE_TEST_KUBERNETES=$(abspath $(VENV)/kubernetes/kube) SPANWISE_TEST_VERSITYGW=$(VENV)/storage/versitygw $(VENV)/engines/bin/python -m pytest -n 0 -o timeout=1800 \
	    -k 'kubernetes' tests/contract/test_kubernetes_cluster.py tests/contract/test_executor.py tests/contract/test_gangs.py \
	    tests/scenario/test_engines.py tests/scenario/test_kubernetes_scheduler.py tests/scenario/test_kubernetes_training.py \
	    tests/scheduler/data_service/test_kubernetes_workers.py

test-training: $(BIN)/python  ## Train with JAX on two hosts that are killed and cut off, and replicas on clusters of Ray and, where it is installed, Slurm; needs root, ip, unshare, cc
	$(BIN)/python -m venv $(VENV)/training
	$(VENV)/training/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[ray,test]'
	$(VENV)/training/bin/python -m pip --disable-pip-version-check --quiet install jax
	JAX_PLATFORMS=cpu SPANWISE_TEST_TRAINING=1 SPANWISE_TEST_RAY=1 $(if $(shell command -v slurmctld),SPANWISE_TEST_SLURM=1) $(VENV)/training/bin/python -m pytest -n 0 -o timeout=1800 \
	    tests/scenario/test_trained_together.py tests/scenario/test_shared_out.py tests/contract/test_gangs.py
	SPANWISE_TEST_RAY=1 $(VENV)/training/bin/python -m pytest -n 0 tests/contract/test_gangs_on_ray.py  # another cluster

# TensorFlow wants another protobuf than ml-metadata, so it lives in an environment of its own, with what datasets import.
test-torch: $(BIN)/python  ## Hand elements over to PyTorch, torchdata, Lightning, JAX, Orbax and TensorFlow (6 GB of wheels)
	$(BIN)/python -m venv $(VENV)/torch
	$(VENV)/torch/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[test]'
	$(VENV)/torch/bin/python -m pip --disable-pip-version-check --quiet install torch torchdata lightning jax orbax-checkpoint
	XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu SPANWISE_TEST_FRAMEWORKS=1 \
	    $(VENV)/torch/bin/python -m pytest -n 0 -o timeout=1800 -W default tests/frameworks tests/contract/test_dataset_graphs.py
	$(BIN)/python -m venv $(VENV)/tensorflow
	$(VENV)/tensorflow/bin/python -m pip --disable-pip-version-check --quiet install 'tensorflow-cpu>=2.19' cloudpickle fsspec \
	    google-crc32c hypothesis pillow polars prometheus-client pyarrow pydantic pytest pytest-timeout rich xxhash
	$(VENV)/tensorflow/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --editable .
	TF_CPP_MIN_LOG_LEVEL=3 SPANWISE_TEST_FRAMEWORKS=1 $(VENV)/tensorflow/bin/python -m pytest -W default \
	    tests/frameworks tests/contract/test_dataset_graphs.py

# Servers of Google's protocol are used where SPANWISE_TEST_FAKE_GCS and SPANWISE_TEST_STORAGE_TESTBENCH name their programs: tests/contract/buckets.sh
test-storage: $(VENV)/.dev  ## Run the contract of object storage on servers of S3, Azure and, where you have one, Google; needs go and npm
	tests/contract/buckets.sh $(VENV)/storage $(BIN)/python -m pytest -n 0 tests/contract/test_bucket.py tests/contract/test_storage_faults.py \
	    tests/contract/test_bucket_of_google.py tests/contract/test_object_lease.py \
	    tests/components/ingest/test_source_law.py tests/components/serving/test_bucket_push.py tests/scenario/test_root_url.py tests/scenario/test_root_kill.py \
	    tests/scenario/test_stored_checkpoints.py

# apache-beam[gcp] wants another protobuf than ml-metadata; these libraries of it are what a template takes.
test-dataflow: $(BIN)/python  ## Make templates of Dataflow, and run what was staged here; needs go, npm and the server that SPANWISE_TEST_FAKE_GCS names
	@[ -x "$(SPANWISE_TEST_FAKE_GCS)" ] || { echo "SPANWISE_TEST_FAKE_GCS has to name a server of Google's storage protocol: see tests/contract/buckets.sh" >&2; exit 1; }
	$(BIN)/python -m venv $(VENV)/dataflow
	$(VENV)/dataflow/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable '.[storage,test]' \
	    google-api-core google-apitools google-auth google-cloud-dataflow-client google-cloud-storage
	SPANWISE_TEST_DATAFLOW=1 tests/contract/buckets.sh $(VENV)/storage $(VENV)/dataflow/bin/python -m pytest -n 0 -W default tests/scenario/test_dataflow_template.py

# Without it, database servers are tested only where they are installed already.
test-sql: $(VENV)/.dev  ## Run the tests of queries, of the web page, of reading the metadata and of servers that go away on a PostgreSQL and a MariaDB of their own; installs Debian's where they are missing
	@{ ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v initdb >/dev/null; } && command -v mariadbd >/dev/null || { \
	    echo "Installing PostgreSQL and MariaDB"; \
	    apt-get install --yes --no-install-recommends postgresql mariadb-server >/dev/null; } || \
	    { echo "A database server is missing, and apt-get could not install it: apt-get install postgresql mariadb-server" >&2; exit 1; }
	SPANWISE_TEST_SQL=1 $(BIN)/python -m pytest -n 0 tests/components/ingest/test_query_example_gen.py tests/scenario/test_outage.py
	tests/contract/databases.sh $(BIN)/python -m pytest -n 0 tests/scheduler/web/test_database_servers.py \
	    tests/contract/test_store_readings.py tests/contract/test_store_sessions.py tests/contract/test_store_servers.py

# TFDV has no wheels for later Pythons. Beam from 2.60 on lacks what tfx-bsl imports.
test-peers: $(VENV)/.dev  ## Compare statistics, transforms and metrics with TFDV, TensorFlow Transform and TFMA; needs Python 3.10
	$(PIP) install uv
	$(BIN)/uv venv --quiet --clear --python 3.10 $(VENV)/tfx
	$(BIN)/uv pip install --quiet --python $(VENV)/tfx/bin/python tensorflow-data-validation==1.16.1 \
	    tensorflow-transform==1.16.0 tensorflow-model-analysis==0.47.1 'apache-beam<2.60' dill
	mkdir -p $(VENV)/tfx/rows
	$(BIN)/python -c "from pathlib import Path; from tests.peers.rows import write_rows; write_rows(Path('$(VENV)/tfx/rows'))"
	cd $(VENV)/tfx/rows && TF_CPP_MIN_LOG_LEVEL=3 ../bin/python $(CURDIR)/tests/peers/tfx_figures.py data.parquet earlier.parquet scores.parquet figures.json
	SPANWISE_TEST_PEERS=$(VENV)/tfx/rows $(BIN)/python -m pytest -n 0 tests/peers

test-mlmd121: $(VENV)/.dev  ## Run the store's contract on ml-metadata 1.21, in a Debian 13 if this system is older
	tests/mlmd121/run $(BIN)/python

lint: $(VENV)/.dev  ## Check style, form and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## Build the documentation site into build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(VENV)/.dev $(VENV)/peers/.made  ## Measure, side by side with tf.data and Grain
	$(BIN)/python -m benchmarks --tf $(VENV)/peers/bin/python

bench-input: $(VENV)/.dev $(VENV)/peers/.made  ## Measure input pipelines side by side with tf.data and Grain
	$(BIN)/python -m benchmarks.input --tf $(VENV)/peers/bin/python

bench-service: $(VENV)/.dev $(VENV)/peers/.made  ## Measure the data service side by side with that of tf.data
	$(BIN)/python -m benchmarks.service --tf $(VENV)/peers/bin/python

bench-ui: $(VENV)/.dev $(VENV)/dagster/.made  ## Measure the web page side by side with dagster-webserver
	$(BIN)/python -m benchmarks.ui --dagster $(VENV)/dagster/bin/python

$(VENV)/dagster/.made: | $(BIN)/python
	$(BIN)/python -m venv --clear $(VENV)/dagster
	$(VENV)/dagster/bin/python -m pip --disable-pip-version-check --quiet install 'dagster>=1.13' 'dagster-webserver>=1.13'
	@touch $@

# TensorFlow wants another protobuf than ml-metadata, so it lives in an environment of its own.
$(VENV)/peers/.made: | $(BIN)/python
	$(BIN)/python -m venv --clear $(VENV)/peers
	$(VENV)/peers/bin/python -m pip --disable-pip-version-check --quiet install 'tensorflow>=2.19' pyarrow 'grain>=0.2.18'
	@touch $@

$(VENV)/storage/versitygw:
	@echo "Installing versitygw"
	@GOBIN="$(abspath $(VENV)/storage)" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

venv: $(VENV)/.dev  ## Make the environment for work on spanwise itself

# pip repeats nothing that is there already, so an environment is brought up to date rather than made again.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing spanwise into $(VENV) (about a minute the first time)"
	@$(call install,--editable '.[demo]')
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing spanwise and its tools into $(VENV) (about a minute the first time)"
	@$(call install,--editable '.[demo$(comma)test$(comma)lint]')
	@touch $@ $(VENV)/.demo

$(VENV)/.ui: $(VENV)/.dev
	@$(call install,playwright axe-playwright-python nbclient ipykernel)
	@command -v $(or $(CHROMIUM),chromium) >/dev/null || { \
	    echo "Installing Chromium"; apt-get install --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	    { echo "There is no Chromium. Install it, or name one:  make test-ui CHROMIUM=/path/to/chromium" >&2; exit 1; }
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(call install,--editable '.[docs]')
	@touch $@

$(BIN)/python:
	@fits='import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; \
	for python in $(or $(PYTHON),$(PYTHONS)); do \
	    if "$$python" -c "$$fits" 2>/dev/null; then \
	        echo "Making $(VENV) with $$("$$python" --version)"; \
	        exec "$$python" -m venv --clear "$(VENV)"; \
	    fi; \
	done; \
	echo "spanwise needs Python 3.11, 3.12 or 3.13 with its venv module; looked for:" \
	     "$(or $(PYTHON),$(PYTHONS))." >&2; \
	echo "Install one (Debian, Ubuntu: apt-get install python3-venv), or name it:  make venv PYTHON=/path/to/python3.11" >&2; \
	exit 1

# ml-metadata comes in two lines with different wheels, so both are held (docs/decisions/0003-constraints.md).
constraints: $(VENV)/.dev  ## Renew constraints.txt with today's versions
	$(PIP) install uv
	@printf '%s\n' 'ml-metadata<1.21; python_version < "3.12" and sys_platform == "linux"' \
	               'ml-metadata>=1.21; python_version >= "3.12" or sys_platform != "linux"' > $(VENV)/lines.txt
	@sed '/^[^#]/,$$d' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --constraint $(VENV)/lines.txt \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml >> $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt

clean:  ## Remove the environment, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
