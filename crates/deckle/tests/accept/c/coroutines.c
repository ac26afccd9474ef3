// Coroutines whose stacks come from malloc and mmap, a signal stack from malloc, and a timer of
// 1 kHz whose handler touches pages that may be away; meanwhile mmap, munmap, madvise and fork.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <errno.h>
#include <ucontext.h>
#include <unistd.h>
enum { PAGES = 20000, COROUTINES = 16, STACK = 256 * 1024 };
static uint64_t *data;
static volatile sig_atomic_t wrong;
static volatile long ticks;
static ucontext_t home, self[COROUTINES];
static long rounds, forks, refused;
static double until;
static uint64_t seed = 88172645463325252u;
static uint64_t rnd(uint64_t *s) { *s ^= *s << 13; *s ^= *s >> 7; *s ^= *s << 17; return *s; }
static uint64_t word(long p, int w) { return (uint64_t)(p + 1) * 0x9e3779b97f4a7c15u + w * 12345u; }
static int right(long p) {
    for (int w = 0; w < 60; w++) if (data[p * 512 + w] != word(p, w)) return 0;
    return data[p * 512 + 300] == 0;
}
static void tick(int signal) {
    static uint64_t s = 12345;
    char frame[6000];
    int before = errno;
    memset(frame, ticks, sizeof frame);
    for (int i = 0; i < 3; i++) if (!right(rnd(&s) % PAGES)) wrong = 1;
    if (frame[100] != (char)ticks) wrong = 2;
    ticks++;
    errno = before;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void step(int n) {
    volatile char deep[20000];
    for (int i = 0; i < 20000; i += 500) deep[i] = n;
    for (int i = 0; i < 40; i++) if (!right(rnd(&seed) % PAGES)) wrong = 3;
    size_t len = (1 + rnd(&seed) % 64) * 4096;
    char *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { wrong = 4; return; }
    for (size_t i = 0; i < len; i += 4096) p[i] = n + 1;
    madvise(p, len, MADV_PAGEOUT);
    for (size_t i = 0; i < len; i += 4096) if (p[i] != n + 1) wrong = 5;
    madvise(p, len, MADV_DONTNEED);
    if (p[len - 4096]) wrong = 6;
    munmap(p, len);
    for (int i = 0; i < 20000; i += 500) if (deep[i] != n) wrong = 7;
}
static void body(int n) {
    for (;;) { step(n); swapcontext(&self[n], &home); }
}
static void fork_one(void) {
    pid_t pid = fork();
    if (pid < 0) { refused++; return; }
    if (!pid) {
        int bad = 0;
        uint64_t s = seed;
        for (int i = 0; i < 50; i++) bad |= !right(rnd(&s) % PAGES);
        _exit(bad ? 9 : 0);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (status) { printf("child: status %x\n", status); wrong = 8; }
    forks++;
}
int main(int argc, char **argv) {
    data = malloc(PAGES * 4096ul);
    memset(data, 0, PAGES * 4096ul);
    for (long p = 0; p < PAGES; p++) for (int w = 0; w < 60; w++) data[p * 512 + w] = word(p, w);
    stack_t alt = { .ss_sp = malloc(1 << 20), .ss_size = 1 << 20 };
    if (sigaltstack(&alt, 0)) return 2;
    struct sigaction act = { .sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART };
    sigaction(SIGALRM, &act, 0);
    for (int n = 0; n < COROUTINES; n++) {
        getcontext(&self[n]);
        self[n].uc_stack.ss_size = STACK;
        self[n].uc_stack.ss_sp = n & 1 ? malloc(STACK)
            : mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        makecontext(&self[n], (void (*)(void))body, 1, n);
    }
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &every, 0);
    until = now() + atof(argv[1]);
    int fork_every = argc > 2 ? atoi(argv[2]) : 100;
    while (now() < until && !wrong) {
        swapcontext(&home, &self[rounds++ % COROUTINES]);
        if (fork_every && rounds % fork_every == 0) fork_one();
        // All of it away, stacks too.
        if (rounds % 50 == 0) madvise(data, PAGES * 4096ul, MADV_PAGEOUT);
    }
    struct itimerval never = { 0 };
    setitimer(ITIMER_REAL, &never, 0);
    for (long p = 0; p < PAGES; p++) if (!right(p)) wrong = 10;
    printf("%ld rounds, %ld ticks, %ld forks, %ld forks refused\n", rounds, ticks, forks, refused);
    if (wrong || ticks < 100 || rounds < 100 || (fork_every && !forks)) {
        printf("wrong: %d\n", (int)wrong);
        return 1;
    }
    puts("all right");
    return 0;
}
