# The front door. `make` builds build/sinter for the CPU; everything else is a word.
BUILD ?= build
JOBS  ?= $(shell nproc)
CTEST  = ctest --output-on-failure -j$(JOBS)

.PHONY: all setup quickstart test test-slow test-data asan tsan cuda bench format lint clean
all: $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j$(JOBS) sinter

$(BUILD)/build.ninja:
	@cmake --preset cpu -B $(BUILD)

setup:  ## installs what the build needs (as root), or says what is missing
	@tools/setup

quickstart: setup all  ## from a bare machine to a small model that tells stories
	@tools/quickstart

test: setup $(BUILD)/build.ninja  ## every test but the slow, the data and the GPU ones
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -LE 'slow|data|gpu'

test-slow: $(BUILD)/build.ninja  ## long sweeps, kill -9 and the like
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -L slow

test-data: $(BUILD)/build.ninja  ## checks on large files: SINTER_DATA=folder make test-data
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -L data

asan:  ## the fast tests under address and undefined-behaviour sanitizers
	@cmake --preset asan
	@ninja -C build-asan -j$(JOBS)
	@cd build-asan && $(CTEST) -L fast

tsan:  ## the fast tests of threads and ranks under the thread sanitizer
	@cmake --preset tsan
	@ninja -C build-tsan -j$(JOBS) test_base
	@cd build-tsan && $(CTEST) -R test_base

cuda:  ## build-cuda/sinter with the CUDA backend
	@tools/setup --cuda
	@cmake --preset cuda
	@ninja -C build-cuda -j$(JOBS)

bench:  ## every speed with its share of this machine's own limit, beside oneDNN where it is installed
	@cmake --preset bench
	@ninja -C build-bench -j$(JOBS) sinter
	@build-bench/sinter bench

format:
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

lint: $(BUILD)/build.ninja
	@git ls-files 'src/*.cc' | xargs -P$(JOBS) -n8 clang-tidy -p $(BUILD) --quiet

clean:
	@rm -rf build build-asan build-tsan build-debug build-bench build-cuda
