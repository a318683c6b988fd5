#!/bin/busybox sh
# The guest's only user space: mounts, drivers, addresses, then one command agent per control port.
# A NIC is named by the last byte of its MAC (nic0, nic1, …), since the kernel's own order is not the order of the devices.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ LD_LIBRARY_PATH=/lib/x86_64-linux-gnu
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir -p /tmp
mount -t bpf bpf /sys/fs/bpf
for module in $(cat /modules/order); do insmod /modules/$module.ko || echo "lab: cannot load $module" >/dev/kmsg; done

# Nothing may appear on the links but the frames under test and the answers to them.
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
for path in /sys/class/net/eth*; do
  [ -e "$path" ] || continue
  mac=$(cat "$path/address")
  n=$((0x${mac##*:}))
  ip link set "${path##*/}" name nic$n
  ip addr add 10.$((n + 1)).0.1/24 dev nic$n
  ip link set nic$n up
done

# Request: one line "TAG SECONDS BASE64-SCRIPT". Answer: a line "@TAG STATUS OUT-BYTES ERR-BYTES", then the two outputs.
# A script that outlives its seconds is killed with all it started in its session; its status is 124.
agent() {
  base=/run/agent$2
  exec 3<>"$1"
  pause=0.3
  while :; do
    if read -r tag seconds script <&3; then
      echo "$script" | base64 -d >$base.sh
      rm -f $base.late
      setsid sh $base.sh >$base.out 2>$base.err </dev/null 3>&- &
      pid=$!
      setsid sh -c "sleep $seconds; touch $base.late; kill -KILL -$pid" </dev/null >/dev/null 2>&1 3>&- &
      watchdog=$!
      wait $pid
      status=$?
      kill -KILL -$watchdog 2>/dev/null
      [ -e $base.late ] && status=124
      { echo; echo "@$tag $status $(stat -c %s $base.out) $(stat -c %s $base.err)"; cat $base.out $base.err; } >&3
      pause=0.05
    else
      # Nobody is connected. A client often comes back at once; an idle agent must not take the CPU from the guest.
      sleep $pause
      pause=0.3
    fi
  done
}

for port in /sys/class/virtio-ports/vport*; do
  name=$(cat "$port/name")
  case "$name" in plimsoll.*) agent "/dev/${port##*/}" "${name##*.}" & ;; esac
done
wait
