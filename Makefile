# Everything a person or a machine does with this repository, by name. `make` lists it.

CARGO ?= cargo
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## build the broker and start it on loopback port 1883 (ARGS='--port 2883' and so on)
	$(CARGO) run --profile quick -p quelea --bin quelea -- serve $(ARGS)

.PHONY: cluster
cluster: ## three NATS servers and three brokers with six cells on loopback, one broker, until Ctrl-C
	@tests/nats >/dev/null
	$(CARGO) build --profile quick -p quelea --bin quelea
	@python3 tests/cluster/cluster.py

.PHONY: setup
setup: ## install what the tests need (SUITES="unit e2e": only for these), by name and version
	@tests/setup $(SUITES)

.PHONY: peers
peers: ## install the brokers that flock versus compares with, into .peers
	@lab/peers/setup

.PHONY: quick
quick: ## half a minute: formatting, links, plain words, tests of codec, topics, sessions and storage
	$(CARGO) fmt --all --check
	$(CARGO) test -q -p xtask --test house
	$(CARGO) test -q -p quelea-codec -p quelea-topic -p quelea-session -p quelea-storage --lib

.PHONY: check
check: ## three minutes: clippy, unit tests of all crates, a few simulated worlds
	$(CARGO) clippy -q --workspace --all-targets -- -D warnings
	$(CARGO) test -q --workspace --lib
	@for kind in "" --driven --durable --hostile --policy --service --streams --cluster; do \
		$(CARGO) run -q -p quelea-sim -- 0 200 $$kind --all || exit 1; done

.PHONY: test
test: ## everything that must pass (SUITES="unit e2e": only these; ROOM=core: only crates below crates/core)
ifdef ROOM
	@python3 tests/units.py $(ROOM)
else
	@python3 tests/run.py --setup $(SUITES)
endif

.PHONY: e2e
e2e: ## only the end-to-end tests with foreign clients
	@tests/setup e2e e2e-js
	@python3 tests/run.py e2e e2e-js

.PHONY: conformance
conformance: ## the raw-bytes clause suite; MQTT_ADDRESS=host:port runs it against any broker
	$(CARGO) build -p quelea --bin quelea
	$(CARGO) test -p quelea-conformance

.PHONY: sim-long
sim-long: ## SEEDS worlds (default 100000) of each kind of the simulator, from SEED on
	$(CARGO) build --release -p quelea-sim
	@for kind in --driven --durable --hostile --policy --service --streams --cluster --cells; do echo "sim $$kind"; \
		target/release/sim $(or $(SEED),0) $(or $(SEEDS),100000) $$kind --all || exit 1; done

.PHONY: torture
torture: ## kill the broker with SIGKILL under load, KILLS times (default 50) at each durable level, and check what was lost
	$(CARGO) build --profile quick -p quelea --bin quelea
	@QUELEA_BIN=$(CURDIR)/target/quick/quelea python3 lab/torture/torture.py --kills $(or $(KILLS),50)

.PHONY: cluster-test
cluster-test: ## ROUNDS (default 50) of mixed faults on three brokers and three NATS servers, and a check (SEED=n; RESULTS=1 writes lab/results)
	$(CARGO) build --profile quick -p quelea --bin quelea
	@[ -n "$$QUELEA_NATS_SERVER" ] || tests/nats
	@QUELEA_BIN=$(CURDIR)/target/quick/quelea python3 tests/cluster/rounds.py --strict \
		--rounds $(or $(ROUNDS),50) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results)

.PHONY: cluster-bench
cluster-bench: ## CPU per message at level quorum compared with fsync, and takeovers with 100,000 sessions and 1 GB (ROUNDS=3)
	$(CARGO) build --release -p quelea -p flock --bins
	@[ -n "$$QUELEA_NATS_SERVER" ] || tests/nats
	@python3 lab/cluster_cost.py --rounds $(or $(ROUNDS),3)
	@python3 lab/takeover.py --rounds $(or $(ROUNDS),3)

.PHONY: siege
siege: ## attack a broker with default limits and 1 GB, into lab/results (CASES="..." runs only these and writes nothing; SECS=8)
	$(CARGO) build --profile quick -p quelea --bin quelea
	@QUELEA_BIN=$(CURDIR)/target/quick/quelea python3 lab/siege/siege.py \
		--secs $(or $(SECS),8) $(if $(CASES),$(CASES),--results)

.PHONY: bench
bench: ## the benchmarks of every crate that has some, and instruction counts
	$(CARGO) bench --workspace --benches
	@python3 tests/instructions.py

.PHONY: floor
floor: ## CPU of quelea compared with a bare relay, into lab/results (ROUNDS=3)
	@python3 lab/bench.py floor --rounds $(or $(ROUNDS),3)

.PHONY: bench-peers
bench-peers: ## quelea compared with all installed brokers, into lab/results (SUITE=peers: only the core rows)
	@python3 lab/bench.py $(or $(SUITE),peers catalogue matrix)

.PHONY: bench-catalogue
bench-catalogue: ## only the published benchmarks, scaled, compared with other brokers
	@python3 lab/bench.py catalogue

.PHONY: bench-matrix
bench-matrix: ## only QoS x payload x version, compared with mosquitto
	@python3 lab/bench.py matrix

.PHONY: bench-connections
bench-connections: ## cost of connects and of idle connections over TCP and TLS, compared with other brokers (ROUNDS=1)
	@python3 lab/bench.py connections --rounds $(or $(ROUNDS),1)

.PHONY: scaling
scaling: ## rate and CPU on one, two and three cores, into lab/results (ROUNDS=3)
	@python3 lab/scaling.py --rounds $(or $(ROUNDS),3)

.PHONY: bench-durable
bench-durable: ## durable sessions at each level and in other brokers, into lab/results (ROUNDS=3)
	@python3 lab/bench.py durable durable-levels --rounds $(or $(ROUNDS),3)

.PHONY: bench-tails
bench-tails: ## p99.9 during connect storms, with stopped subscribers and while the log is reclaimed, into lab/results (ROUNDS=3)
	@python3 lab/tails.py --rounds $(or $(ROUNDS),3)

.PHONY: counts
counts: ## instructions and system calls per message, compared with other brokers, into lab/results (as root; ROUNDS=1)
	@python3 lab/counts.py --rounds $(or $(ROUNDS),1)

.PHONY: bench-bridge
bench-bridge: ## rate and CPU per message of a bridge, compared with mosquitto's, into lab/results (ROUNDS=3)
	$(CARGO) build --release -p quelea --bin quelea
	@python3 lab/bridge.py --rounds $(or $(ROUNDS),3) --results

.PHONY: bench-dashboard
bench-dashboard: ## p99.9 with and without an open dashboard over 100,000 sessions, into lab/results (ROUNDS=5)
	@cargo build -q --profile quick -p quelea -p flock --bins
	@QUELEA_BIN=target/quick/quelea python3 lab/dashboard.py --rounds $(or $(ROUNDS),5)

.PHONY: bench-memory
bench-memory: ## memory of connections, subscriptions and retained messages, into lab/results
	@python3 lab/memory.py

.PHONY: routing-faults
routing-faults: ## kill broker and Kafka under load, ROUNDS times (default 100), then targets that are away for MINUTES (default 60), into lab/results
	$(CARGO) build --profile quick -p quelea -p flock --bins
	@tests/setup kafka
	@for what in kills away; do tests/kafka/.venv/bin/python lab/routing_faults.py $$what --results \
		--quelea target/quick/quelea --flock target/quick/flock \
		--rounds $(or $(ROUNDS),100) --minutes $(or $(MINUTES),60) || exit 1; done

.PHONY: bench-routed
bench-routed: ## Event Grid's routed scenarios with a Kafka on this machine, into lab/results and docs/flock/examples (SCALE=0.04 HOLD=5m)
	$(CARGO) build --release -p quelea -p flock --bins
	@tests/setup kafka
	@tests/kafka/.venv/bin/python lab/routing_eg.py --results EG-1-KAFKA EG-2-KAFKA EG-5-KAFKA EG-5-KAFKA:kill \
		-- --scale $(or $(SCALE),0.04) --ramp 20s --duration $(or $(HOLD),5m)

.PHONY: soak
soak: ## check that memory stays flat; SECONDS=600 is shorter than the hour that goes into lab/results
	$(CARGO) build --profile quick -p quelea -p flock
	@python3 lab/soak.py --seconds $(or $(SECONDS),3600) $(if $(SECONDS),,--results)

.PHONY: scenarios
scenarios: ## run every built-in scenario of flock once against quelea, into lab/results (IDS="X-1 EG-3")
	$(CARGO) build --profile quick -p quelea -p flock
	@python3 lab/scenarios.py $(IDS)

.PHONY: instructions-bless
instructions-bless: ## accept what the hot path costs now as the baseline that `make test` guards
	@python3 tests/instructions.py --bless

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZ_SECS seconds each (default 600); needs nightly, cargo-fuzz
	@python3 tests/fuzz.py --seconds $(or $(FUZZ_SECS),600)

.PHONY: audit
audit: ## licences, bans, duplicates, sources and advisories of dependencies
	@tests/setup lint
	@python3 tests/audit.py

.PHONY: lint
lint: ## formatting, spelling, house rules, plain words, clippy, documentation, licences
	@tests/setup lint
	@python3 tests/lint.py

.PHONY: release
release: ## all artefacts (ARGS="--draft --native"), after a check of version and changelog
	@python3 packaging/release.py $(ARGS)

.PHONY: deb
deb: ## Debian packages of quelea and flock, in target/release-files
	$(CARGO) build --release --locked -p quelea -p flock --bins
	@python3 packaging/deb.py

.PHONY: image
image: ## a container image of the broker as a file for `docker load`, in target/release-files
	$(CARGO) build --release --locked -p quelea --bins
	@python3 packaging/image.py

.PHONY: chart
chart: ## install the Helm chart on the control plane of a real Kubernetes, built from Go modules (ten minutes)
	@tests/setup lint
	@tests/helm >/dev/null
	@tests/kubernetes >/dev/null
	@tests/e2e/.venv/bin/python -m pytest -q tests/packages/test_kubernetes.py

.PHONY: docs
docs: ## write all generated documents: configuration, metrics, $SYS topics, conformance, performance
	$(CARGO) xtask docs

.PHONY: docs-site
docs-site: ## the documentation as a site with search, in target/docs-site/book
	@tests/setup site
	@python3 packaging/site/build.py
