# bubblewrap: a program in namespaces of its own (user, pid, network), with a new root.
# packages: bubblewrap python3
# needs: bwrap /usr/bin/python3
# variants: host-dev own-dev
# outside-own-dev: in a network namespace with a /dev/shm of its own nothing leads to deckle run

job() {
    local dev=(--dev /dev)
    [ "$VARIANT" = own-dev ] || dev=(--dev-bind /dev /dev)
    bwrap --unshare-all --ro-bind / / "${dev[@]}" --proc /proc --tmpfs /tmp --die-with-parent \
        /usr/bin/python3 "$REAL/forks.py"
}
