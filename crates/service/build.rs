//! Has the C library map the stacks of threads by a function of the image's (`heap`), and keeps the
//! image quick to copy around: nobody debugs it from its symbols in a release.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        println!("cargo:rustc-link-arg-bins=-Wl,--wrap=__mmap");
    }
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-debug");
    }
}
