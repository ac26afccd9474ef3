//! Compiles the exec calls with variable arguments, which Rust cannot define, and keeps the
//! library quick to load.

use std::path::PathBuf;

fn main() {
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "musl") {
        println!("cargo:rustc-link-arg-bin=deckle-entry=-Wl,-e,deckle_enter");
        return;
    }
    println!("cargo:rerun-if-changed=src/exec/variadic.c");
    cc::Build::new()
        .file("src/exec/variadic.c")
        .flag("-fno-builtin")
        .opt_level(2)
        .compile("deckle_variadic");
    // The unwinder comes from the static library: the shared one would be loaded into every
    // program of a tree, which takes longer than all the rest of this library's start.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let script = out.join("libgcc_s.so");
    if let Err(error) = std::fs::write(&script, "INPUT(-lgcc_eh)\n") {
        println!("cargo:warning={}: {error}", script.display());
    }
    println!("cargo:rustc-cdylib-link-arg=-L{}", out.display());
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        // Nine tenths of the file. Nothing of it is ever loaded, but it is copied around.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-debug");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions,--as-needed,-O1");
    // Its constructor runs before all others: it looks functions of libc up while there is one
    // thread, and the program's own allocator before the program has blocks of any.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
