// forest N MIB MODE: N processes of MIB of content of about 4:1 each. hold: they say that they are
// filled and wait. churn: each checks its content, has children that check it, too, and ends now and
// then; another takes its place. SIGTERM ends it after a last check of all.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static uint64_t *m;
static long pages, seed;
static volatile sig_atomic_t end;
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static uint64_t word(long p, int w) { return w < 124 ? mix(seed + p * 1000 + w + 1) : mix(seed + p); }
static void on(int s) { (void)s; end = 1; }
static int wrong(long from, long to) {
    for (long p = from; p < to; p++)
        for (int w = 0; w < 512; w++)
            if (m[p * 512 + w] != word(p, w)) { dprintf(1, "page %ld wrong\n", p); return 1; }
    return 0;
}
static void one(int churn, int filled) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    seed = getpid() * 100003L;
    m = malloc(pages * 4096);
    for (long p = 0; p < pages; p++) for (int w = 0; w < 512; w++) m[p * 512 + w] = word(p, w);
    (void)!write(filled, "f", 1);
    uint64_t dice = seed;
    for (int round = 0; !end; round++) {
        if (!churn) { usleep(200000); continue; }
        dice = mix(dice + round);
        long from = dice % pages, to = from + 64 < pages ? from + 64 : pages;
        if (wrong(from, to)) exit(1);
        if (dice % 4 == 0) {
            // The child writes to what it shares, and its parent must not see that.
            int status, child = fork();
            if (child == 0) {
                int bad = wrong(from, to);
                for (long p = from; p < to; p++) m[p * 512] = 0;
                _exit(bad);
            }
            if (child > 0 && (waitpid(child, &status, 0) < 0 ? 0 : status)) exit(1);
        } else {
            // What is written must stay.
            for (long p = from; p < to; p++) for (int w = 0; w < 512; w++) m[p * 512 + w] = word(p, w);
        }
        if (round > 20 && dice % 16 == 1) break;
        usleep(dice % 8000);
    }
    exit(wrong(0, pages));
}
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    struct sigaction act = {.sa_handler = on};
    sigaction(SIGTERM, &act, 0);
    int n = atoi(argv[1]), churn = !strcmp(argv[3], "churn"), filled[2], bad = 0, left = 0;
    pages = atol(argv[2]) * 256;
    if (pipe(filled)) return 1;
    pid_t *all = calloc(n, sizeof *all);
    long ended = 0;
    for (int i = 0; i < n; i++, left++) if ((all[i] = fork()) == 0) one(churn, filled[1]);
    for (int i = 0; i < n; i++) { char c; if (read(filled[0], &c, 1) != 1) i--; }
    printf("filled %d\n", getpid());
    for (int told = 0; left > 0;) {
        if (end && !told) {
            for (int i = 0; i < n; i++) if (all[i]) kill(all[i], SIGTERM);
            told = 1;
        }
        int status, pid = waitpid(-1, &status, told ? 0 : WNOHANG);
        if (pid <= 0) { if (!told) usleep(2000); continue; }
        int i = 0;
        while (i < n && all[i] != pid) i++;
        if (i == n) continue;
        if (status) { printf("status %#x\n", status); bad = 1; end = 1; }
        all[i] = 0; left--; ended++;
        if (!told && !end) { left++; if ((all[i] = fork()) == 0) one(churn, filled[1]); }
    }
    printf("%ld ended, %s\n", ended, bad ? "wrong" : "all right");
    return bad;
}
