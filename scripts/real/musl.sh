# musl, static and with its loader (as on Alpine).
# packages: musl-tools
# needs: musl-gcc
# variants: static dynamic

prepare() {
    local how=
    [ "$VARIANT" != static ] || how=-static
    musl-gcc -O2 $how -pthread -o heap "$REAL/heap.c"
}

job() {
    "$SHARED/heap"
}
