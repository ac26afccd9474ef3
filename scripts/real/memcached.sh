# memcached: two clients fill it, replace a part, and read every value back.
# packages: memcached python3
# needs: memcached /usr/bin/python3

job() {
    local user=()
    [ "$(id -u)" != 0 ] || user=(-u root)
    memcached -s "$PWD/socket" -m 400 -t 4 "${user[@]}" &
    local server=$!
    until [ -S socket ]; do sleep 0.02; done
    /usr/bin/python3 "$REAL/memcached.py" socket 0 >first &
    local client=$!
    /usr/bin/python3 "$REAL/memcached.py" socket 1 >second
    wait $client
    cat first second
    kill $server
    wait $server || true
}
