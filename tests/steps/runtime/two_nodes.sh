#!/usr/bin/env bash
# Run one rank on each of two "nodes": network namespaces that a cable joins, 10.9.0.1 and 10.9.0.2. As on many
# clusters, each node's own name leads to its loopback interface. Run in namespaces of its own: unshare -rnm --kill-child.
# two_nodes.sh PYTHON PORT SECONDS [GLOO_SOCKET_IFNAME of the second node]
set -euo pipefail
python=$1 port=$2 seconds=$3 interface=${4:-}

printf '127.0.0.1 localhost %s\n' "$(hostname)" > "$TMPDIR/hosts"
mount --bind "$TMPDIR/hosts" /etc/hosts
unshare -n sleep 300 & second=$!
trap 'kill $second' EXIT
until [ "$(readlink /proc/$second/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
on_second() { nsenter --target "$second" --net -- "$@"; }

ip link add cable0 type veth peer name cable1
ip link set cable1 netns "$second"
ip link set lo up; ip addr add 10.9.0.1/24 dev cable0; ip link set cable0 up
on_second ip link set lo up; on_second ip addr add 10.9.0.2/24 dev cable1; on_second ip link set cable1 up
on_second ip link add elsewhere type bridge; on_second ip addr add 10.8.0.2/24 dev elsewhere; on_second ip link set elsewhere up

rank() { env RANK="$1" LOCAL_RANK=0 WORLD_SIZE=2 AZUREML_NODE_COUNT=2 MASTER_ADDR=10.9.0.1 MASTER_PORT="$port" \
  ${2:+GLOO_SOCKET_IFNAME=$2} "$python" -m joining --timeout-seconds "$seconds"; }
export -f rank; export python port seconds
on_second bash -c "rank 1 $interface" & other=$!
status=0; rank 0 || status=$?
wait $other || status=$?
exit $status
