// steps MIB: for each byte of standard input fills MIB more with bytes of its own, and says so.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    size_t bytes = (size_t)atol(argv[1]) << 20;
    char c;
    for (int step = 1; read(0, &c, 1) == 1; step++) {
        char *m = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED) return 1;
        for (size_t i = 0; i < bytes; i += 64) m[i] = step + i / 4096;
        printf("step %d\n", step);
    }
    return 0;
}
