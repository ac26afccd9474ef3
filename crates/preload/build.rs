//! Compiles the exec calls with variable arguments, which Rust cannot define.

fn main() {
    println!("cargo:rerun-if-changed=src/exec/variadic.c");
    cc::Build::new()
        .file("src/exec/variadic.c")
        .flag("-fno-builtin")
        .opt_level(2)
        .compile("deckle_variadic");
}
