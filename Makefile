# The only entry to building, checking and trying Errand; CI calls nothing else.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/errand-run/errand/boot.Version=$(VERSION) -X main.version=$(VERSION)
GUEST   := nodes/sandbox/guest/bin/sandbox-init
CACHE   := $(CURDIR)/.cache

# Everything that ships is static; only the race detector needs cgo.
STATIC := CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)"

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: build
build: guest ## Build bin/errand-node, bin/errand and bin/simulate
	$(STATIC) -o bin/errand-node ./cmd/node
	$(STATIC) -o bin/errand ./cmd/errand
	$(STATIC) -o bin/simulate ./cmd/simulate

.PHONY: guest
guest: ## Build the helper that the node embeds and puts into each sandbox
	$(STATIC) -o $(GUEST) ./cmd/sandbox-init

.PHONY: packages
packages: ## Install what is missing from Debian's packages (as root)
	@scripts/packages

.PHONY: modules
modules: ## Fetch the Go modules; a proxy that fails is asked again
	@for module in . tools tools/golangci; do for try in 1 2 3 4; do \
		(cd $$module && go mod download) && break || { [ $$try -lt 4 ] || exit 1; sleep $$((5 * try)); }; \
	done; done

.PHONY: demo
demo: ## See a command run in a real container, from nothing
	@scripts/demo

.PHONY: test
test: packages guest ## Run every test with the race detector
	@# bbolt computes pointers into pages; of damaged ones they are wrong before it panics.
	@# What takes longest starts first, and has the others beside it: it mostly waits.
	go test -race -gcflags=go.etcd.io/bbolt/...=-d=checkptr=0 -timeout 30m -p 3 ./simulation/daemon ./cluster/store ./...
	go test -run Allocations ./actors/run ./cluster/activation ./nodes ./nodes/journal
	cd tools && go test -timeout 5m ./...

.PHONY: race
race: test ## The same as test: the race detector is always on

.PHONY: check
check: guest ## Check format, vet, lint, generated code, modules and docs
	@scripts/check

.PHONY: generate
generate: ## Write the generated code anew
	cd tools && go run ./generate ../messages
	gofmt -w messages

.PHONY: torture
torture: packages ## Kill a daemon under load KILLS times (200) with each driver; nothing may be lost, started twice or left; with the longest cases in full
	ERRAND_TORTURE_KILLS=$(or $(KILLS),200) go test -timeout 60m ./simulation/daemon -v -count 1 -run '^(TestTorture.*|TestLogIsCompleteWhenTheStatusIsTerminal|TestRunsEndOnceAndWellHoweverOftenTheDaemonIsFrozen)$$'

.PHONY: bench
bench: packages build ## Measure against the bars of docs/benchmarks.md (BENCH="-short -only exit,process -o json")
	go run ./simulation/bench $(BENCH)

.PHONY: bench-compare
bench-compare: ## Compare the speed of this tree with a revision: BASE=main
	scripts/bench-compare $(BASE)

.PHONY: simulate
simulate: ## Run the simulated clusters of SEEDS (1..2000) and judge them
	go run -ldflags "$(LDFLAGS)" ./cmd/simulate --seeds $${SEEDS:-1..2000}

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s) each
	@scripts/fuzz $${FUZZTIME:-10s}

.PHONY: clean
clean: ## Remove what make has built
	rm -rf bin $(GUEST) $(CACHE)
