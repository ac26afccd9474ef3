// A 1 kHz timer whose handler, on a stack in managed memory, reads memory that is away, maps,
// unmaps and forks, while the program forks too.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES ((size_t)100 << 20)
static unsigned char *memory;
static volatile long ticks, forks, bad;

static unsigned char want(size_t i) { return (i >> 12) % 250 + 1; }
static void *map(size_t bytes) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) _exit(2);
    return at;
}

static void fork_and_look(size_t i) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) _exit(memory[i] == want(i) ? 0 : 7);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) bad++;
    forks++;
}

static void tick(int signal) {
    (void)signal;
    ticks++;
    size_t i = ((size_t)ticks * 7919 % (BYTES >> 12)) << 12;
    if (memory[i] != want(i)) bad++;
    unsigned char *m = map(1 << 20);
    memset(m, 1, 8192);
    madvise(m, 4096, MADV_DONTNEED);
    if (m[0] != 0 || m[4096] != 1) bad++;
    munmap(m, 1 << 20);
    if (ticks % 50 == 0) fork_and_look(i);
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 5;
    memory = map(BYTES);
    for (size_t i = 0; i < BYTES; i += 4096) {
        for (int k = 0; k < 300; k++) memory[i + k] = rand();
        memory[i] = want(i);
    }
    stack_t stack = {.ss_sp = map(1 << 20), .ss_size = 1 << 20};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, 0);
    time_t end = time(0) + seconds;
    size_t seed = 1;
    for (unsigned k = 1; time(0) < end; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t i = ((seed >> 33) % (BYTES >> 12)) << 12;
        if (memory[i] != want(i)) return puts("wrong byte"), 4;
        if (k % 512 == 0) fork_and_look(i);
    }
    setitimer(ITIMER_REAL, &never, 0);
    if (bad || ticks < 100 || forks < 3)
        return printf("ticks %ld forks %ld bad %ld\n", ticks, forks, bad), 5;
    puts("timer right");
    return 0;
}
