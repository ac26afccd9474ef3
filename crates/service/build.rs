//! Keeps the image quick to copy around: nobody debugs it from its symbols in a release.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-debug");
    }
}
