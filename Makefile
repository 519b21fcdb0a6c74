# make ci runs what CI runs. Nothing here needs more than Go and, for SQL, a C compiler.

GO       ?= go
DURATION ?= 10s

.PHONY: build test race vet lint ci bench demo fuzz kill mutations strangers lambda-rie

build:
	$(GO) build -o bin/ ./cmd/...

test:
	$(GO) test ./...

race:
	$(GO) test -race -timeout 30m ./...

vet:
	$(GO) vet ./...

# The linter's version is pinned in a module file of its own, so that it has no say in the
# versions that the program is built with.
lint: vet
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) tool -modfile=.ci/lint.mod staticcheck ./...

ci:
	.ci/run

# Each benchmark once, to see that it runs; take BENCHTIME=1s to measure.
BENCHTIME ?= 1x
bench:
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem ./...

# Seal beside DuckDB and parquet-go on the same parts, and the memory of a process that seals:
# three minutes. TURNS and STAGING choose how many turns, and which sizes in MiB.
.PHONY: bench-seal
bench-seal:
	testenv/sealbench/run.sh

demo:
	$(GO) run ./cmd/streamer demo

# Each fuzz target for DURATION: go test takes one at a time.
fuzz:
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | while IFS=: read -r file func; do \
		target=$${func#func }; \
		echo "$$target in $$(dirname $$file)"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(DURATION) $$(dirname $$file) || exit 1; \
	done

# Processes killed again and again while all readings pass through them: those of
# STREAMER_TEST_READINGS, or as many generated ones. SEED chooses when. Three minutes on two cores.
SEED ?= 1
kill:
	STREAMER_KILL_ROWS=all STREAMER_KILL_RUNS=20 STREAMER_KILL_LOCALS=3 STREAMER_KILL_SEED=$(SEED) \
		$(GO) test ./cmd/streamer -run '^TestNothingIsLostOrDoubled' -count 1 -v -timeout 20m

# All interleavings of larger programs than make test tries: 3 minutes, 2 GB.
.PHONY: exhaustive
exhaustive:
	STREAMER_TEST_EXHAUSTIVE=1 $(GO) test ./pipeline/checkpoint -run TestEveryOrderOf -v -timeout 30m

# Histories of simulated processes that fail, on two cores about five a second; FROM is the first.
SEEDS ?= 2000
FROM  ?= 0
.PHONY: simulate
simulate:
	$(GO) test ./pipeline -run '^TestCrash$$' -count 1 -seeds $(SEEDS) -from $(FROM) -v -timeout 12h | grep -v '^=== '

# The main job with so many seeds of a Firehose that groups, orders, repeats, delays and refuses as it
# likes: 1,000 take five minutes on two cores.
GROUPINGS ?= 1000
.PHONY: groupings
groupings:
	STREAMER_TEST_GROUPINGS=$(GROUPINGS) $(GO) test ./cmd/streamer -run TestEveryGroupingOfFirehose -count 1 -v -timeout 1h

mutations:
	$(GO) test ./pipeline -run TestMutations -search -v -timeout 2h

# The main job on AWS look-alikes that others wrote, without Docker: Python, and PyPI for the
# first time.
strangers:
	testenv/strangers/run.sh

# The Lambda function in AWS's emulator of the runtime. Needs the network for the first time.
lambda-rie:
	testenv/rie/run.sh

# What needs Docker: an engine that answers, or, as root, one of its own and images built from
# packages. Ten to fifteen minutes; KEEP=DIR keeps the images for the next time.
.PHONY: docker-check
docker-check:
	testenv/docker/check.sh
