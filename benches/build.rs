//! Compiles the C sources with -O3 in every profile.
//!
//! `persist.c` is linked in. The others are programs, because they replace or use libraries of a whole process: malloc, PMDK. The compiler gets
//! their paths in environment variables named `PM_BENCH_` and the program's name.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=c");
    compiler().file("c/persist.c").compile("pm_bench_c");
    program("alloc_workload", &[]);
    program("alloc_growth", &[]);
    program("line_replay", &[]);
    program("malloc_count", &["-shared"]);
    if env::var_os("CARGO_FEATURE_PMDK").is_some() {
        program("pmdk", &["-lpmemobj"]);
    }
}

fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    build.opt_level(3).flag("-std=gnu17").warnings_into_errors(true).warnings(true).extra_warnings(true);
    build
}

/// Compiles and links `c/NAME.c`. `options` come last, because libraries must.
fn program(name: &str, options: &[&str]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
    let mut command = compiler().get_compiler().to_command();
    command.arg(format!("c/{name}.c")).arg("-o").arg(&out).args(options);
    let status = command.status().expect("there is a C compiler, which compiled persist.c");
    assert!(status.success(), "c/{name}.c does not compile: {status}");
    println!("cargo::rustc-env=PM_BENCH_{}={}", name.to_uppercase(), out.display());
}
