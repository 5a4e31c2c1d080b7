#!/bin/sh
# The first process of a node, in namespaces of its own: mounts what only the node sees, then runs the container runtime and
# the kubelet. Everything that either writes is below ROOT or in memory.
#
#   node.sh ROOT PROGRAMS ADDRESS API-ADDRESS
set -eu
root=$1
programs=$2
address=$3
api_address=$4
export PATH="$programs:$PATH"

# The kubelet wants these values of the kernel, and would set them for the whole machine. It reads them here.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$root/settings/${setting%=*}
    mkdir -p "$(dirname "$file")"
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
done

umount --recursive --lazy /sys # or programs find what is hidden below in the list of mounts
mount -t sysfs sysfs /sys
if grep -q '^[0-9]*:memory:' /proc/self/cgroup; then
    mount -t tmpfs tmpfs /sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        case $controllers in '' | name=*) continue ;; esac
        mkdir "/sys/fs/cgroup/$controllers"
        mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$controllers"
        for each in $(echo "$controllers" | tr , ' '); do
            [ -e "/sys/fs/cgroup/$each" ] || ln -s "$controllers" "/sys/fs/cgroup/$each"
        done
    done </proc/self/cgroup
else
    # A group with processes has no children with controllers.
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir /sys/fs/cgroup/init
    echo $$ >/sys/fs/cgroup/init/cgroup.procs
    sed 's/[^ ]*/+&/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
fi

mkdir -p "$root/lib" "$root/log"
mount -t tmpfs tmpfs /run
mount --bind "$root/lib" /var/lib
mount --bind "$root/log" /var/log

ip link set lo up
ip address add "$api_address/32" dev lo
ip link add cni0 type bridge
ip address add "$address/16" dev cni0
ip link set cni0 up

containerd --config "$root/containerd.toml" >"$root/containerd.log" 2>&1 &
tries=0
until ctr --address "$root/c.sock" version >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 150 ] || exit 1
    sleep 0.2
done
for image in "$root"/images/*.tar; do
    ctr --address "$root/c.sock" --namespace k8s.io images import "$image" >>"$root/images.log" 2>&1
done

kubelet --config="$root/kubelet.json" --kubeconfig="$root/kubeconfig.json" --root-dir="$root/kubelet" \
    --cert-dir="$root/certificates" --volume-plugin-dir="$root/plugins" --container-runtime=remote \
    --container-runtime-endpoint="unix://$root/c.sock" --hostname-override=here --node-ip="$address" --v=2 \
    >"$root/kubelet.log" 2>&1
