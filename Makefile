# The front door. `make` builds build/sinter for the CPU; everything else is a word.
BUILD ?= build
JOBS  ?= $(shell nproc)
CTEST  = ctest --output-on-failure -j$(JOBS)

.PHONY: all help setup quickstart quickstart-tune test test-slow test-data asan tsan cuda bench format lint check docs install install-files uninstall clean
all: $(BUILD)/build.ninja  ## build/sinter for the CPU (what plain `make` does)
	@ninja -C $(BUILD) -j$(JOBS) sinter

$(BUILD)/build.ninja:
	@cmake --preset cpu -B $(BUILD)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## installs what the build needs (as root), or says what is missing
	@tools/setup

quickstart: setup all  ## from a bare machine to a small model that tells stories
	@tools/quickstart

quickstart-tune: quickstart  ## tunes that model to answer in a given form
	@tools/quickstart-tune

test: setup $(BUILD)/build.ninja  ## every test but the slow, the data and the GPU ones
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -LE 'slow|data|gpu'

test-slow: $(BUILD)/build.ninja  ## long sweeps, kill -9 and the like
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -L slow

test-data: $(BUILD)/build.ninja  ## checks on large files: make test-data SINTER_DATA=folder
	@test -d "$(SINTER_DATA)" || { echo "which folder? make test-data SINTER_DATA=folder"; exit 2; }
	@cmake -B $(BUILD) -DSINTER_DATA=$(abspath $(SINTER_DATA)) > /dev/null
	@ninja -C $(BUILD) -j$(JOBS)
	@cd $(BUILD) && $(CTEST) -L data

asan:  ## the unit tests and fuzz targets under address and undefined-behaviour sanitizers
	@cmake --preset asan
	@ninja -C build-asan -j$(JOBS)
	@cd build-asan && $(CTEST) -L fast -R "^(test|fuzz)_"

TSAN_TESTS = test_base test_comm test_engine test_server
tsan:  ## thread pool, communicator, engine and server under the thread sanitizer
	@cmake --preset tsan
	@ninja -C build-tsan -j$(JOBS) $(TSAN_TESTS)
	@cd build-tsan && $(CTEST) -R "^($(subst $() ,|,$(TSAN_TESTS)))$$"

cuda:  ## build-cuda/sinter with the CUDA backend (CUDA_ARCHITECTURES="80;90a": for these)
	@tools/setup --cuda
	@cmake --preset cuda $(if $(CUDA_ARCHITECTURES),-DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)")
	@ninja -C build-cuda -j$(JOBS)

bench:  ## every speed with its share of this machine's own limit, beside oneDNN where it is installed
	@cmake --preset bench
	@ninja -C build-bench -j$(JOBS) sinter
	@build-bench/sinter bench

format:  ## clang-format over every source file
	@git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

lint:  ## clang-tidy over src (minutes; what it checks is in .clang-tidy)
	@cmake -S . -B build-lint -G Ninja -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON > /dev/null
	@grep -o '"file": "[^"]*/src/[^"]*\.cc"' build-lint/compile_commands.json | cut -d'"' -f4 | sort -u \
	  | xargs -P$(JOBS) -n8 clang-tidy -p build-lint --quiet

check:  ## form, spelling, and lint of what the last commit touched: what CI asks beside tests
	@tools/check format
	@tools/check words
	@tools/check lint

docs: all  ## docs/cli and docs/recipe.md from what the program says of itself
	@rm -rf docs/cli && $(BUILD)/sinter man --pages docs/cli
	@{ echo "# Every key of a recipe"; echo; echo "Made by \`make docs\` from \`sinter train --keys\`; do not edit."; echo; \
	   echo '```'; $(BUILD)/sinter train --keys; echo '```'; } > docs/recipe.md

PREFIX ?= /usr/local
share = $(DESTDIR)$(PREFIX)/share
install: all install-files  ## into PREFIX (default /usr/local): program, man page, completions, recipes, docs

install-files:
	@install -Dm755 $(BUILD)/sinter $(DESTDIR)$(PREFIX)/bin/sinter
	@for f in $$(ldd $(BUILD)/sinter | awk '$$3 ~ /build-deps/ { print $$3 }'); do \
	  install -Dm755 $$f $(DESTDIR)$(PREFIX)/lib/sinter/$$(basename $$f); done
	@mkdir -p $(share)/man/man1 $(share)/bash-completion/completions $(share)/fish/vendor_completions.d \
	  $(share)/zsh/site-functions $(share)/sinter $(share)/doc/sinter
	@$(BUILD)/sinter man > $(share)/man/man1/sinter.1
	@$(BUILD)/sinter completion bash > $(share)/bash-completion/completions/sinter
	@$(BUILD)/sinter completion fish > $(share)/fish/vendor_completions.d/sinter.fish
	@$(BUILD)/sinter completion zsh > $(share)/zsh/site-functions/_sinter
	@cp -r recipes $(wildcard tasks) $(share)/sinter/
	@cp -r README.md LICENSE docs $(share)/doc/sinter/
	@echo "installed in $(DESTDIR)$(PREFIX)"

uninstall:  ## removes what `make install` put into PREFIX
	@rm -rf $(DESTDIR)$(PREFIX)/bin/sinter $(DESTDIR)$(PREFIX)/lib/sinter $(share)/man/man1/sinter.1 $(share)/bash-completion/completions/sinter \
	  $(share)/fish/vendor_completions.d/sinter.fish $(share)/zsh/site-functions/_sinter $(share)/sinter $(share)/doc/sinter

clean:  ## removes every build folder
	@rm -rf build build-asan build-tsan build-debug build-bench build-cuda build-lint
