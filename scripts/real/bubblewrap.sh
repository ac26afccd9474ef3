# bubblewrap: a program in namespaces of its own (user, pid, network), with a new root.
# packages: bubblewrap python3
# needs: bwrap /usr/bin/python3

job() {
    bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --die-with-parent \
        /usr/bin/python3 "$REAL/forks.py"
}
