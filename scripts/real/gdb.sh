# gdb: a breakpoint in a program that has filled memory, its stack, and what lies there. What is
# evicted a debugger cannot read: it has the program bring that in (docs/limits.md).
# packages: gdb gcc libc6-dev
# needs: gdb gcc

prepare() {
    gcc -O1 -g -o debugged "$REAL/debugged.c"
}

job() {
    gdb -nx -batch -ex 'set startup-with-shell off' -ex 'set confirm off' -ex 'break checked' \
        -ex run -ex backtrace -ex 'print sum' -ex 'print (int)mlock(table, 4096)' -ex 'print table[7]@3' \
        -ex 'print (int)mlock(&table[20479], 8)' -ex 'print/x table[20479]' \
        -ex 'print (int)mlock(pages, 8192)' -ex 'x/4xg pages' \
        -ex 'print (int)mlock((char *)pages + 33554432, 64)' -ex 'x/4xg (char *)pages + 33554432' -ex 'find /w pages, +4096, 0x12345' \
        -ex 'set var pages[3] = 77' -ex 'print pages[3]' -ex finish -ex continue \
        "$SHARED/debugged" >out 2>&1
    # Addresses are not the same twice; process numbers neither.
    sed -E '/^warning|libthread_db|\[Thread|\[Inferior|\[New|\[Detaching|^Download/d
        s/0x[0-9a-f]{9,}/ADDRESS/g; s/process [0-9]+/process N/' out
}
