//! Which processes have a file open and locked, so that no other can open it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The processes that hold a lock of this file, as far as this one may look at them: "process 17 (cp), process 19 (mv)". `None` if it finds none.
///
/// # Source
/// proc_pid_fdinfo(5): the locks of an open file description.
#[must_use]
pub fn holders(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let is_file = |link: &Path| {
        fs::metadata(link).is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    let mut holders: Vec<String> = Vec::new();
    // Processes that end meanwhile, or belong to others, are left out.
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let is_holder = descriptors.flatten().any(|descriptor| {
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            is_file(&descriptor.path()) && fs::read_to_string(info).is_ok_and(|info| has_lock(&info))
        });
        if is_holder {
            let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            holders.push(format!("process {pid} ({})", command.trim_end()));
        }
    }
    (!holders.is_empty()).then(|| holders.join(", "))
}

/// Whether the information about an open file lists a lock.
fn has_lock(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("lock:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_with_locks_count() {
        let open = "pos:\t0\nflags:\t02100002\nmnt_id:\t29\nino:\t77\n";
        assert!(!has_lock(open));
        assert!(has_lock(&format!("{open}lock:\t1: OFDLCK ADVISORY  WRITE -1 00:1b:77 0 EOF\n")));
    }
}
