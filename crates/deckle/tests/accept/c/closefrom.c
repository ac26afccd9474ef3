// Writes more than fits, closes every descriptor but the standard ones, reads it back.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
enum { PAGES = 49152, WORDS = 85 };
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
int main(int argc, char **argv) {
    uint64_t *m = mmap(0, PAGES * 4096ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return 2;
    for (long p = 0; p < PAGES; p++)
        for (int w = 0; w < WORDS; w++) m[p * 512 + w] = mix(p * 1000 + w + 1);
    if (!strcmp(argv[1], "closefrom")) closefrom(3);
    else if (!strcmp(argv[1], "close_range")) { if (syscall(SYS_close_range, 3, ~0u, 0)) return 3; }
    else for (int fd = 3; fd < 4096; fd++) close(fd);
    for (long p = 0; p < PAGES; p++)
        for (int w = 0; w < 512; w++)
            if (m[p * 512 + w] != (w < WORDS ? mix(p * 1000 + w + 1) : 0)) {
                printf("page %ld word %d wrong\n", p, w);
                return 1;
            }
    puts("all right");
    return 0;
}
