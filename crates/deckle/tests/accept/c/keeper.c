// keeper MIB MODE: fills MIB with content of about 4:1, says so, and then, by MODE:
// check: checks it and ends; ten: ten times; loop: again and again; wait: until SIGUSR1, then checks;
// forked: the same with a child that has all of it, too, and checks it after it; late: the same
// with one that is forked at a SIGUSR1 before that; orphan: the same with a parent that ends then.
// SIGTERM and SIGINT are told and end it after a last check; SIGCONT is told.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static uint64_t *m;
static long pages;
static volatile sig_atomic_t go, end;
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static uint64_t word(long p, int w) { return w < 124 ? mix(p * 1000 + w + 1) : mix(p); }
static void on(int s) {
    char text[] = "got TERM\n";
    if (s == SIGINT) memcpy(text + 4, "INT.", 4);
    if (s == SIGCONT) memcpy(text + 4, "CONT", 4);
    if (s == SIGUSR1) go = 1; else (void)!write(1, text, 9);
    if (s == SIGTERM || s == SIGINT) end = 1;
}
static void check(void) {
    for (long p = 0; p < pages; p++)
        for (int w = 0; w < 512; w++)
            if (m[p * 512 + w] != word(p, w)) { printf("page %ld wrong\n", p); exit(1); }
}
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    signal(SIGTERM, on); signal(SIGINT, on); signal(SIGCONT, on); signal(SIGUSR1, on);
    pages = atol(argv[1]) * 256;
    m = malloc(pages * 4096);
    for (long p = 0; p < pages; p++) for (int w = 0; w < 512; w++) m[p * 512 + w] = word(p, w);
    int orphan = !strcmp(argv[2], "orphan"), late = orphan || !strcmp(argv[2], "late"), forked = !strcmp(argv[2], "forked"), status = 0;
    pid_t child = forked ? fork() : -1;
    if (child) printf("filled %d\n", getpid());
    if (late) {
        while (!go) usleep(1000);
        go = 0;
        child = fork();
        if (orphan && child) return 0;
    }
    if (orphan) printf("orphan %d\n", getpid());
    if (forked || late || !strcmp(argv[2], "wait")) while (!go) usleep(1000);
    int left = !strcmp(argv[2], "ten") ? 9 : 0;
    do check(); while ((!strcmp(argv[2], "loop") || left-- > 0) && !end);
    if (child == 0 && !orphan) return 0;
    if (child > 0) { kill(child, SIGUSR1); waitpid(child, &status, 0); }
    puts(status ? "the child is wrong" : "all right");
    return status != 0;
}
