#!/bin/sh
# init of the guest: mounts the usual file systems, starts the agent, and powers off when the agent ends, which is when the host closes its end
# of the port.
export PATH=/root:/usr/bin HOME=/root TERM=linux LC_ALL=C
hostname guest
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ln -s /proc/self/fd /dev/fd
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr

# The kernel has booted on one processor: see its command line.
for online in /sys/devices/system/cpu/cpu*/online; do
    [ "$(cat "$online")" = 1 ] || echo 1 >"$online"
done

# Reports to the host, without translation of characters.
stty -F /dev/ttyS1 raw -echo
ln -s ttyS1 /dev/report

modprobe -a virtio_pci virtio_console
port=
for attempt in $(seq 200); do
    port=$(grep -lsx pm.agent /sys/class/virtio-ports/*/name) && break
    sleep 0.05
done
port=${port%/name}
cd /root
vm-agent "/dev/${port##*/}"
code=$?
[ $code = 0 ] || echo "the agent ended with $code"

cd /
# File systems in use, such as the root, cannot be unmounted.
umount -a -r 2>/dev/null
sync
poweroff -f
