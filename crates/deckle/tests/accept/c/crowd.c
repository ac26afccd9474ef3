// crowd N KIB BIG: N children that fill KIB KiB each with what does not compress and wait, then one
// more that fills BIG MiB. Says how many forks were refused, how the last child ended, and how many
// of the others were killed.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static void fill(size_t bytes, unsigned seed) {
    unsigned *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < bytes / 4; i++) { seed = seed * 1664525 + 1013904223; p[i] = seed ^ seed >> 15; }
}
int main(int argc, char **argv) {
    int n = atoi(argv[1]), refused = 0, killed = 0, status, filled[2];
    char byte = 0;
    pid_t all[1000];
    fill(2 << 20, 1);
    if (pipe(filled)) return 9;
    for (int i = 0; i < n; i++) {
        if ((all[i] = fork()) == 0) {
            fill(atol(argv[2]) << 10, i + 2);
            if (write(filled[1], &byte, 1) != 1) return 9;
            for (;;) pause();
        }
        refused += all[i] < 0;
    }
    for (int i = 0; i < n - refused; i++) if (read(filled[0], &byte, 1) != 1) return 9;
    pid_t hog = fork();
    if (hog == 0) { fill((size_t)atol(argv[3]) << 20, 99); return 0; }
    if (hog < 0) refused++;
    else { waitpid(hog, &status, 0); printf("hog %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0); }
    for (int i = 0; i < n; i++) if (all[i] > 0) {
        kill(all[i], SIGTERM);
        waitpid(all[i], &status, 0);
        killed += WTERMSIG(status) != SIGTERM;
    }
    printf("refused %d, others killed %d\n", refused, killed);
    return 0;
}
