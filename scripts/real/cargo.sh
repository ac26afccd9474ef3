# cargo builds this project in a clone: what it links is the same, byte for byte.
# packages: git
# needs: cargo git

prepare() {
    git clone -q "$ROOT" tree
}

job() {
    cp -R "$SHARED/tree" tree
    cd tree
    CARGO_INCREMENTAL=0 cargo build --offline -q -j2 -p deckle-mm
    sha256sum target/debug/lib*.rlib
}
