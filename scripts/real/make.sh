# make -j4 of a real tree: Lua's sources from Debian, compiled, run, and compared.
# packages: gcc make libc6-dev libreadline-dev dpkg-dev
# needs: gcc make dpkg-source

prepare() {
    # Sources may not be among what this system asks for: a list of our own, in a place of ours.
    mkdir -p apt/lists
    echo "deb-src http://deb.debian.org/debian $(. /etc/os-release && echo "$VERSION_CODENAME") main" \
        >apt/list
    local apt=(apt-get -qq -o Dir::Etc::SourceList="$PWD/apt/list" -o Dir::Etc::SourceParts=/
        -o Dir::State::Lists="$PWD/apt/lists" -o APT::Sandbox::User=root
        -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=)
    "${apt[@]}" update
    "${apt[@]}" source lua5.4
    mv lua5.4-*/ lua
}

job() {
    cp -R "$SHARED/lua" lua
    make -s -C lua/src -j4 CC=gcc MYCFLAGS='-DLUA_USE_POSIX -O2 -g' MYLIBS= lua luac liblua.a 2>&1 \
        >/dev/null || make -C lua/src -j4 generic >&2
    ls lua/src/*.o | xargs sha256sum
    cat >job.lua <<-END
	local t = {}
	for i = 1, 300000 do t[i] = ("line %d "):format(i):rep(i % 5 + 1) end
	table.sort(t)
	local n = 0
	for i, s in ipairs(t) do n = (n * 31 + #s + s:byte(-2)) % 2147483647 end
	print(n, #table.concat(t))
	END
    lua/src/lua job.lua
}
