// Forks in every way while most memory is away; children and parent read theirs right.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static uint64_t *m;
static long pages;
static uint64_t word(long p, int w) { return (uint64_t)(p + 1) * 0x9e3779b97f4a7c15u + w * 7919u; }
static void fill(void) {
    for (long p = 0; p < pages; p++) for (int w = 0; w < 100; w++) m[p * 512 + w] = word(p, w);
}
static int bad(void) {
    for (long p = 0; p < pages; p++) {
        for (int w = 0; w < 100; w++) if (m[p * 512 + w] != word(p, w)) return 1;
        if (m[p * 512 + 400]) return 1;
    }
    return 0;
}
static void away(void) { madvise(m, pages * 4096, MADV_PAGEOUT); }
static int ended(pid_t pid, int want) {
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == want;
}
static void must(int is, const char *what) {
    if (is) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}
static volatile int stop;
static void *writer(void *arg) {
    // Owns the last eighth's words 500 on: writes and checks them while the others fork.
    long n = 0;
    for (; !stop; n++)
        for (long p = pages - pages / 8; p < pages; p++) {
            if (n && m[p * 512 + 500] != (uint64_t)(n - 1) * 3 + p) return (void *)1;
            m[p * 512 + 500] = (uint64_t)n * 3 + p;
        }
    return 0;
}
int main(int argc, char **argv) {
    pages = atol(argv[1]) * 256;
    m = aligned_alloc(4096, pages * 4096);
    memset(m, 0, pages * 4096);
    fill();
    FILE *stream = fopen("/proc/self/status", "r");
    setvbuf(stream, malloc(1 << 16), _IOFBF, 1 << 16);
    fgetc(stream);
    char *args[] = { "sh", "-c", "exit 5", 0 };
    away();
    pid_t pid = fork();
    if (pid < 0) {
        printf("fork refused: %s\n", strerror(errno));
        must(!bad(), "after a refused fork");
        puts("data right");
        return 3;
    }
    if (!pid) {
        if (bad()) _exit(1);
        // The child goes on as a program of its own, and forks.
        char *own = malloc(40 << 20);
        memset(own, 7, 40 << 20);
        m[0] = 1;
        pid_t deep = fork();
        if (!deep) _exit(m[0] == 1 && own[39 << 20] == 7 ? 4 : 1);
        _exit(ended(deep, 4) ? 6 : 2);
    }
    must(!bad(), "parent beside fork");
    must(ended(pid, 6), "fork");
    must(m[0] == word(0, 0), "a child's write");
    away();
    pid = vfork();
    if (!pid) { execve("/bin/sh", args, environ); _exit(9); }
    must(ended(pid, 5), "vfork");
    away();
    must(!posix_spawn(&pid, "/bin/sh", 0, 0, args, environ) && ended(pid, 5), "posix_spawn");
    away();
    must(WEXITSTATUS(system("exit 8")) == 8, "system");
    away();
    char line[64] = "";
    FILE *p = popen("echo from popen", "r");
    must(p && fgets(line, sizeof line, p) && !strcmp(line, "from popen\n") && !pclose(p), "popen");
    must(!bad(), "parent after all");
    pthread_t t[2];
    pthread_create(&t[0], 0, writer, 0);
    for (int i = 0; i < 5; i++) {
        away();
        pid = fork();
        if (!pid) {
            for (long q = 0; q < pages; q++) for (int w = 0; w < 100; w++) if (m[q * 512 + w] != word(q, w)) _exit(1);
            char *x = malloc(1000000);
            memset(x, 1, 1000000);
            _exit(11);
        }
        must(ended(pid, 11), "threads and fork");
    }
    stop = 1;
    void *result;
    pthread_join(t[0], &result);
    must(!result, "a thread beside forks");
    must(!bad(), "the end");
    puts("all right");
    return 0;
}
