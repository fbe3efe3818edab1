# `make` lists the targets. Only Go is needed: tools/devbroker finds or starts a RabbitMQ.
# Written for GNU make 3.81 (macOS) and later.

GO        ?= go
RACE      ?=
# Go's race detector crashes now and then where timers of one synctest bubble run on two processors (go.dev/issue/78156).
RACED      = $(if $(RACE),$(RACE) -cpu=1)
TIMEOUT   ?= 10m
FUZZTIME  ?= 50000x
BENCHTIME ?= 1s
# Flags of bench: -only, -rounds, -short, -profile. Both programs get them.
BENCH_ARGS ?=

DEVBROKER  = .broker/devbroker
WITH_BROKER = $(DEVBROKER) exec --
SUBMAKE    = $(MAKE)
# Of make sim: how many seeds, or one of them, with its trace. With WASM=1 all choices come from the seed, as with SEED.
SEEDS     ?= 300
SEED      ?=
WASM      ?=
# The integration tests use watermill-amqp v2, or v3 with this build tag.
V3         = -tags=amqpv3
# Most integration tests wait: so many packages run at the same time, beside test-wmretry. They declare hundreds of quorum
# queues on one node: 3 or 4 packages, and fewer with the race detector.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PACKAGES   = $(if $(filter 0 1 2,$(PROCESSORS)),$(if $(RACE),2,3),$(if $(RACE)$(filter 3,$(PROCESSORS)),3,4))
# These packages take longest, so they are first.
LONGEST    = ./declare/ ./deadletter/ ./connect/ ./retry/ ./order/
# make test-long runs these folders: other layouts, earlier data, TLS, what the pages and a browser show, the proof of the
# model, and outages.
# watermill-amqp's subscriber has a data race when it reconnects: the outages never run with -race.
PATIENT    = adopt kept tls walkthrough simulation/proof
OUTAGES    = reconnect chaos
# These folders ask nothing of RabbitMQ that a version could decide otherwise, or, as adopt, what others ask each version:
# test-version leaves them out.
ONCE       = adopt components broker bench simulation observe
# Tests that change the node run alone: an alarm blocks all publishers.
ALONE      = ^TestAlone
# make test-long runs these.
LONG       = ^TestPubSub$$
# The packages of cmd/wmretry that test-wmretry tests.
WMRETRY    = $$($(GO) list -C cmd/wmretry ./... | grep -v /browser)
# The folders of integration that have tests, ./NAME/, but for those of other targets.
WITHOUT   ?=
LEFT_OUT   = $(patsubst %,./%/,$(PATIENT) $(OUTAGES) $(WITHOUT) observe/board)
FOLDERS    = $(filter-out $(LEFT_OUT),$(LONGEST) $(filter-out $(LONGEST),$(sort $(dir $(shell cd integration && find . -name '*_test.go')))))
# Flags of chaos: -messages, -keys, -each, -faults, -short.
CHAOS_ARGS ?=
# Flags of inbox: -backends, -messages, -kills.
INBOX_ARGS ?=
# Flags of release: -platforms.
RELEASE_ARGS ?=
# Flags of demo-observability: -once, -outage, -metrics, -queue.
DEMO_ARGS ?=
# A command that runs several versions of RabbitMQ side by side (CONTRIBUTING.md). Where it is not set, .ci/find-brokers looks
# for one.
BROKERS   ?=
VERSIONS  := $(shell cat tools/rabbitmq-versions)
# ST1005 requires that errors begin with a small letter. Here they begin with the name of the wrong field.
CHECKS     = inherit,-ST1005

# Each backend is a module, which is released. The suite that tests them is another one, which is not.
# Flags of go test in test-backends, and the packages.
CONFORMANCE ?=
SUITE       ?= ./...
# test-backends starts the newest Kafka that is pinned in backends/conformance/servers, with the lowest clients. test-newest
# starts the lowest one, with the newest clients.
KAFKA_LOWEST = 4.0.0
BACKENDS    = $(filter-out backends/conformance,$(patsubst %/go.mod,%,$(wildcard backends/*/go.mod)))
RELEASED    = . cmd/wmretry config/amqp3 inbox/pgxinbox observe $(BACKENDS)
MODULES     = $(RELEASED) integration backends/conformance example/observability
STATICCHECK = $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod staticcheck -checks $(CHECKS)

# TIDY compares go.mod only: go.sum also depends on the newest versions of modules that no package is built from.
TIDY = $(GO) mod tidy -diff 2>&1 | sed -n '/^diff current\/go.mod/,/^diff current\/go.sum/p' | { ! grep . ; }

# The demos of the other backends, demo-NAME, are those of this list.
REGISTRY   = backends/conformance/registry/registry.go
DEMOS     := $(shell sed -n 's/.*Demo{Name: "\([a-z0-9-]*\)".*/demo-\1/p' $(REGISTRY))

# on_brokers makes the first target where several brokers run side by side, and else the second one on a broker of its own.
define on_brokers
brokers=$$(sh .ci/find-brokers) || exit 1; \
	if [ -n "$$brokers" ]; then $(SUBMAKE) $(1) BROKERS="$$brokers"; \
	else $(SUBMAKE) devbroker && $(WITH_BROKER) $(SUBMAKE) $(2); fi
endef

# What an eval gets must be variables only. From another folder: make --no-print-directory -C FOLDER broker-up.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help sim wmretry api release release-check demo demo-rabbitmq demo-observability $(DEMOS) demo-all test test-newest test-long test-v3 test-backends inbox test-observe test-short race bench bench-cluster chaos lint vuln fuzz cover site screenshots broker-up broker-down
.PHONY: devbroker test-root test-observers test-broker test-integration test-version test-alone test-patient test-pubsub test-wmretry test-reconnect test-chaos test-integration-v3 test-reconnect-v3 bench-versions bench-one chaos-versions chaos-one inbox-versions inbox-one fuzz-root fuzz-integration lint-format vet lint-code lint-api

help:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile
	@awk -F '"' '/Demo[{]Name: / { printf "  make demo-%-14s the demo on %s, on a server that it starts\n", $$2, $$4 }' $(REGISTRY)

wmretry: ## build the command for dead letters, .broker/wmretry
	@mkdir -p .broker
	@$(GO) build -C cmd/wmretry -o $(CURDIR)/.broker/wmretry .

demo: ## messages that fail, wait and come back: no server, no network
	@$(GO) run ./example

demo-rabbitmq: devbroker ## the same on a real RabbitMQ
	@$(WITH_BROKER) $(GO) run ./example -backend rabbitmq

demo-observability: devbroker ## an outage with metrics, alerts and a trace, on RabbitMQ and Prometheus (DEMO_ARGS=-once ends by itself)
	@$(WITH_BROKER) $(GO) run -C example/observability . $(DEMO_ARGS)

demo-all: demo demo-rabbitmq $(DEMOS) ## every demo, one after the other

$(DEMOS): demo-%:
	@$(GO) run -C backends/conformance ./example -backend $*

test: devbroker ## the tests, on a real broker (RACE=-race for the race detector)
	@$(WITH_BROKER) sh -c '$(SUBMAKE) test-alone & beside=$$!; result=0; $(SUBMAKE) -k test-root test-observers || result=1; \
		wait $$beside || result=1; $(SUBMAKE) test-broker || result=1; exit $$result'

test-long: devbroker ## the tests that take minutes: other layouts, a browser, Watermill's own Pub/Sub tests, a short make chaos
	@$(WITH_BROKER) $(SUBMAKE) -k test-patient test-pubsub test-chaos

test-v3: devbroker ## the tests that go through watermill-amqp, on its v3
	@$(WITH_BROKER) sh -c '$(SUBMAKE) test-reconnect-v3 & outage=$$!; $(SUBMAKE) test-integration-v3; result=$$?; wait $$outage && exit $$result'

test-backends: devbroker ## test that every backend keeps the same guarantees, on real servers that it starts
	@$(WITH_BROKER) $(GO) test -C backends/conformance $(CONFORMANCE) -p=1 -count=1 -parallel=200 -timeout=$(TIMEOUT) $(SUITE)

inbox: ## kill processes with an inbox, restart broker and database, and count every effect (INBOX_ARGS)
	@$(GO) build -C backends/conformance -o $(CURDIR)/.broker/inbox ./inbox
	@$(call on_brokers,inbox-versions,inbox-one)

test-observe: devbroker ## test the boards and alerts of observability/, with a real Prometheus that it installs, and their demo
	@rm -f .broker/observe
	@OBSERVE_REPORT=$(CURDIR)/.broker/observe $(WITH_BROKER) $(GO) test -C integration -count=1 -timeout=$(TIMEOUT) ./observe/board; \
		result=$$?; cat .broker/observe; exit $$result
	@$(WITH_BROKER) $(GO) test -C example/observability -count=1 -timeout=$(TIMEOUT) ./...

test-short: test-root test-observers ## the tests that need no broker

test-newest: ## the tests that need no broker, and test-backends, with the newest of what apps import and run on, in a clone
	@export KAFKA_VERSION=$(KAFKA_LOWEST); \
		clone=$$(mktemp -d) && trap 'rm -rf "$$clone"' EXIT && servers=$$(sh .ci/newest-servers) && \
		sh .ci/newest "$$clone/watermill-retry" && SERVERS=$$servers $(SUBMAKE) -C "$$clone/watermill-retry" -k vet \
		test-short test-backends CONFORMANCE="-tags=newest $(CONFORMANCE)"

race: ## make test and test-long with the race detector (needs a C compiler)
	@$(SUBMAKE) test RACE=-race
	@$(SUBMAKE) test-long RACE=-race

bench: devbroker ## all benchmarks, and the claims of tools/claims/claims.txt (BENCHTIME; BENCH_ARGS=-short takes minutes)
	$(GO) test -run='^$$' -bench=. -benchmem -benchtime=$(BENCHTIME) ./...
	$(GO) test -C observe -run='^$$' -bench=. -benchmem -benchtime=$(BENCHTIME) ./...
	@$(WITH_BROKER) $(GO) test -C integration -run='^$$' -bench=. -benchmem -benchtime=$(BENCHTIME) ./...
	@$(GO) build -C integration -o $(CURDIR)/.broker/bench ./bench
	@$(GO) build -C backends/conformance -o $(CURDIR)/.broker/bench-backends ./bench
	@$(call on_brokers,bench-versions,bench-one)
	@cd backends/conformance && exec ../../.broker/bench-backends $(BENCH_ARGS)

bench-cluster: ## how late the retries of a group are while the nodes of a cluster restart
	@$(GO) build -C integration -o $(CURDIR)/.broker/bench ./bench
	@brokers=$$(sh .ci/find-brokers) && { [ -n "$$brokers" ] || { echo 'bench-cluster needs BROKERS, see CONTRIBUTING.md' >&2; exit 1; }; } && \
		version=$(lastword $(VERSIONS)) && lines=$$($$brokers cluster $$version) && \
		(cd integration && exec ../.broker/bench -cluster "$$(echo "$$lines" | paste -s -d , -)" -tool "$$brokers" $(BENCH_ARGS)); \
		result=$$?; $$brokers down $$version-1 $$version-2 $$version-3; exit $$result

chaos: ## make brokers, networks and consumers fail under load, and count every message (CHAOS_ARGS)
	@$(GO) build -C integration -o $(CURDIR)/.broker/chaos ./chaos
	@$(call on_brokers,chaos-versions,chaos-one)

mutate: devbroker ## break the code on purpose, one line at a time, and see that the tests notice (MUTATE_ARGS)
	@$(WITH_BROKER) $(GO) run ./tools/mutate $(MUTATE_ARGS)

sim: ## the real code against a model of RabbitMQ, by seeds (SEEDS=300, or SEED=7 with its trace)
	@mkdir -p .broker && $(GO) build -C integration -o $(CURDIR)/.broker/replay ./simulation/replay
	@SIM_SEEDS=$(SEEDS) SIM_SEED=$(SEED) $(if $(SEED)$(WASM),GOOS=wasip1 GOARCH=wasm,SIM_PARTS=$(PROCESSORS)) $(GO) test -C integration -count=1 \
		$(if $(SEED)$(WASM),-vet=off -timeout=0 -exec=$(CURDIR)/.broker/replay -ldflags='-s -w',-timeout=60m) $(if $(SEED),-run=TestSeeds) -v ./simulation

lint: lint-format lint-code lint-api ## gofmt, vet, staticcheck, tidy, and that the folder api is the exported API

vuln: ## known vulnerabilities of the dependencies (needs the vulnerability database)
	@for module in $(RELEASED); do echo "govulncheck $$module"; \
		(cd $$module && $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod govulncheck ./...) || exit 1; done

fuzz: fuzz-root ## every fuzz target for FUZZTIME
	@if grep -rlq '^func Fuzz' --include='*_test.go' integration; then \
		$(SUBMAKE) devbroker && $(WITH_BROKER) $(SUBMAKE) fuzz-integration; fi

cover: devbroker ## test coverage of the shipped packages, integration tests included
	@rm -rf .broker/cover && mkdir -p .broker/cover
	@$(WITH_BROKER) sh -c '\
		packages=$$($(GO) list ./... | grep -v -e /tools/ -e /internal/layout -e /internal/configtest -e /example | paste -s -d , -); \
		$(GO) test -count=1 -coverpkg=$$packages ./... -args -test.gocoverdir=$(CURDIR)/.broker/cover && \
		$(GO) test -C integration -count=1 -coverpkg=$$packages $(FOLDERS) $(addprefix ./,$(PATIENT) reconnect) -args -test.gocoverdir=$(CURDIR)/.broker/cover'
	@$(GO) tool covdata percent -i=.broker/cover >.broker/cover.txt
	@$(GO) tool covdata textfmt -i=.broker/cover -o=.broker/cover.out && \
		$(GO) tool cover -func=.broker/cover.out | tail -n 1 >>.broker/cover.txt
	@cat .broker/cover.txt

site: ## the pages of docs as a website, .broker/site, with its links checked (needs npm)
	@rm -rf .broker/site-build && mkdir -p .broker && cp -R site .broker/site-build
	@cd .broker/site-build && npm ci && node build.mjs $(CURDIR) $(CURDIR)/.broker/site && rm -rf $(CURDIR)/.broker/site-build

screenshots: devbroker ## the pictures of the page in docs/images, from a real browser
	@SCREENSHOTS=$(CURDIR)/docs/images $(WITH_BROKER) $(GO) test -C cmd/wmretry -count=1 -timeout=$(TIMEOUT) ./browser

api: ## write the exported API of the released modules into the folder api
	@rm -rf api && mkdir api && $(call write_api,api)

release: ## make a release with VERSION=v1.2.3: commits, tags, archives. It pushes nothing (CONTRIBUTING.md)
	@$(GO) run ./tools/release $(RELEASE_ARGS) "$(VERSION)" $(RELEASED)

release-check: ## make a release of the commit in a temporary clone
	@clone=$$(mktemp -d) && trap 'chmod -R u+w "$$clone"; rm -rf "$$clone"' EXIT && \
		git clone --quiet --no-tags . "$$clone/watermill-retry" && cd "$$clone/watermill-retry" && \
		git config user.name release-check && git config user.email release-check@example.com && \
		$(SUBMAKE) release VERSION=v0.1.0-rc.1

broker-up: devbroker ## start a RabbitMQ that keeps running: eval "`make broker-up`"
	@$(DEVBROKER) up

broker-down: devbroker ## stop it and remove its data
	@$(DEVBROKER) down

# Parts of the targets above.

devbroker:
	@mkdir -p .broker
	@$(GO) build -o $(DEVBROKER) ./tools/devbroker

test-root:
	$(GO) test $(RACED) -count=1 -timeout=$(TIMEOUT) ./...
	$(GO) test -C config/amqp3 $(RACED) -count=1 -timeout=$(TIMEOUT) ./...
	$(GO) test -C inbox/pgxinbox $(RACED) -count=1 -timeout=$(TIMEOUT) ./...
	@for module in $(BACKENDS); do echo "go test -C $$module ./..."; \
		$(GO) test -C $$module $(RACED) -count=1 -timeout=$(TIMEOUT) ./... || exit 1; done

test-observers:
	$(GO) test -C observe $(RACED) -count=1 -timeout=$(TIMEOUT) ./...

test-broker:
	@$(SUBMAKE) test-wmretry & beside=$$!; result=0; \
		$(SUBMAKE) test-integration || result=1; wait $$beside || result=1; exit $$result

# What a version of RabbitMQ decides.
test-version:
	@$(SUBMAKE) -k test-broker test-alone PATIENT="tls walkthrough" WITHOUT="$(ONCE)" WMRETRY=.

test-integration:
	SIM_SEEDS=50 $(GO) test -C integration $(RACED) -p=$(PACKAGES) -parallel=3 -count=1 -timeout=$(TIMEOUT) -skip='$(ALONE)|$(LONG)' \
		$(FOLDERS)

test-alone:
	$(GO) test -C integration $(RACED) -p=1 -count=1 -timeout=$(TIMEOUT) -run='$(ALONE)' \
		$$(cd integration && grep -l 'func TestAlone' $(FOLDERS:=*_test.go) | xargs -n 1 dirname | sort -u | sed 's,^,./,')

test-patient:
	@$(SUBMAKE) test-reconnect & beside=$$!; result=0; \
		$(GO) test -C integration $(RACED) -p=$(PACKAGES) -parallel=3 -count=1 -timeout=$(TIMEOUT) $(addprefix ./,$(PATIENT)) || result=1; \
		$(GO) test -C cmd/wmretry $(RACED) -count=1 -timeout=$(TIMEOUT) ./browser || result=1; \
		wait $$beside || result=1; exit $$result

# Never with -race: Watermill's tests have their own bounds.
test-pubsub:
	$(GO) test -C integration -run='$(LONG)' -count=1 -timeout=$(TIMEOUT) ./subscriber

test-wmretry:
	$(GO) test -C cmd/wmretry $(RACED) -p=1 -parallel=4 -count=1 -timeout=$(TIMEOUT) $(WMRETRY)

test-reconnect:
	$(GO) test -C integration -count=1 -timeout=$(TIMEOUT) ./reconnect/...

# These tests mostly wait.
test-integration-v3:
	$(GO) test -C integration $(V3) $(RACED) -p=1 -parallel=8 -count=1 -timeout=$(TIMEOUT) ./retry ./hostile ./tls ./connect

test-reconnect-v3:
	$(GO) test -C integration $(V3) -count=1 -timeout=$(TIMEOUT) ./reconnect/...

# This test kills the broker: nothing may run beside it.
test-chaos:
	$(GO) test -C integration -count=1 -timeout=$(TIMEOUT) ./chaos/...

# The benchmarks find the module of wmretry in the folder integration.
bench-versions:
	@lines=$$($(BROKERS) up $(VERSIONS)) && cd integration && \
		exec ../.broker/bench -brokers "$$(echo "$$lines" | paste -s -d , -)" $(BENCH_ARGS)

bench-one:
	@cd integration && exec ../.broker/bench $(BENCH_ARGS)

chaos-versions:
	@lines=$$($(BROKERS) up $(VERSIONS)) && urls=$$(echo "$$lines" | paste -s -d , -) && \
		exec .broker/chaos -brokers "$$urls" -tool "$(BROKERS)" -cluster $(lastword $(VERSIONS)) $(CHAOS_ARGS)

# One broker gets as many messages as several do together. Left out are the rows that need a cluster.
chaos-one:
	@exec .broker/chaos -messages 2800 $(CHAOS_ARGS)

inbox-versions:
	@lines=$$($(BROKERS) up $(VERSIONS)) && urls=$$(echo "$$lines" | paste -s -d , -) && \
		exec .broker/inbox -brokers "$$urls" -tool "$(BROKERS)" $(INBOX_ARGS)

inbox-one:
	@exec .broker/inbox $(INBOX_ARGS)

lint-format:
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) && if [ -n "$$unformatted" ]; then \
		echo "not formatted: run gofmt -w on"; echo "$$unformatted"; exit 1; fi

vet:
	@failed=0; for module in $(MODULES); do echo "go vet $$module"; $(GO) vet -C $$module ./... || failed=1; done; exit $$failed

lint-code:
	@failed=0; for module in $(MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(GO) vet ./... && $(STATICCHECK) ./... && $(TIDY)) || failed=1; \
	done; exit $$failed
	cd integration && $(GO) vet $(V3) ./... && $(STATICCHECK) $(V3) ./...
	@cd tools/lint && $(TIDY)

# The declarations that go doc shows of each package that an app can import, without comments. Package refusal has a type with
# an exported alias.
define write_api
for module in $(filter-out cmd/%,$(RELEASED)); do \
	for package in $$($(GO) list -C $$module -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' ./... | \
		awk '!/\/(internal|tools|example)(\/|$$)/ || /\/refusal$$/'); do \
		echo "== $${package#github.com/tieredretry/}"; \
		$(GO) doc -C $$module -all $$package | awk '/^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$$/ { on = 1; next } \
			/^    / { next } { sub(/(^|[ \t]+)\/\/( .*)?$$/, ""); gsub(/[ \t]+/, " ") } on && NF'; \
	done >$(1)/$$(echo $${module#.} | sed 's,^$$,watermill-retry,;s,/,-,g').txt || exit 1; \
done
endef

# What has changed since the last release, or since the branch left main, is also in CHANGELOG.md.
lint-api:
	@now=$$(mktemp -d) && trap 'rm -rf "$$now"' EXIT && $(call write_api,$$now) && diff -ruN api "$$now" || { \
		echo 'the API is not that of the folder api. If the change is wanted: make api, and a line in CHANGELOG.md' >&2; exit 1; }
	@base=$$(git describe --tags --abbrev=0 --match='v[0-9]*' 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null) || exit 0; \
		git diff --quiet "$$base" -- api || git diff --unified=0 "$$base" -- CHANGELOG.md | grep -q '^+[^+]' || { \
		git diff --unified=0 "$$base" -- api; echo "the API has changed since $$base, and CHANGELOG.md has no new line" >&2; exit 1; }

# go test -list prints the names of a package's targets, and then a line with the package.
define fuzz
	@targets=$$($(GO) test -C $(1) -list='^Fuzz' ./...) || { echo "$$targets"; exit 1; }; \
	for target in $$(echo "$$targets" | awk '/^Fuzz/ { n[++i] = $$1 } /^ok/ { for (; i > 0; i--) print $$2 ":" n[i] }'); do \
		echo "$(GO) test -fuzz=$${target##*:} $${target%:*}"; \
		$(GO) test -C $(1) -run='^$$' -fuzz="^$${target##*:}$$" -fuzztime=$(FUZZTIME) "$${target%:*}" </dev/null || exit 1; \
	done
endef

fuzz-root:
	$(call fuzz,.)

fuzz-integration:
	$(call fuzz,integration)
