//! Compiles the C side of the comparisons, whatever the profile, as a C programmer would ship it: -O3.

fn main() {
    println!("cargo::rerun-if-changed=c/persist.c");
    cc::Build::new()
        .file("c/persist.c")
        .opt_level(3)
        .flag("-std=gnu17")
        .warnings_into_errors(true)
        .extra_warnings(true)
        .compile("pm_bench_c");
}
