#!/usr/bin/env bash
# Installs what is missing for the named purposes: build, test, bench. Asks nothing; does nothing where all is there.
set -euo pipefail

# tool-or-file : Debian/Ubuntu package : Fedora package
build="
clang:clang:clang
pkg-config:pkg-config:pkgconf-pkg-config
m4:m4:m4
make:make:make
/usr/include/libelf.h:libelf-dev:elfutils-libelf-devel
/usr/include/zlib.h:zlib1g-dev:zlib-devel
/usr/include/pcap/dlt.h:libpcap-dev:libpcap-devel
/usr/include/linux/if_xdp.h:linux-libc-dev:kernel-headers
"
test="
ip:iproute2:iproute
ethtool:ethtool:ethtool
tcpdump:tcpdump:tcpdump
capsh:libcap2-bin:libcap
sysctl:procps:procps-ng
ping:iputils-ping:iputils
tc:iproute2:iproute-tc
nstat:iproute2:iproute
xz:xz-utils:xz
python3:python3:python3
ssh:openssh-client:openssh-clients
/usr/sbin/sshd:openssh-server:openssh-server
"
bench="
dpdk-testpmd:dpdk:dpdk
dpdk-testpmd:dpdk-dev:dpdk-tools
/usr/lib/*/dpdk/pmds-*/librte_net_af_xdp.so*:librte-net-af-xdp23:dpdk
trafgen:netsniff-ng:netsniff-ng
xdp-trafficgen:xdp-tools:xdp-tools
"

present() {
  case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
  esac
}

missing=()
for purpose in "$@"; do
  while IFS=: read -r probe debian fedora; do
    [ -n "$probe" ] && ! present "$probe" || continue
    if command -v apt-get >/dev/null; then missing+=("$debian"); else missing+=("$fedora"); fi
  done <<<"${!purpose}"
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
echo "setup: installing ${missing[*]}" >&2
if command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  # One by one, so that a package that this release lacks (xdp-tools, say) does not keep the others away.
  for package in "${missing[@]}"; do
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends --no-remove "$package" >/dev/null ||
      echo "setup: $package could not be installed; what needs it is skipped or fails by name" >&2
  done
elif command -v dnf >/dev/null; then
  "${as_root[@]}" dnf install -y -q "${missing[@]}" ||
    echo "setup: some of ${missing[*]} could not be installed" >&2
else
  echo "setup: neither apt-get nor dnf here: install ${missing[*]} by hand" >&2
  exit 1
fi
