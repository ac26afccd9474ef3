# Allocators of a program's own, linked in: their malloc, their threads' caches, their madvise.
# packages: gcc libc6-dev libjemalloc-dev libgoogle-perftools-dev libmimalloc-dev
# needs: gcc /usr/include/jemalloc/jemalloc.h /usr/include/gperftools/tcmalloc.h /usr/include/mimalloc.h
# variants: libc jemalloc jemalloc-static tcmalloc mimalloc

prepare() {
    local libs
    case $VARIANT in
    libc) libs= ;;
    jemalloc) libs=-ljemalloc ;;
    jemalloc-static) libs="$(gcc -print-file-name=libjemalloc.a) -lm -lstdc++" ;;
    tcmalloc) libs=-ltcmalloc ;;
    mimalloc) libs=-lmimalloc ;;
    esac
    gcc -O2 -fno-builtin-malloc -pthread -o heap "$REAL/heap.c" -Wl,--no-as-needed $libs
}

job() {
    "$SHARED/heap"
}
