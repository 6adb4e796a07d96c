# make demo    train the GPT example, sharded and unsharded, and compare
# make test    build and run the tests
# make shuffled  the tests in a random order, and with other bytes in new memory
# make asan    the tests under the address and undefined behaviour sanitizers
# make fuzz    fuzz every reader of files and messages, FUZZ_SECONDS each
# make tidy    clang-tidy on the sources of the library and of dtensor-run
# make coverage  the lines of the library that no test reaches, by folder
# make tsan    the tests of layout and comm under the thread sanitizer
# make rules   each sharding rule by brute force, and mutations, in five minutes
# make sweep   the long runs of the randomized tests, about an hour
# make matrix  the library and its tests with each LibTorch, in one table
# make compilers  the library and a suite with each g++ and clang++, in one table
# make lints   the lints alone, without a build
# make bench   the benchmarks and their anchors, alternately, in one table
# make bench-instructions  instruction counts of warm operators, exactly repeatable
# make models  download SmolLM2-135M for tests and examples/llama
# make pictures  regenerate the pictures of docs/concepts/debugging.md
# make package  the library as a tar.gz and a .deb, in build/packages
# make package-test  install these on a clean Debian 12 and use them (as root)
# make wheel   the wheel of the Python package, in build/wheel/dist, tested
# make docs    the documentation site, in build/docs/html, and its links checked
# make format  clang-format every source
# make clean   remove the build folders
#
# DEMO_STEPS=n shortens the demo, JOBS=n builds with n processes.
# SEED=n repeats the order of a failed `make shuffled`, PERTURB="85 255" the bytes.
# BENCH="--only gpt --rounds 5" are options of tools/bench.py.
# CTEST="--label-regex comm" are options of ctest for `make asan`.
# VERSIONS="2.13.0 2.13.0+cuda" SUITES="layout comm" are those of tools/matrix.py.
# COMPILERS="g++-13 clang++-16" are the compilers of tools/compilers.py.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
SEED ?= $(shell shuf --input-range 1-99999 --head-count 1)
PERTURB ?= 85 255
# One more than JOBS, because some tests mostly wait for failed ranks.
TEST_JOBS = $(shell expr $(JOBS) + 1)
# Threads that poll, such as those of Gloo and OpenMP (OMP_WAIT_POLICY in the
# presets), must not take the cores from the other tests.
CTEST_BATCH = $(shell chrt --batch 0 true 2>/dev/null && echo chrt --batch 0) ctest
DOCS = build/docs/venv/bin
LIBRARIES = dtensor_core dtensor dtensor_testing dtensor_legacy_tp dtensor_torchscript
export DEMO_STEPS

.PHONY: demo test mpi shuffled asan fuzz tidy tsan coverage rules sweep matrix compilers lints bench bench-instructions bench-build models pictures package package-test wheel docs clang format clean setup

demo: setup
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target gpt_train
	tools/demo.sh build/release/examples/gpt_train

# For each MPI: its launcher, and the package to build its backend with.
test shuffled asan tidy coverage package: mpi
mpi:
	@tools/setup.sh openmpi-bin libopenmpi-dev mpich libmpich-dev

# clang compiles the tests in half the time of GCC: it instantiates the templates
# of a precompiled header once, GCC again for each source.
test shuffled asan fuzz tidy coverage sweep rules matrix lints: clang
clang:
	@tools/setup.sh clang clang-tidy libclang-rt-dev

test tsan: setup
	cmake --preset $(subst test,dev,$@)
	cmake --build --preset $(subst test,dev,$@) --parallel $(JOBS)
	$(CTEST_BATCH) --preset $(subst test,dev,$@) --parallel $(TEST_JOBS)

# The programs of `make test`, with a library that the sanitizers check.
asan: setup
	for preset in dev asan; do \
	  cmake --preset $$preset && \
	  cmake --build --preset $$preset --parallel $(JOBS) || exit; \
	done
	$(CTEST_BATCH) --preset asan --parallel $(TEST_JOBS) $(CTEST)

# A seed, because the ranks of a suite must run its tests in the same order.
shuffled: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)
	@seed=$(SEED); for byte in $(PERTURB); do \
	  echo "make shuffled SEED=$$seed PERTURB=$$byte"; \
	  MALLOC_PERTURB_=$$byte GTEST_SHUFFLE=1 GTEST_RANDOM_SEED=$$seed \
	    $(CTEST_BATCH) --preset dev --parallel $(TEST_JOBS) --schedule-random || exit 1; \
	done

# Uses the library of `make asan`, which is instrumented for libFuzzer.
fuzz: setup
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS) --target dtensor_fuzz
	tools/fuzz.py --build build/asan --seconds $(FUZZ_SECONDS) --jobs $(JOBS)

coverage: setup
	@tools/setup.sh llvm
	cmake --preset coverage
	cmake --build --preset coverage --parallel $(JOBS)
	rm -rf build/coverage/profiles
	$(CTEST_BATCH) --preset coverage --parallel $(TEST_JOBS)
	tools/coverage.py --build build/coverage

# Checks the sources with the compile commands of `make asan`.
tidy:
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS) --target dtensor_dtensor dtensor_run
	tools/tidy.py --build build/asan --jobs $(JOBS)

# Tests of the configuration "sweep" run only here.
sweep: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)
	ctest --preset dev --build-config sweep --label-regex sweep --verbose

rules: setup
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target dtensor_rules \
	  dtensor_op_sample_recorder
	ctest --preset dev --build-config sweep --tests-regex '^sweep\.rule' --verbose

matrix: setup
	tools/matrix.py --versions $(VERSIONS) --suites $(SUITES) --jobs $(JOBS)

compilers: setup
	tools/compilers.py --compilers $(COMPILERS) --jobs $(JOBS)

lints: setup
	cmake --preset dev
	ctest --preset dev --label-regex lint

bench: bench-build
	tools/bench.py $(BENCH)

bench-instructions: bench-build
	tools/instructions.py $(BENCH)

bench-build:
	@tools/setup.sh valgrind libopenmpi-dev
	cmake --preset bench
	cmake --build --preset bench --parallel $(JOBS)

setup:
	@tools/setup.sh

models:
	@tools/models.sh

pictures: setup
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target 05_debugging
	mkdir -p build/pictures
	build/release/examples/05_debugging build/pictures
	tools/pictures.py build/pictures docs/images

# For the LibTorch in CMAKE_PREFIX_PATH, else the one that setup finds.
package:
	@tools/setup.sh dpkg-dev
	cmake --fresh --preset package
	cmake --build --preset package --parallel $(JOBS)
	tools/check_exports.py $(LIBRARIES:%=build/package/lib%.so)
	cpack --preset package

package-test:
	@tools/setup.sh debootstrap
	tools/package_test.sh

# Warnings of Doxygen and Sphinx are errors: a public name without a comment, a
# link or an anchor without a target.
docs:
	@tools/setup.sh --docs
	python3 docs/site/stage.py
	doxygen docs/site/Doxyfile
	$(DOCS)/sphinx-build --quiet --jobs auto --fail-on-warning --keep-going \
	  --conf-dir docs/site --doctree-dir build/docs/doctrees build/docs/source build/docs/html
	python3 docs/site/check_links.py build/docs/html

wheel: setup
	cmake --preset package
	cmake --build --preset package --parallel $(JOBS)
	cmake --install build/package --prefix build/wheel/library
	tools/wheel.sh build/wheel/library

format: setup
	git ls-files '*.h' '*.cpp' | xargs .venv/bin/clang-format -i

clean:
	rm -rf build
