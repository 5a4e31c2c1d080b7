# Everything a newcomer needs: `make demo` and `make test` set up what they need by themselves.
.DELETE_ON_ERROR:
.PHONY: help setup demo lint format test bench reference lock clean

VENV := .venv/.complete
PY := .venv/bin/python
WORKERS := 2

# The tests start many processes: each would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

setup: $(VENV) java ## the virtual environment and all that is in it

.PHONY: java
java:
	@scripts/ensure-java

.PHONY: chromium
chromium:
	@scripts/ensure-chromium

$(VENV): pyproject.toml requirements/build.txt requirements/dev.txt
	@scripts/make-venv

demo: $(VENV) java ## a PySpark pipeline through the gateway, on a cluster of mutual TLS
	@.venv/bin/sluice demo

lint: $(VENV) ## style, types, import rules
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

format: $(VENV) ## rewrite the code in the house style
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Jobs start faster with an archive of Spark's classes, which is made once; without one they run on the Java of PATH.
WITH_ARCHIVE := @.venv/bin/python -P -m sluice.runtime.spark.training || echo "sluice: the tests run without an archive"

# Tests without jobs wait for sockets and timers for a third of their time.
test: WORKERS := 3
test: $(VENV) java ## the tests that run no jobs, at most 8 minutes on 2 cores
	.venv/bin/pytest $(SPREAD) -m 'not spark and not cluster'

.PHONY: test-cluster
test-cluster: $(VENV) java ## those that start Spark, or a JobManager and TaskManagers with jobs, at most 10 minutes on 2 cores
	$(WITH_ARCHIVE)
	.venv/bin/pytest $(SPREAD) -m 'spark or cluster'

.PHONY: test-insider
test-insider: $(VENV) java ## a hostile job tries everything from inside, with and without a sandbox, as root and as an ordinary user
	$(WITH_ARCHIVE)
	.venv/bin/pytest tests/insider

.PHONY: class-archive
class-archive: $(VENV) java ## an archive of Spark's classes now, which otherwise the first cluster makes in the background
	@.venv/bin/python -P -m sluice.runtime.spark.training

.PHONY: test-system
test-system: $(VENV) java chromium ## whole systems with real programs (browsers, ensembles, killed leaders), an hour on 2 cores
	$(WITH_ARCHIVE)
	.venv/bin/pytest tests/system -m 'not long' $(SPREAD)

.PHONY: test-chaos
test-chaos: $(VENV) java chromium ## what takes long: huge partitions, series of faults, whole systems that are marked long
	$(WITH_ARCHIVE)
	.venv/bin/pytest tests/chaos
	.venv/bin/pytest tests/system -m long

.PHONY: test-tpch
test-tpch: $(VENV) java ## the 22 queries of TPC-H at scale 1 with and without the shuffle service, and DuckDB's answers
	SLUICE_TPCH_SCALE=1 .venv/bin/pytest tests/system/shuffle/test_tpch.py

.PHONY: test-docs
test-docs: $(VENV) java ## every command of the README, the tutorial and the how-to guides, in a copy of this tree
	.venv/bin/pytest tests/docs

.PHONY: test-wheel
test-wheel: $(VENV) java ## the wheel, installed in an environment of its own, runs a cluster without this tree
	.venv/bin/pytest tests/wheel

.PHONY: pictures
pictures: $(VENV) chromium ## take the screenshots of docs/pictures anew
	SLUICE_PICTURES=docs/pictures .venv/bin/pytest tests/system/dashboard/test_pictures.py

.PHONY: test-export
test-export: $(VENV) java ## exported configurations with real Flink, Spark, nginx and Kafka clients (downloads 900 MB once)
	@scripts/get-programs
	.venv/bin/pytest tests/programs

.PHONY: test-pkcs11
test-pkcs11: $(VENV) ## keys in a token: SoftHSM (unpacked once from Debian's packages), two minutes
	@scripts/ensure-softhsm >/dev/null
	@.venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements/pkcs11.txt
	.venv/bin/pytest tests/pkcs11

.PHONY: test-postgres
test-postgres: $(VENV) ## auth services on several machines: a real PostgreSQL (unpacked once from Debian's packages), three minutes
	@scripts/ensure-postgresql >/dev/null
	.venv/bin/pytest tests/postgres

.PHONY: test-acme
test-acme: $(VENV) ## certificates of a real ACME server, Pebble (unpacked once from Debian's package), through Envoy, five minutes
	@scripts/ensure-pebble >/dev/null
	.venv/bin/pytest tests/acme

.PHONY: test-acme-server
test-acme-server: $(VENV) ## the ACME server with certbot and lego (installed once from PyPI and Debian), four minutes
	@scripts/ensure-acme-clients >/dev/null
	.venv/bin/pytest tests/acme_server

.PHONY: test-kubernetes
test-kubernetes: $(VENV) ## elections, failures, attestation, pods, submissions and the chart with a Kubernetes API server, and the chart's pods on a node, as root (built once from Debian's packages, 20 minutes)
	@scripts/get-kubernetes
	@scripts/get-node-images
	@scripts/get-helm
	@scripts/get-fake-time
	.venv/bin/pytest tests/kubernetes

.PHONY: compose-image compose-up compose-down compose-demo test-compose
compose-image:
	@scripts/ensure-docker
	@scripts/make-image

compose-up: compose-image ## the cluster as containers, gateway on https://localhost:8443
	@cd compose && SLUICE_ENVOY_IMAGE=$$(../scripts/make-envoy-image) ../scripts/compose up -d
	@scripts/compose-wait sluice

compose-down: ## stop those containers; their state stays (to remove it too: make compose-down VOLUMES=--volumes)
	@cd compose && ../scripts/compose down --timeout 30 $(VOLUMES)

compose-demo: $(VENV) compose-image ## the pipeline on the cluster of containers, submitted from outside
	@scripts/compose-demo

test-compose: $(VENV) compose-image ## the cluster of containers, audited, killed and cut off in jobs, at most 20 minutes on 2 cores
	SLUICE_ENVOY_IMAGE=$$(scripts/make-envoy-image) .venv/bin/pytest tests/compose

bench: $(VENV) java ## the measurements, each beside a named peer
	$(PY) -m benchmarks.startup
	$(PY) -m benchmarks.busy_pool
	$(PY) -m benchmarks.spark_tls
	$(PY) -m benchmarks.isolation
	$(PY) -m benchmarks.issuance
	$(PY) -m benchmarks.rpc
	$(PY) -m benchmarks.control_plane
	$(PY) -m benchmarks.shuffle_worker
	$(PY) -m benchmarks.sealed_shuffle
	$(PY) -m benchmarks.real_time
	scripts/get-load-programs
	$(PY) -m benchmarks.gateway
	$(PY) -m benchmarks.egress

reference: $(VENV) ## write what comes from the code: pages of docs/reference, and man/
	@scripts/make-reference

.PHONY: test-image
test-image: $(VENV) ## the image of a release, built twice from nothing and compared (needs the Docker Engine), half an hour on 2 cores
	@scripts/ensure-docker
	.venv/bin/pytest tests/image

.PHONY: release sbom test-deploy
release: ## wheel, source distribution and SBOM, with signed digests (RELEASE=build/release KEY=an SSH key; IMAGE=1: also the image)
	@scripts/make-release "$(or $(RELEASE),build/release)" "$(KEY)"

sbom: ## what the wheel needs at run time, as a CycloneDX document (build/sluice.cdx.json)
	@scripts/make-sbom

test-deploy: $(VENV) ## alert rules by promtool, units by systemd-analyze, the document of `make sbom`, a signed release
	.venv/bin/pytest tests/system/deploy tests/unit/deploy

lock: ## renew requirements/ with the newest versions that fit pyproject.toml (LOCK=--keep: only what does not fit)
	python=$$(scripts/find-python) && rm -rf build/lock && "$$python" -m venv build/lock && \
	build/lock/bin/pip install --quiet --disable-pip-version-check --requirement requirements/lock.txt && \
	"$$python" scripts/lock build/lock/bin/uv $(LOCK) && rm -rf build/lock
	@scripts/lock-images || echo "sluice: not all images are fixed by digest"

clean: ## remove the virtual environment and the state of local clusters
	rm -rf .venv .sluice build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
