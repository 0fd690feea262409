//! Compares the declarations with the C header of this machine.

use super::{CONSTANTS, STRUCTURES};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

/// A structure: its name, its size, and its fields with their offsets.
pub(crate) type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Fewer constants and structure members than the header of a 6.1 kernel has, the oldest in use. If fewer are compared, the probe is
/// broken, not the header old.
const LEAST_COMPARED: usize = 60;

/// A C program that prints a line `name value` for each item of the header.
///
/// `#ifdef` finds macros, but not the members of a structure. Older headers lack some, so a structure that does not compile as a whole is
/// probed member by member.
fn program(body: &str) -> String {
    format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <errno.h>\n#include <sys/ioctl.h>\n\
         #include <linux/ublk_cmd.h>\nint main(void) {{\n{body}return 0;\n}}\n"
    )
}

/// Compiles and runs `source`; `None` when it does not compile.
fn run(source: &str) -> Option<BTreeMap<String, i128>> {
    let dir = tempfile::tempdir().unwrap();
    let (c, exe) = (dir.path().join("probe.c"), dir.path().join("probe"));
    std::fs::write(&c, source).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&exe).arg(&c).output().expect("a C compiler named cc");
    if !compiled.status.success() {
        return None;
    }
    let ran = Command::new(&exe).output().unwrap();
    assert!(ran.status.success(), "the probe failed: {ran:?}");
    let lines = String::from_utf8(ran.stdout).unwrap();
    Some(
        lines
            .lines()
            .map(|line| {
                let (name, value) = line.split_once(' ').expect("name and value");
                (name.to_owned(), value.parse().unwrap())
            })
            .collect(),
    )
}

/// A statement that prints the offset of `field` in `structure`.
fn member(structure: &str, field: &str) -> String {
    format!("printf(\"{field} %lld\\n\", (long long)offsetof(struct {structure}, {field}));\n")
}

#[test]
fn constants_and_layouts_match_header() {
    let mut body = String::new();
    for (name, _) in CONSTANTS {
        writeln!(body, "#ifdef {name}\nprintf(\"{name} %lld\\n\", (long long)({name}));\n#endif").unwrap();
    }
    let header = run(&program(&body)).expect("<linux/ublk_cmd.h> (Debian: linux-libc-dev)");

    let (mut compared, mut not_compared) = (0, Vec::new());
    for (name, ours) in CONSTANTS {
        match header.get(*name) {
            Some(theirs) => {
                assert_eq!(theirs, ours, "{name}: the header's value left, ours right");
                compared += 1;
            }
            None => not_compared.push((*name).to_owned()),
        }
    }
    for (name, size, fields) in STRUCTURES {
        let all = fields.iter().map(|(field, _)| member(name, field)).collect::<String>();
        let size_of = format!("printf(\"sizeof %lld\\n\", (long long)sizeof(struct {name}));\n");
        let mut header = run(&program(&format!("{all}{size_of}"))).unwrap_or_default();
        if header.is_empty() && run(&program(&size_of)).is_some() {
            for (field, _) in *fields {
                header.extend(run(&program(&member(name, field))).unwrap_or_default());
            }
        } else if let Some(theirs) = header.get("sizeof") {
            assert_eq!(*theirs, *size as i128, "size of {name}: the header's left, ours right");
        }
        for (field, ours) in *fields {
            match header.get(*field) {
                Some(theirs) => {
                    assert_eq!(
                        *theirs, *ours as i128,
                        "{name}.{field}: the header's offset left, ours right"
                    );
                    compared += 1;
                }
                None => not_compared.push(format!("{name}.{field}")),
            }
        }
    }
    println!("{compared} compared; not in this machine's header: {}", not_compared.join(" "));
    assert!(compared >= LEAST_COMPARED, "only {compared} compared; not in the header: {not_compared:?}");
}

#[test]
fn command_numbers_match_kernel() {
    // As the kernel's trace prints them, for headers that lack them.
    assert_eq!(super::UBLK_U_CMD_ADD_DEV, 0xc020_7504);
    assert_eq!(super::UBLK_U_CMD_GET_DEV_INFO2, 0x8020_7512);
    assert_eq!(super::UBLK_U_CMD_GET_FEATURES, 0x8020_7513);
    assert_eq!(super::UBLK_U_IO_COMMIT_AND_FETCH_REQ, 0xc010_7521);
}
