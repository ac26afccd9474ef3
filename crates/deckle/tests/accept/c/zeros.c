// zeros hold MIB N: huge pages of noise with N pages of zeros at the end of each; says `ready`,
//   waits until SIGUSR1, checks them.
// zeros grow MIB: so much noise in small pages, checked.
// zeros refused MIB MORE: noise in small pages that is paged out in vain, then zeros; then MORE
//   of noise beside it.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
enum { PAGE = 4096, HUGE = 2 << 20 };
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static char *map(size_t n, int advice) {
    char *p = mmap(0, n + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(4);
    p = (char *)(((uintptr_t)p + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    madvise(p, n, advice);
    return p;
}
static void fill(char *p, size_t n, uint64_t seed) {
    uint64_t *q = (uint64_t *)p;
    for (size_t i = 0; i < n / 8; i++) q[i] = mix(seed + i);
}
static void check(char *p, size_t n, uint64_t seed, int zero) {
    uint64_t *q = (uint64_t *)p;
    for (size_t i = 0; i < n / 8; i++)
        if (q[i] != (zero ? 0 : mix(seed + i))) { printf("word %zu is wrong\n", i); exit(1); }
}
static volatile sig_atomic_t go;
static void on(int s) { go = 1; }
int main(int c, char **v) {
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGUSR1, on);
    size_t n = (size_t)atol(v[2]) << 20;
    if (!strcmp(v[1], "hold")) {
        size_t live = HUGE - atol(v[3]) * PAGE;
        char *p = map(n, MADV_HUGEPAGE);
        for (size_t at = 0; at < n; at += HUGE) fill(p + at, live, at + 1);
        puts("ready");
        sigset_t block, old;
        sigemptyset(&block);
        sigaddset(&block, SIGUSR1);
        sigprocmask(SIG_BLOCK, &block, &old);
        while (!go) sigsuspend(&old);
        for (size_t at = 0; at < n; at += HUGE) {
            check(p + at, live, at + 1, 0);
            check(p + at + live, HUGE - live, 0, 1);
        }
    } else if (!strcmp(v[1], "grow")) {
        char *p = map(n, MADV_NOHUGEPAGE);
        fill(p, n, 7);
        check(p, n, 7, 0);
    } else {
        size_t m = (size_t)atol(v[3]) << 20;
        char *p = map(n, MADV_NOHUGEPAGE), *q;
        fill(p, n, 3);
        madvise(p, n, MADV_PAGEOUT);
        memset(p, 0, n);
        q = map(m, MADV_NOHUGEPAGE);
        fill(q, m, 5);
        check(p, n, 0, 1);
        check(q, m, 5, 0);
    }
    puts("all right");
}
