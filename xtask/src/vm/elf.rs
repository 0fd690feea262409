//! The shared objects of programs, as the dynamic loader finds them (ldd).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use miette::{IntoDiagnostic, Result, WrapErr, bail};

use super::tree::Tree;

/// Adds to `tree` the shared objects of `programs`, at their paths on this machine. Static programs and scripts have none.
pub(super) fn add_libraries(tree: &mut Tree, programs: &[PathBuf]) -> Result<()> {
    if programs.is_empty() {
        return Ok(());
    }
    // ldd's exit status depends on whether the last file is dynamic. Missing libraries are in its output.
    let output = Command::new("ldd")
        .args(programs)
        .env("LC_ALL", "C")
        .output()
        .into_diagnostic()
        .wrap_err("cannot run ldd")?;
    for library in parse_ldd(&String::from_utf8_lossy(&output.stdout))? {
        tree.file(&library, library.as_ref(), 0o755);
    }
    Ok(())
}

/// The absolute paths in the output of ldd for one or more programs.
fn parse_ldd(text: &str) -> Result<BTreeSet<String>> {
    let mut libraries = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with(char::is_whitespace)) {
        let line = line.trim();
        if line.ends_with("=> not found") {
            bail!("a program for the guest has a missing library: {line}");
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        // Lines without a path are for the kernel's object (linux-vdso), or messages such as "statically linked".
        if let (true, Some((path, _))) = (path.starts_with('/'), path.rsplit_once(" (0x")) {
            libraries.insert(path.to_owned());
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_once() {
        let text = "/usr/bin/a:\n\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n/usr/bin/b:\n\tnot a dynamic executable\n\
                    /usr/bin/c:\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3)\n\tstatically linked\n";
        let libraries = parse_ldd(text).expect("all are found");
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries, expected.map(String::from).into());
    }

    #[test]
    fn missing_library_is_an_error() {
        let error = parse_ldd("\tlibgone.so.1 => not found\n").expect_err("missing");
        assert!(error.to_string().contains("libgone.so.1"), "{error}");
    }

    #[test]
    fn program_needs_its_loader() {
        let mut tree = Tree::empty();
        add_libraries(&mut tree, &["/bin/sh".into()]).expect("ldd runs");
        assert!(tree.nodes().any(|(path, _)| path.contains("ld-linux") || path.contains("ld-musl")));
    }
}
