# Two commands are all a fresh machine needs: `make demo` and `make test`.
# Both install what is missing (Debian/Ubuntu and Fedora package names) and ask nothing.

CARGO ?= cargo
# What a test may lack without failing `make test`: the packages of the VM lab, an idle machine. `make test MAY_SKIP=` allows nothing.
MAY_SKIP ?= vm,idle
PLIMSOLL := target/release/plimsoll

# A DUT with real NIC drivers under QEMU, in the generator's namespace: `make lab-vm NIC=e1000e`; `plimsoll lab down` removes it.
NIC ?= vmxnet3

.PHONY: demo test accept bench lint doc setup build clean-lab lab-vm bench-vm static

demo: setup build
	scripts/demo.sh $(PLIMSOLL)

test: setup
	PLIMSOLL_MAY_SKIP=$(MAY_SKIP) $(CARGO) test --locked

accept: setup build
	scripts/accept.sh

bench: setup
	scripts/setup.sh bench
	$(CARGO) bench --locked --bench throughput

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

setup:
	scripts/setup.sh build test

build:
	$(CARGO) build --locked --release

# One file that runs on any Linux since 3.2, for DUTs: `plimsoll sink`, `probe`.
static: setup
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --locked --release --bin plimsoll --target $(shell uname -m)-unknown-linux-gnu
	@echo "target/$(shell uname -m)-unknown-linux-gnu/release/plimsoll"

lab-vm: setup build
	$(PLIMSOLL) lab up --vm --nic $(NIC)

# Zero-copy against copy mode in the same guest, interleaved.
bench-vm: setup
	$(CARGO) bench --locked --bench vm
