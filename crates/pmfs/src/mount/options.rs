//! The options of a mount, as after `-o` and in fstab(5).

use fuser::MountOption;
use pm_core::protection::Method;
use rustix::mount::MountFlags;

/// The options of a mount. Later ones replace earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct MountOptions {
    pub(crate) is_read_only: bool,
    pub(crate) has_devices: bool,
    pub(crate) has_set_id: bool,
    pub(crate) is_executable: bool,
    /// Whether all users have access. Root's mounts are for all users anyway.
    pub(crate) allows_others: bool,
    pub(crate) is_strict: bool,
    pub(crate) populates: bool,
    /// Whether the directory may have entries, which the mount hides.
    pub(crate) may_hide: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) protection: Option<Method>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            is_read_only: false,
            has_devices: false,
            has_set_id: false,
            is_executable: true,
            allows_others: false,
            is_strict: false,
            populates: false,
            may_hide: false,
            threads: None,
            protection: None,
        }
    }
}

impl MountOptions {
    /// Adds a list of options that are separated by commas.
    ///
    /// # Errors
    /// The first option that is not known, or has a wrong value.
    pub(crate) fn add(&mut self, list: &str) -> Result<(), String> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|option| self.add_one(option))
    }

    fn add_one(&mut self, option: &str) -> Result<(), String> {
        match option {
            "ro" => self.is_read_only = true,
            "rw" => self.is_read_only = false,
            "dev" => self.has_devices = true,
            "nodev" => self.has_devices = false,
            "suid" => self.has_set_id = true,
            "nosuid" => self.has_set_id = false,
            "exec" => self.is_executable = true,
            "noexec" => self.is_executable = false,
            "allow_other" => self.allows_others = true,
            "strict" => self.is_strict = true,
            "populate" => self.populates = true,
            "nonempty" => self.may_hide = true,
            // What is done in any case: reads change no time, the kernel checks permissions, and each call is durable.
            "defaults"
            | "noatime"
            | "nodiratime"
            | "relatime"
            | "default_permissions"
            | "sync"
            | "dirsync" => {}
            // For mount(8), systemd and others, not for the file system.
            "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "nofail" | "_netdev" => {}
            _ => match option.split_once('=') {
                Some(("threads", count)) => match count.parse() {
                    Ok(count @ 1..) => self.threads = Some(count),
                    _ => return Err(format!("threads={count}: a number from 1 on")),
                },
                Some(("protect", method)) => {
                    self.protection = Some(method.parse().map_err(|error| format!("{option}: {error}"))?);
                }
                Some(("comment", _)) => {}
                _ if option.starts_with("x-") || option.starts_with("X-") => {}
                _ => return Err(format!("unknown option {option}")),
            },
        }
        Ok(())
    }

    /// For mount(2).
    pub(crate) fn flags(self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.is_read_only);
        flags.set(MountFlags::NODEV, !self.has_devices);
        flags.set(MountFlags::NOSUID, !self.has_set_id);
        flags.set(MountFlags::NOEXEC, !self.is_executable);
        flags
    }

    /// For fusermount3.
    pub(crate) fn for_fusermount(self, source: String) -> Vec<MountOption> {
        let either = |is_first, first, second| if is_first { first } else { second };
        vec![
            MountOption::FSName(source),
            MountOption::Subtype("pmfs".into()),
            MountOption::DefaultPermissions,
            either(self.is_read_only, MountOption::RO, MountOption::RW),
            either(self.has_devices, MountOption::Dev, MountOption::NoDev),
            either(self.has_set_id, MountOption::Suid, MountOption::NoSuid),
            either(self.is_executable, MountOption::Exec, MountOption::NoExec),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        options.add(list).map(|()| options)
    }

    #[test]
    fn lists_of_fstab_are_parsed() {
        let default = MountOptions::default();
        for list in ["", "defaults", "rw,noatime,nofail,x-systemd.automount", "auto,,user,comment=mine"] {
            assert_eq!(parsed(list), Ok(default), "{list}");
        }
        let given =
            parsed("ro,noexec,nosuid,nodev,noatime,allow_other,strict,threads=4,protect=async").unwrap();
        let expected = MountOptions {
            is_read_only: true,
            is_executable: false,
            allows_others: true,
            is_strict: true,
            threads: Some(4),
            protection: Some(Method::Async),
            ..default
        };
        assert_eq!(given, expected);
        assert_eq!(
            given.flags(),
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC
        );
        assert_eq!(parsed("ro,noexec,dev,rw,exec,nodev"), Ok(default), "the last one counts");
    }

    #[test]
    fn unknown_options_are_errors() {
        for list in [
            "strikt",
            "ro,threads=0",
            "threads=many",
            "threads",
            "strict=1",
            "subtype=x",
            "protect",
            "protect=mprotect",
        ] {
            assert!(parsed(list).is_err(), "{list}");
        }
    }
}
