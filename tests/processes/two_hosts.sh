#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs a program on two simulated hosts and exits with the code of the first
# host's launcher. The hosts are network namespaces connected by a virtual
# cable:
#
#   two_hosts.sh DTENSOR_RUN RANKS_PER_HOST PROGRAM ARGUMENTS...
#
# Exits with 77 if this machine does not support namespaces. Does not touch the
# outside network, and everything ends with the script.
set -eu

if [ "${1:-}" != --inside ]; then
  command -v ip > /dev/null || { echo "skipped: no ip (iproute2)"; exit 77; }
  unshare --user --map-root-user --net --pid --fork true 2> /dev/null ||
    { echo "skipped: no namespaces for this user"; exit 77; }
  exec unshare --user --map-root-user --net --pid --fork --mount-proc \
    --kill-child "$0" --inside "$@"
fi
shift
dtensor_run=$1
ranks=$2
shift 2

unshare --net sleep infinity &
other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
  sleep 0.05
done
elsewhere="nsenter --target $other --net"
ip link set lo up
$elsewhere ip link set lo up
ip link add oak type veth peer name elm netns $other
ip address add 10.77.0.1/24 dev oak
ip link set oak up
$elsewhere ip address add 10.77.0.2/24 dev elm
$elsewhere ip link set elm up

launch="$dtensor_run -n $ranks --no-bind --nnodes 2 --rdzv 10.77.0.1:29500"
GLOO_SOCKET_IFNAME=elm $elsewhere $launch --node-rank 1 "$@" &
second=$!
code=0
GLOO_SOCKET_IFNAME=oak $launch --node-rank 0 "$@" || code=$?
wait $second || code=$((code == 0 ? 1 : code))
exit $code
