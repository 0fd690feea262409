//! The setup of a guest before its first command: a script that the agent runs.

use super::builder::Builder;

/// Waits for the NVDIMM, and creates a namespace that supports `-o dax`. It is stored in the NVDIMM, so this happens once for each image.
const PMEM: &str = "\
modprobe -a nfit nd_pmem ublk_drv loop
for attempt in $(seq 200); do [ -b /dev/pmem0 ] && break; sleep 0.05; done
[ -b /dev/pmem0 ] || { echo 'the kernel found no NVDIMM' >&2; exit 1; }
if [ \"$(cat /sys/block/pmem0/queue/dax)\" != 1 ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax -M dev >/dev/null
fi
";

/// Creates a file system only on empty memory, so that corruption by a power cut is detected.
const DAX: &str = "\
if cmp -s -n 1048576 /dev/pmem0 /dev/zero; then mkfs.ext4 -q -b 4096 /dev/pmem0; fi
mkdir -p /mnt/pmem
mount -t ext4 -o dax /dev/pmem0 /mnt/pmem
";

/// The script for a guest of this configuration.
pub(super) fn script(builder: &Builder) -> String {
    let Builder { dax, shares, modules, network, .. } = builder;
    let mut script = format!("set -e\n{PMEM}");
    if let Some(plug) = network {
        let node = plug.node;
        script.push_str(&format!(
            "hostname node{node}\nmodprobe virtio_net\nip link set lo up\nip address add 10.0.0.{node}/24 dev eth0\n\
             ip link set eth0 up\n",
        ));
    }
    for module in modules {
        // Parameters may follow the module's name.
        script.push_str(&format!("modprobe {module}\n"));
    }
    if !shares.is_empty() {
        script.push_str("modprobe -a 9pnet_virtio 9p\n");
    }
    for (index, share) in shares.iter().enumerate() {
        let access = if share.writable { "rw" } else { "ro" };
        let guest = quote(&share.guest);
        script.push_str(&format!(
            "mkdir -p {guest}\nmount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,{access} {} {guest}\n",
            tag(index),
        ));
    }
    if *dax {
        script.push_str(DAX);
    }
    script
}

/// The mount tag of the share with this index.
pub(super) fn tag(index: usize) -> String {
    format!("share{index}")
}

/// Quotes `text` as one word for a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::vm::{Plug, Share, Vm};

    #[test]
    fn shares_are_mounted_by_tag_and_read_only_unless_asked() {
        let share = |guest: &str, writable| Share { host: "/".into(), guest: guest.into(), writable };
        let builder = Vm::builder().share(share("/a", false)).share(share("/it's", true));
        let script = script(&builder.module("brd rd_size=1024"));
        assert!(script.contains("msize=262144,ro share0 '/a'\n"), "{script}");
        assert!(script.contains(r"msize=262144,rw share1 '/it'\''s'"), "{script}");
        assert!(script.contains("\nmodprobe brd rd_size=1024\n"), "{script}");
        assert!(!script.contains("mkfs"), "{script}");
    }

    #[test]
    fn only_requested_modules_are_loaded() {
        let script = script(&Vm::builder().dax(true));
        assert!(!script.contains("9p") && !script.contains("virtio_net"), "{script}");
        assert!(script.ends_with(DAX), "{script}");
    }

    #[test]
    fn ends_of_cable_have_their_own_addresses() {
        for (plug, own) in Plug::pair().expect("a cable").into_iter().zip(["10.0.0.1/24", "10.0.0.2/24"]) {
            let script = script(&Vm::builder().network(plug));
            assert!(script.contains(&format!("ip address add {own} dev eth0\n")), "{script}");
        }
    }
}
