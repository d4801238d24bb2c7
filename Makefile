# Everything a newcomer or a machine runs. Each target installs what it needs, where missing.

SCRIPTS := integration-tests/scripts
CYCLES ?= 2000
FUZZ_SECONDS ?= 30

.PHONY: help run test test-gpu test-gpu-pack test-rdma shell-rdma bench-rdma crash-rdma crash-ipc check bench bench-gpu soak kernels fuzz doc crash deploy build wheel rust clients

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: rust ## Start a server in an empty directory and pull a checkpoint through it
	@$(SCRIPTS)/run.sh

test: rust clients ## Run every test: unit, conformance, model, crash, malformed requests, clients
	@$(SCRIPTS)/test.sh

test-gpu: rust ## Run the tests that need a GPU; where there is none, each says so
	@$(SCRIPTS)/gpu.sh run

test-gpu-pack: rust ## Pack them for a machine without a compiler, into target/gpu-pack
	@$(SCRIPTS)/gpu.sh pack

test-rdma: rust ## Run the tests that need an RDMA adapter, in a virtual machine with soft-RoCE
	@integration-tests/rdma/test.sh $(if $(RXE),--rxe $(RXE)) $(TESTS) -- $(ARGS)

shell-rdma: ## Open a shell in that machine; RXE=fixed for the patched module
	@integration-tests/rdma/tools.sh
	@integration-tests/rdma/machine.sh $(if $(RXE),--rxe $(RXE)) --shell

bench-rdma: rust ## Links and keys beside perftest, in the soft-RoCE machine (RXE=fixed)
	@integration-tests/rdma/bench.sh --rxe $(or $(RXE),fixed)

crash-rdma: rust ## Kill clients, gateways and nodes amid RDMA transfers, 200 times each, half on either module
	@RDMA_SECONDS=4500 KEYWAY_CRASH_CYCLES=100 integration-tests/rdma/test.sh $(if $(RXE),--rxe $(RXE)) rdma_crash -- --nocapture

crash-ipc: rust ## Kill clients, gateways and nodes amid transfers of one host, 100 times each
	@KEYWAY_CRASH_CYCLES=100 cargo test --ignore-rust-version --workspace --test ipc_crash -- --nocapture

check: rust clients ## Formatting, lints, licences, layering, tidiness
	@$(SCRIPTS)/check.sh

bench: rust ## Throughput, latency, CPU and memory, beside a peer where one is installed
	@$(SCRIPTS)/bench.sh

soak: rust ## Whether the server's memory stays flat under load for SOAK_MINUTES (60)
	@$(SCRIPTS)/soak.sh

bench-gpu: rust ## Copies and digests of a GPU's memory, beside the driver alone
	@cargo bench --ignore-rust-version -p keyway-fabric --bench gpu

kernels: ## Compile the GPU kernels anew; needs no GPU
	@$(SCRIPTS)/kernels.sh

fuzz: rust ## Fuzz every parser, FUZZ_SECONDS each (30)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(SCRIPTS)/fuzz.sh

doc: rust ## Build the API documentation
	@RUSTDOCFLAGS="-D warnings" cargo doc --ignore-rust-version --workspace --no-deps

crash: rust ## Kill and restart the server CYCLES times (2000) under load
	@cargo build --ignore-rust-version --workspace --bins --tests
	@KEYWAY_CRASH_CYCLES=$(CYCLES) cargo test --ignore-rust-version --workspace --test crash -- --nocapture

deploy: rust ## Try what is in deploy/: the image, the compose file, the chart
	@$(SCRIPTS)/deploy.sh

build: rust
	@cargo build --ignore-rust-version --workspace --lib --bins --tests

wheel: rust ## Build the Python package, for all versions from 3.11, into target/wheels
	@$(SCRIPTS)/wheel.sh

rust:
	@$(SCRIPTS)/rust.sh

clients:
	@$(SCRIPTS)/clients.sh
