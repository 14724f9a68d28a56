# From a clean checkout to a running broker (`make run`) or a tested one (`make test`).
# Everything is installed below .venv; system packages that are missing are installed by
# .ci/setup-debian.sh. Nothing is done twice: stamps remember what is up to date. What only tests,
# checks and Spark need is installed when they are first called.
#
#   make PYTHON=python3.12        choose the interpreter (3.11 or later)
#   make run ARGS="-p 5673"       pass arguments to the broker, or to pytest: make test ARGS="-k ack"
#   make test BUILD=debug         use the checked build of the compiled modules; BUILD=asan and
#                                 BUILD=ubsan are that build with a sanitizer

VENV ?= .venv
BUILD ?= release
DATA_DIR ?= var
JOBS ?= 2
# Tests wait for much of their time, for disks, timers, pages and processes: three of them for each
# processor keep all busy. An emulator needs a processor for each, and all take longer.
WORKERS ?= $(if $(CROSS),$(JOBS),$(shell expr 3 \* $(JOBS)))
ARGS ?=
FUZZ_SECONDS ?= 60
SIMULATIONS ?= 100000
FIRST_SEED ?= 0
CHAOS_STEPS ?= 200
CHAOS_SEED ?= 1
CHAOS_TLS ?= 0
RELEASE ?=
PROFILE ?=
NEXT_KEY ?=
REHEARSAL ?=
ARCH ?=
SANITIZER ?=
INTERPRETER ?= 3.13t
FREEZER ?=
DESTDIR ?=
LAYOUT ?= rpm
URL ?= https://packages.example.com/lavinmq

# The interpreter of an existing environment, else the first of the usual names that is new enough.
RECENT := 'import sys; sys.exit(sys.version_info < (3, 11))'
ifndef PYTHON
PYTHON := $(or $(shell for python in $(VENV)/bin/python python3 python3.13 python3.12 python3.11; do \
	$$python -c $(RECENT) 2>/dev/null && echo $$python && break; done),python3)
endif

IN_VENV := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.installed-all
BROKER_NEEDS := 'import tomllib; file = tomllib.load(open("pyproject.toml", "rb")); \
	print(*file["build-system"]["requires"], *file["project"]["dependencies"])'
COMPILED := build/.compiled-$(BUILD)
TRIAL := build/.trial-$(BUILD)
CLIENTS := build/.clients
NODE_TESTS := tests/integration/node
PAGE_TESTS := tests/browser
PAGES := lavinmq/http/ui/static
ESLINT = $(PAGE_TESTS)/node_modules/.bin/eslint -c $(PAGE_TESTS)/eslint.config.mjs --max-warnings 0
FUZZ_EXTRA := 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["optional-dependencies"]["fuzz"])'
# The processor that the executable and its packages are for, by Debian's name; CROSS if not this one.
# For another one there is no C library of this machine.
debian_name = $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(1)))
ARCHITECTURE := $(call debian_name,$(or $(ARCH),$(shell uname -m)))
CROSS := $(filter-out $(call debian_name,$(shell uname -m)),$(ARCHITECTURE))
BASE ?= $(if $(CROSS),2.31,native)
EXECUTABLE := dist/$(CROSS:%=%/)lavinmq
EMULATOR := $(if $(CROSS),qemu-$(patsubst amd64,x86_64,$(CROSS:arm64=aarch64))-static \
	-L $(abspath build/freeze/sysroot-$(CROSS)))
# Other forms than ours are for comparison; they stay below build/freeze.
ifeq ($(FREEZER),)
BUILD_BINARY = $(IN_VENV) packaging/freeze/build.py \
	--base $(BASE) --arch $(ARCHITECTURE) $(if $(RELEASE),--release) $(PROFILE:%=--profile %) --jobs $(JOBS)
else
BUILD_BINARY = $(IN_VENV) packaging/freeze/compare.py --build-only --forms $(FORMS_$(FREEZER))
endif
FORMS_pyinstaller := pyinstaller-onedir,pyinstaller-onefile
FORMS_nuitka := nuitka-standalone,nuitka-onefile
INSTALL_RELEASE_EXTRA = $(IN_VENV) -m pip install --disable-pip-version-check --quiet $$($(IN_VENV) -c \
	'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["optional-dependencies"]["release"])')
# What compiles is seldom called: its bytecode would be 5 MB.
COMPILE := PYTHONDONTWRITEBYTECODE=1 LAVINMQ_DEBUG=$(if $(filter release,$(BUILD)),0,1) \
	LAVINMQ_SANITIZE=$(filter asan ubsan fuzz,$(BUILD)) $(if $(filter fuzz,$(BUILD)),CC=clang)
# What the interpreter needs to run sanitized modules; children inherit it. CPython leaks at its end
# by design; its objects come from malloc, so that the sanitizer sees where each of them ends.
# The runtime stands in for crypt() and for C++'s exceptions and must find the real ones at its start.
# What tests call besides, such as troff, is not ours to mend.
LIBASAN = $(shell $${CC:-cc} -print-file-name=libasan.so)
SANITIZED_asan = LD_PRELOAD=$(LIBASAN):libstdc++.so.6:libcrypt.so.1 PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:alloc_dealloc_mismatch=0:quarantine_size_mb=16
SANITIZED_ubsan = UBSAN_OPTIONS=print_stacktrace=1
VERSION := 'import sys; print(*sys.version_info[:2])'

# Stamps do not see that another interpreter was chosen, or that the compiled modules were removed.
ifneq ($(shell $(IN_VENV) -c $(VERSION) 2>/dev/null),$(shell $(PYTHON) -c $(VERSION) 2>/dev/null))
$(INSTALLED): FORCE
endif
ifeq ($(and $(wildcard lavinmq/_cluster.*.so),$(wildcard lavinmq/_core.*.so),$(wildcard lavinmq/_pcre.*.so),$(wildcard lavinmq/_perf.*.so),\
	$(wildcard lavinmq/_tls.*.so),$(wildcard lavinmq/spark/_arrow.*.so),\
	$(wildcard lavinmq/client/_engine.*.so)),)
$(COMPILED): FORCE
endif

.PHONY: build run test test-needs nightly binary test-binary compare-binaries crash fuzz dev lint fmt bench bench-spark
.PHONY: bench-all bench-hostile chaos simulate soak soak-client soak-mqtt trial
.PHONY: screenshots test-client interpreter
.PHONY: install deb rpm image sign-image wheel sbom repo keyring source publish reproduce test-packages lock clean help FORCE
.PHONY: lint-style lint-types lint-cython lint-layers lint-hot lint-stubs lint-pages vendor
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

build: $(COMPILED) $(VENV)/bin/lavinmq  ## build everything; afterwards .venv/bin/lavinmq works (default)

run: build  ## start the broker on the data directory ./var
	@mkdir -p $(DATA_DIR)
	exec $(VENV)/bin/lavinmq -D $(DATA_DIR) $(ARGS)

test-needs: build $(TRIAL) $(DEVELOPED) $(CLIENTS) $(NODE_TESTS)/node_modules/.installed $(PAGE_TESTS)/node_modules/.installed

test: test-needs  ## run all tests
	TESTS_PATIENCE=$${TESTS_PATIENCE:-3} $(SANITIZED_$(BUILD)) $(IN_VENV) -m pytest -n $(WORKERS) $(ARGS)

fuzz: $(DEVELOPED)  ## fuzz the HTTP API, and every parser for FUZZ_SECONDS=60 each; needs clang
	$(MAKE) build
	HTTP_SCHEMA_LONG=1 $(IN_VENV) -m pytest tests/integration/http/test_schema.py -n $(JOBS)
	.ci/setup-debian.sh fuzz
	$(MAKE) build BUILD=fuzz
	$(IN_VENV) -m pip install --disable-pip-version-check --quiet $$($(IN_VENV) -c $(FUZZ_EXTRA))
	$(IN_VENV) tests/fuzz/run.py all --seconds $(FUZZ_SECONDS)

binary: build  ## build dist/lavinmq, one file with all it needs; BASE=2.31 for older systems, RELEASE=1, PROFILE=FILE, ARCH=arm64
	.ci/setup-debian.sh binary
	$(if $(CROSS),.ci/setup-debian.sh cross $(ARCHITECTURE))
	$(BUILD_BINARY)

TESTED_WITH_BINARY := tests/packaging tests/protocol tests/crash $(addprefix tests/integration/,\
	test_operations.py $(addprefix auth/test_,logins.py oauth.py) $(addprefix listeners/test_,listeners.py tls.py)\
	$(addprefix http/test_,https.py oauth.py ui.py users.py) $(addprefix mqtt/test_,management.py ways.py)\
	test_backup.py shovel/test_webhooks.py $(addprefix cluster/test_,examples.py service.py tls.py))
# What stands between a broker and its disk in tests, and what they ask of processes, is for this one; nodes of a
# cluster have deadlines.
TESTED_IN_EMULATION := tests/packaging/test_$(CROSS).py tests/packaging/test_linking.py \
	$(filter-out tests/packaging tests/crash tests/integration/cluster/%,$(TESTED_WITH_BINARY))
test-binary: $(DEVELOPED) $(CLIENTS)  ## run tests of the broker against dist/lavinmq; ARCH=arm64: in emulation
	$(if $(CROSS),TESTS_PATIENCE=6) LAVINMQ_TEST_COMMAND="$(strip $(EMULATOR) $(abspath $(EXECUTABLE)))" $(IN_VENV) -m pytest \
		$(if $(CROSS),$(TESTED_IN_EMULATION),$(TESTED_WITH_BINARY)) -n $(WORKERS) $(ARGS)

compare-binaries: build  ## build every form of the binary and measure them, as in docs/packaging.md
	$(IN_VENV) packaging/freeze/compare.py $(ARGS)

# What others get is of the release form; REHEARSAL=1 makes it of any, marked by its name.
export REHEARSAL
ifeq ($(REHEARSAL),)
deb rpm image publish: RELEASE = 1
deb rpm image publish: BASE = 2.31
endif
$(EXECUTABLE):
	$(MAKE) binary BASE=$(BASE) RELEASE=$(RELEASE)

install: build $(EXECUTABLE)  ## install dist/lavinmq and all that goes with it below DESTDIR=/somewhere
	$(IN_VENV) packaging/install.py --layout $(LAYOUT) --arch $(ARCHITECTURE) "$(if $(DESTDIR),$(DESTDIR),/)"

deb: build $(EXECUTABLE)  ## make dist/packages/*.deb from dist/lavinmq; ARCH=arm64
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/deb.py --arch $(ARCHITECTURE) $(ARGS)

rpm: build $(EXECUTABLE)  ## make dist/packages/*.rpm from dist/lavinmq; ARCH=aarch64
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/rpm.py --arch $(ARCHITECTURE) $(ARGS)

image: build $(EXECUTABLE)  ## make dist/image, the container image, as a layout of OCI
	$(IN_VENV) packaging/image.py --arch $(ARCHITECTURE) $(ARGS)

sign-image: $(INSTALLED)  ## sign what is in dist/image-index, for its users: KEY=..., IMAGE=registry.example.com/lavinmq:1.0
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/image_signature.py --key "$(KEY)" --reference "$(IMAGE)" $(ARGS)

wheel:  ## make dist/packages/*.whl for PYTHON=python3.12, and the source distributions they are made from; BASE=2.31
	.ci/setup-debian.sh build $(PYTHON)
	$(PYTHON) packaging/wheel.py --base $(BASE) $(ARGS)

sbom: $(EXECUTABLE)  ## make dist/lavinmq.cdx.json, the bill of materials of the executable
	$(INSTALL_RELEASE_EXTRA)
	$(IN_VENV) packaging/sbom.py --arch $(ARCHITECTURE) $(ARGS)

source: $(INSTALLED)  ## make dist/packages/*.dsc, the source package that Debian's tools build
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/source.py $(ARGS)

keyring: $(INSTALLED)  ## make the package of the keys: KEY=the one that signs, NEXT_KEY=the one that will
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/keyring.py --key "$(KEY)" $(NEXT_KEY:%=--key "%") $(ARGS)

repo: $(INSTALLED)  ## make signed repositories of dist/packages: KEY=name of a key of gpg, URL=https://...; NEXT_KEY
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/repository.py --key "$(KEY)" $(NEXT_KEY:%=--next-key "%") --url "$(URL)" $(ARGS)

publish: build $(EXECUTABLE)  ## gather a release in dist/release with signed checksums and notes: KEY=...; ARGS="--arch amd64 --arch arm64"
	.ci/setup-debian.sh packages
	$(IN_VENV) packaging/publish.py --key "$(KEY)" $(ARGS)

reproduce: build $(EXECUTABLE)  ## build dist/lavinmq and its packages again elsewhere, and compare; ARGS=--quick
	$(IN_VENV) packaging/reproduce.py --arch $(ARCHITECTURE) --jobs $(JOBS) $(ARGS)

test-packages: build $(DEVELOPED) $(EXECUTABLE)  ## install the packages into fresh systems and run them; needs root
	.ci/setup-debian.sh packages
	@# In a worker: a test that hangs ends its process, and this one still tells of all the others.
	PACKAGE_TESTS=1 $(IN_VENV) -m pytest -n 1 --timeout 1800 tests/packaging/test_deb.py tests/packaging/test_systems.py tests/packaging/test_rpm.py \
		tests/packaging/test_image.py tests/packaging/test_compose.py tests/packaging/test_wheel.py tests/packaging/test_migration.py \
		tests/packaging/test_source.py tests/packaging/test_keyring.py tests/packaging/test_newcomer.py $(ARGS)

interpreter:  ## build one to try the client with, below build/interpreters: INTERPRETER=3.14t, SANITIZER=tsan
	$(PYTHON) packaging/interpreters.py $(INTERPRETER) $(SANITIZER:%=--sanitizer %) --jobs $(JOBS)

test-client:  ## build the client's wheel with PYTHON=python3.13, install it alone, run its tests; SANITIZER=tsan; needs make
	$(PYTHON) packaging/client_alone.py $(SANITIZER:%=--sanitizer %) $(ARGS)

crash: build $(DEVELOPED)  ## the crash tests in their long form: every point, many restarts (an hour)
	CRASH_TESTS_LONG=1 $(IN_VENV) -m pytest tests/crash -n $(WORKERS) $(ARGS)

nightly: test-needs  ## the tests that a change cannot wait for; .ci/run has them with RELEASE=1
	NIGHTLY_TESTS=1 $(IN_VENV) -m pytest -n $(WORKERS) -m nightly $(ARGS)

simulate: build $(DEVELOPED)  ## histories of a simulated cluster: SIMULATIONS=100000, FIRST_SEED=0
	LAVINMQ_SIMULATIONS=$(SIMULATIONS) LAVINMQ_FIRST_SEED=$(FIRST_SEED) $(IN_VENV) -m pytest tests/simulation -n $(JOBS) --timeout 0 $(ARGS)

chaos: build $(DEVELOPED)  ## nodes of a cluster fail at random, by a seed: CHAOS_STEPS=200, CHAOS_SEED=1, CHAOS_TLS=1; and the long form of its tests
	CLUSTER_TESTS_LONG=1 LAVINMQ_CHAOS_STEPS=$(CHAOS_STEPS) LAVINMQ_CHAOS_SEED=$(CHAOS_SEED) \
		LAVINMQ_CHAOS_TLS=$(CHAOS_TLS) \
		$(IN_VENV) -m pytest tests/integration/cluster tests/crash/test_cluster_power_loss.py $(ARGS)

dev:  ## build the compiled modules with assertions and bounds checks, without optimisation
	$(MAKE) build BUILD=debug

lint: lint-style lint-types lint-client lint-cython lint-layers lint-hot lint-stubs lint-pages  ## all checks; -k: do not stop at the first

lint-style: $(DEVELOPED)
	$(IN_VENV) -m ruff check .
	$(IN_VENV) -m ruff format --check .

lint-types: $(DEVELOPED)
	$(IN_VENV) -m mypy --strict lavinmq perf

lint-client: $(DEVELOPED) $(PAGE_TESTS)/node_modules/.installed  # by the other checker, as programs see it
	$(IN_VENV) packaging/client_tree.py build/client-types
	$(PAGE_TESTS)/node_modules/.bin/pyright --pythonpath $(VENV)/bin/python -p build/client-types

lint-cython: $(DEVELOPED)
	@# It starts pycodestyle by that name.
	PATH=$(abspath $(VENV))/bin:$$PATH cython-lint cext

lint-layers: $(DEVELOPED)
	$(IN_VENV) -m pytest -q tests/unit/test_layers.py

lint-hot: build
	$(IN_VENV) perf/micro/check_annotated.py build/annotate

lint-stubs: build $(DEVELOPED)
	$(IN_VENV) -m mypy.stubtest lavinmq._cluster lavinmq._core lavinmq._pcre lavinmq._perf lavinmq._tls lavinmq.client._engine \
		lavinmq.spark._arrow \
		--ignore-disjoint-bases --mypy-config-file pyproject.toml --allowlist .ci/stubtest-allow.txt --ignore-unused-allowlist

lint-pages: $(PAGE_TESTS)/node_modules/.installed
	$(PAGE_TESTS)/node_modules/.bin/tsc -p $(PAGE_TESTS)/tsconfig.json
	$(ESLINT) $(PAGES)

vendor:  ## fetch anew what others have written for the management pages, checked by its digest
	packaging/vendor.sh $(PAGES)/vendor

screenshots: build $(DEVELOPED) $(CLIENTS)  ## take pictures of all management pages, into build/screenshots and docs/screenshots
	$(IN_VENV) -m tests.browser.screenshots

fmt: $(DEVELOPED) $(PAGE_TESTS)/node_modules/.installed  ## rewrite the sources in the house format: Python, and scripts of the pages
	$(IN_VENV) -m ruff check --fix-only .
	$(IN_VENV) -m ruff format .
	$(ESLINT) --fix $(PAGES)

bench: build  ## measure the broker against its targets; ARGS="--help" lists the options
	$(IN_VENV) perf/bench.py $(ARGS)

bench-all: build  ## the same beside Debian's RabbitMQ, which is installed and not started; ARGS=--short: 20 minutes
	.ci/setup-debian.sh bench
	$(IN_VENV) perf/bench.py $(ARGS)

bench-spark: build $(DEVELOPED)  ## measure what Spark reads and writes; needs Java, and the extra spark
	$(IN_VENV) perf/spark_bench.py $(ARGS)

bench-hostile: build  ## how long a client waits while another does its worst; ARGS="--only NAME"
	$(IN_VENV) perf/hostile.py $(ARGS)

soak: build  ## an hour of mixed load with disconnects; ARGS="--minutes 5" for less
	$(IN_VENV) perf/soak.py $(ARGS)

soak-client: build  ## an hour of the client over a network that is cut; ARGS="--minutes 5" for less
	$(IN_VENV) perf/client_soak.py $(ARGS)

soak-mqtt: build  ## forty minutes of 10 000 MQTT clients that come back; ARGS="--minutes 5" for less
	$(IN_VENV) perf/mqtt_soak.py $(ARGS)

lock:  ## refresh requirements.lock to the newest versions pyproject.toml allows
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet -e .[dev]
	{ sed -n '/^#/p' requirements.lock; \
	  build/lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | LC_ALL=C sort -f; \
	} > build/requirements.lock
	mv build/requirements.lock requirements.lock

clean:  ## remove what was built and installed; the data directory stays
	rm -rf build dist *.egg-info $(VENV) $(NODE_TESTS)/node_modules $(PAGE_TESTS)/node_modules
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	rm -f lavinmq/*.so lavinmq/client/*.so lavinmq/spark/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST)

$(INSTALLED): requirements.lock
	.ci/setup-debian.sh build $(PYTHON)
	@# An environment of another version is replaced; one of the same version is brought up to date.
	test "$$($(IN_VENV) -c $(VERSION) 2>/dev/null)" = "$$($(PYTHON) -c $(VERSION))" \
		|| $(PYTHON) -m venv --clear $(VENV)
	@# Only what a broker needs, without bytecode: what is imported is compiled then.
	PYTHONDONTWRITEBYTECODE=1 $(IN_VENV) -m pip install --disable-pip-version-check --quiet --no-compile \
		-c requirements.lock $$($(IN_VENV) -c $(BROKER_NEEDS))
	find $(VENV)/lib -name __pycache__ -prune -exec rm -r {} +
	touch $@

$(DEVELOPED): $(INSTALLED)
	$(IN_VENV) -m pip install --disable-pip-version-check --quiet -r requirements.lock
	touch $@

$(COMPILED): setup.py $(INSTALLED) $(wildcard cext/*.p?? cext/*/*.p??)
	.ci/setup-debian.sh build $(PYTHON)
	@# A module of the other kind of build looks up to date by its time: remove it first.
	test -e $@ || rm -f build/.compiled-* lavinmq/*.so lavinmq/client/*.so lavinmq/spark/*.so
	$(COMPILE) $(IN_VENV) setup.py --quiet build_ext \
		--inplace --parallel $(JOBS) --build-temp build/objects-$(BUILD) --build-lib build/lib-$(BUILD)
	touch $@

$(TRIAL): $(COMPILED) $(wildcard cext/trial/*.pyx)
	test -e $@ || rm -f build/.trial-* tests/support/*.so
	LAVINMQ_TRIAL=1 LAVINMQ_SANITIZE=$(filter asan ubsan fuzz,$(BUILD)) $(if $(filter fuzz,$(BUILD)),CC=clang) \
		$(IN_VENV) setup.py --quiet build_ext --inplace --build-temp build/objects-trial-$(BUILD) --build-lib build/lib-trial-$(BUILD)
	touch $@

trial: $(TRIAL)  ## compile tests/support/_*.so, what unit tests need beside the broker's modules

$(VENV)/bin/lavinmq: pyproject.toml $(INSTALLED) | $(COMPILED)
	@# compat: a path file. The default, an import hook, costs every start 35 modules and 2 MB.
	PYTHONDONTWRITEBYTECODE=1 LAVINMQ_IN_PLACE=1 $(IN_VENV) -m pip install \
		--disable-pip-version-check --quiet --no-deps --no-build-isolation \
		--config-settings editable_mode=compat --editable .
	touch $@

$(CLIENTS): .ci/setup-debian.sh
	.ci/setup-debian.sh test
	@mkdir -p $(@D)
	touch $@

$(NODE_TESTS)/node_modules/.installed: $(NODE_TESTS)/package.json $(NODE_TESTS)/package-lock.json | $(CLIENTS)
	cd $(NODE_TESTS) && npm ci --no-audit --no-fund --loglevel=error
	touch $@

$(PAGE_TESTS)/node_modules/.installed: $(PAGE_TESTS)/package.json $(PAGE_TESTS)/package-lock.json $(PAGE_TESTS)/unpack-browser.mjs | $(CLIENTS)
	cd $(PAGE_TESTS) && npm ci --no-audit --no-fund --loglevel=error
	node $(PAGE_TESTS)/unpack-browser.mjs
	touch $@
