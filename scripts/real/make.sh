# make -j4 of a real tree: zlib's sources from Debian, configured, compiled, tested and compared.
# packages: gcc make libc6-dev dpkg-dev
# needs: gcc make dpkg-source apt-get

prepare() {
    # Sources may not be among what this system asks for: a list of our own, in a place of ours.
    mkdir -p apt/lists
    echo "deb-src http://deb.debian.org/debian $(. /etc/os-release && echo "$VERSION_CODENAME") main" \
        >apt/list
    local apt=(apt-get -qq -o Dir::Etc::SourceList="$PWD/apt/list" -o Dir::Etc::SourceParts=/
        -o Dir::State::Lists="$PWD/apt/lists" -o APT::Sandbox::User=root
        -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=)
    "${apt[@]}" update
    "${apt[@]}" source zlib
    mv zlib-*/ zlib
}

job() {
    cp -R "$SHARED/zlib" zlib
    cd zlib
    ./configure >/dev/null
    make -s -j4 >/dev/null
    make -s test | tail -3
    sha256sum ./*.o ./*.lo libz.a libz.so.*.*
    cat ./*.c ./*.h | ./minigzip | ./minigzip -d | sha256sum
}
