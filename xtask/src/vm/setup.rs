//! The setup of a guest before its first command: a script that the agent runs.

use super::builder::Share;

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

/// The script for a guest with these `shares` and `modules`; with `dax`, ext4 on the NVDIMM is mounted at `/mnt/pmem`.
pub(super) fn script(dax: bool, shares: &[Share], modules: &[String]) -> String {
    let mut script = format!("set -e\n{PMEM}");
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
    if dax {
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

    #[test]
    fn shares_are_mounted_by_tag_and_read_only_unless_asked() {
        let share = |guest: &str, writable| Share { host: "/".into(), guest: guest.into(), writable };
        let script = script(false, &[share("/a", false), share("/it's", true)], &["brd rd_size=1024".into()]);
        assert!(script.contains("msize=262144,ro share0 '/a'\n"), "{script}");
        assert!(script.contains(r"msize=262144,rw share1 '/it'\''s'"), "{script}");
        assert!(script.contains("\nmodprobe brd rd_size=1024\n"), "{script}");
        assert!(!script.contains("mkfs"), "{script}");
    }

    #[test]
    fn only_requested_modules_are_loaded() {
        let script = script(true, &[], &[]);
        assert!(!script.contains("9p"), "{script}");
        assert!(script.ends_with(DAX), "{script}");
    }
}
