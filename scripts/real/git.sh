# git repacks a clone of this repository with threads; every object is read afterwards.
# packages: git
# needs: git

prepare() {
    git clone -q --bare "$ROOT" tree
}

job() {
    cp -R "$SHARED/tree" tree
    cd tree
    git -c pack.threads=3 repack -a -d -f -q --window=50 --depth=30
    git fsck --full --strict 2>/dev/null
    git cat-file --batch-all-objects --batch --buffer | sha256sum
}
