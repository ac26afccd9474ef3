# The JVM with each of its collectors: live data that is replaced in part, checked at the end.
# packages: default-jdk-headless
# needs: java javac
# variants: g1 parallel zgc
# outside-zgc: its heap is shared memory (memfd), mapped at several places

prepare() {
    javac -d . "$REAL/Heap.java"
}

job() {
    local collector
    case $VARIANT in
    g1) collector=UseG1GC ;;
    parallel) collector=UseParallelGC ;;
    zgc) collector=UseZGC ;;
    esac
    java -XX:+$collector -Xmx400m -cp "$SHARED" Heap
}
