//! `unsafe` is restricted to listed files, and crates without it forbid it.

use crate::tidy::modules::{Modules, is_root};
use crate::tidy::rust::{Rust, words};
use crate::tidy::tree::{File, Tree, Violation};

/// The files that may contain `unsafe`, with reasons.
const ALLOWED: &[(&str, &str)] = &[
    ("benches/alloc/opening.rs", "makes a link of the offset of a block"),
    ("benches/btree/lmdb.rs", "maps the file of a rival, which nothing else may change"),
    ("benches/nvm/bpf.rs", "bpf(2) has no safe wrapper"),
    ("benches/seam/in_c.rs", "calls the C loop that ours is compared with"),
    ("crates/pm-alloc/src/links.rs", "makes links of offsets"),
    ("crates/pm-alloc/tests/fork.rs", "makes children that inherit a heap"),
    ("crates/pm-btree/tests/fork.rs", "makes children that inherit a store"),
    ("crates/pm-alloc/tests/library/links/mod.rs", "makes links of offsets"),
    ("crates/pm-btree/src/node/entry.rs", "makes a slice of a record, which is immutable while it is lent"),
    ("crates/pm-core-derive/src/lib.rs", "the derive writes `unsafe impl Persist`, having checked the type"),
    ("crates/pm-core/examples/one_persist.rs", "no_mangle, so that the assembly can be found by name"),
    ("crates/pm-core/src/fault.rs", "installs a signal handler, and continues where it says"),
    ("crates/pm-core/src/fault/chain.rs", "installs signal handlers"),
    ("crates/pm-core/src/protection/page_table.rs", "mprotect of a region's pages"),
    ("crates/pm-core/src/protection/pkey.rs", "protection keys have no safe wrapper"),
    ("crates/pm-core/src/protection/region_windows.rs", "takes charge of a region's mapping"),
    ("crates/pm-core/src/protection/watch.rs", "handles a signal"),
    ("crates/pm-core/src/region/private_map.rs", "copies to and from mappings of its own"),
    ("crates/pm-core/tests/protection_limits.rs", "makes stray accesses"),
    ("crates/pm-core/tests/strays.rs", "makes stray accesses"),
    ("crates/pm-fs/tests/strays.rs", "makes stray stores, and handles their signal"),
    ("crates/pm-core/tests/syscall_filter/mod.rs", "installs filters of system calls"),
    ("crates/pm-core/src/fault/tests.rs", "installs other signal handlers"),
    ("crates/pm-core/src/insn/aarch64.rs", "cache instructions have no safe form"),
    ("crates/pm-core/src/insn/choice.rs", "chooses between instructions that are unsafe to call"),
    ("crates/pm-core/src/insn/copy.rs", "streaming stores work on raw memory"),
    ("crates/pm-core/src/insn/x86_64.rs", "cache instructions have no safe form"),
    ("crates/pm-core/src/region/blocks.rs", "FIEMAP has no safe wrapper"),
    ("crates/pm-core/src/region/lock.rs", "fcntl with OFD locks has no safe wrapper"),
    ("crates/pm-core/src/region/mapping.rs", "mmap and munmap"),
    (
        "crates/pm-core/src/region/options.rs",
        "asks for the promise that an address may be mapped over, and passes it on",
    ),
    ("crates/pm-core/src/region/pmem.rs", "turns checked offsets into addresses of the mapping"),
    ("crates/pm-core/src/region/process.rs", "keeps a word in a page that fork wipes"),
    ("crates/pm-core/src/typed/link.rs", "implements Persist for a link"),
    ("crates/pm-core/src/typed/scope.rs", "reads values that have links"),
    ("crates/pm-core/src/persist.rs", "the unsafe trait itself, and the bytes of its values"),
    ("crates/pm-malloc/src/c_api.rs", "C functions, which take C's pointers"),
    ("crates/pm-malloc/src/cxx_api.rs", "operators of C++, which take C's pointers"),
    ("crates/pm-malloc/src/fork.rs", "puts a copy in the place of a mapping"),
    ("crates/pm-malloc/src/glibc.rs", "calls glibc's malloc"),
    ("crates/pm-malloc/src/jemalloc_api.rs", "C functions, which take C's pointers"),
    ("crates/pm-malloc/src/loading.rs", "a function of C that jumps to the next one"),
    (
        "crates/pm-malloc/src/serving.rs",
        "the heap is behind a pointer, for a forked child has another, and its phase in a page that fork wipes",
    ),
    ("crates/pm-malloc/src/thread.rs", "asks the C library which thread calls"),
    ("crates/pm-syscall-faults/src/ptrace.rs", "ptrace has no safe wrapper"),
    ("crates/pm-ublk/src/control.rs", "the kernel answers into memory whose address it is given"),
    ("crates/pm-ublk/src/descriptors.rs", "reads memory that the kernel writes"),
    ("crates/pm-ublk/src/offer.rs", "the kernel is given commands with the address of a buffer"),
    ("crates/pm-ublk/src/queue.rs", "the kernel is given commands with the addresses of buffers"),
    ("crates/pmbd-ublk/src/buffer/slots.rs", "makes slices of lent slots, which are stored to under a lock"),
    ("crates/pmbd-ublk/src/ublk/mounts.rs", "leaving a namespace has no safe wrapper"),
    ("fuzz/fuzz_targets/redis.rs", "a global allocator that counts"),
    ("system-tests/src/bin/half-takeover.rs", "the kernel is given commands with the address of a buffer"),
];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = outside(tree, ALLOWED);
    violations.extend(unused(tree, ALLOWED));
    violations.extend(not_forbidden(tree));
    violations
}

/// `unsafe` in files that are not on the list.
fn outside(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.with_extension("rs").filter(|file| !allowed.iter().any(|entry| entry.0 == file.path())) {
        let message = format!("unsafe is not allowed here; the files where it is are listed in {}", file!());
        let rust = Rust::new(file.text());
        violations.extend(words(&rust.code, "unsafe").map(|at| Violation::at(file, at, message.as_str())));
    }
    violations
}

/// Entries of the list whose file has no `unsafe`.
fn unused(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Violation> {
    let has_none = |path: &str| !tree.get(path).is_some_and(has_unsafe);
    let message = format!("has no unsafe code: remove it from the list in {}", file!());
    let unused = allowed.iter().filter(|(path, _)| has_none(path));
    unused.map(|(path, _)| Violation::new(path, 1, message.as_str())).collect()
}

/// Roots of libraries and programs that contain no `unsafe` and do not forbid it.
fn not_forbidden(tree: &Tree) -> Vec<Violation> {
    let roots = tree.with_extension("rs").filter(|file| is_root(file.path()));
    let without_forbid = roots.filter(|root| {
        !Rust::new(root.text()).code.contains("#![forbid(unsafe_code)]")
            && !Modules::of(tree, root).files().any(has_unsafe)
    });
    let message = "has no unsafe code and must have #![forbid(unsafe_code)]";
    without_forbid.map(|root| Violation::new(root.path(), 1, message)).collect()
}

fn has_unsafe(file: &File) -> bool {
    words(&Rust::new(file.text()).code, "unsafe").next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::places;

    const FORBID: &str = "#![forbid(unsafe_code)]\n";

    #[test]
    fn unsafe_outside_listed_files_is_a_violation() {
        let text = "// unsafe\n#![forbid(unsafe_code)]\nlet a = \"unsafe\";\nunsafe { b() }\n";
        let tree = Tree::of(&[("a.rs", text), ("b.rs", text), ("c.md", "unsafe")]);
        assert_eq!(places(&outside(&tree, &[("b.rs", "why")])), ["a.rs:4"]);
        assert_eq!(places(&outside(&tree, &[("a.rs", "why"), ("b.rs", "why")])), [""; 0]);
    }

    #[test]
    fn unused_entry_is_a_violation() {
        let tree = Tree::of(&[("a.rs", "unsafe {}"), ("b.rs", "// unsafe")]);
        assert_eq!(
            places(&unused(&tree, &[("a.rs", ""), ("b.rs", ""), ("gone.rs", "")])),
            ["b.rs:1", "gone.rs:1"]
        );
    }

    #[test]
    fn root_without_unsafe_code_forbids_it() {
        let tree = Tree::of(&[
            ("a/src/lib.rs", "mod x;\n"),
            ("a/src/x.rs", "pub(crate) mod y;"),
            ("a/src/x/y.rs", "unsafe {}"),
            ("a/src/main.rs", ""),
            ("a/src/bin/p.rs", FORBID),
            ("a/src/bin/q/main.rs", "// #![forbid(unsafe_code)]"),
            ("a/src/bin/q/other.rs", ""),
            ("b/src/lib.rs", "mod x { fn y() {} }"),
            ("b/src/x.rs", "unsafe {}"),
            ("c/src/lib.rs", FORBID),
            ("c/tests/d.rs", ""),
        ]);
        assert_eq!(
            places(&not_forbidden(&tree)),
            ["a/src/bin/q/main.rs:1", "a/src/main.rs:1", "b/src/lib.rs:1"]
        );
    }
}
