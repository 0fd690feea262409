modprobe nvmet_tcp
cd /sys/kernel/config/nvmet
mkdir subsystems/nqn.2026-01.example:disk
echo 1 >subsystems/nqn.2026-01.example:disk/attr_allow_any_host
mkdir subsystems/nqn.2026-01.example:disk/namespaces/1
echo /dev/ublkb0 >subsystems/nqn.2026-01.example:disk/namespaces/1/device_path
echo 1 >subsystems/nqn.2026-01.example:disk/namespaces/1/enable
mkdir ports/1
echo tcp >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo $address >ports/1/addr_traddr
echo 4420 >ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/nqn.2026-01.example:disk ports/1/subsystems/
