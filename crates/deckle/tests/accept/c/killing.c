// killing SHM TASKS FREEZER: a hog of 120 MiB beside an innocent child of 8 MiB, where the system
// lacks something meanwhile. SHM: a file that is filled until there is no room, or -. TASKS: a
// cgroup of which all tasks that are left are used up, or -. FREEZER: a cgroup in which a child of
// 45 MiB is frozen, the largest when memory is out, or -. Says how the hog, the frozen one and the
// innocent one ended, and whether the hog took longer than 10 s.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { MOST = 300 };
static int ready[2];
static unsigned *fill(size_t bytes, unsigned seed) {
    unsigned *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < bytes / 4; i++) { seed = seed * 1664525 + 1013904223; p[i] = seed ^ seed >> 15; }
    return p;
}
static void put(const char *dir, const char *file, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) { perror(path); exit(9); }
    close(fd);
}
static void say(int fd) { if (write(fd, "", 1) != 1) exit(9); }
static void hear(int fd) { char byte; if (read(fd, &byte, 1) != 1) exit(9); }
// A child that fills so many MiB, and is whole when it is told to end. In a cgroup, perhaps.
static pid_t child(int mib, const char *cgroup) {
    pid_t pid = fork();
    if (pid) { if (pid > 0) hear(ready[0]); return pid; }
    if (*cgroup != '-') put(cgroup, "cgroup.procs", "0");
    unsigned *p = fill((size_t)mib << 20, mib), seed = mib;
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, 0);
    say(ready[1]);
    int signal;
    sigwait(&term, &signal);
    for (size_t i = 0; i < ((size_t)mib << 20) / 4; i++) { seed = seed * 1664525 + 1013904223; if (p[i] != (seed ^ seed >> 15)) _exit(3); }
    _exit(0);
}
static void end(const char *who, pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) exit(9);
    printf("%s %d\n", who, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}
int main(int argc, char **argv) {
    const char *shm = argv[1], *tasks = argv[2], *freezer = argv[3];
    struct timespec from, to;
    static char block[1 << 16];
    int go[2], idle[2], n = 0;
    setvbuf(stdout, 0, _IONBF, 0);
    fill(2 << 20, 1);
    if (pipe(ready) || pipe(go)) return 9;
    pid_t small = child(8, "-"), large = *freezer != '-' ? child(45, freezer) : 0;
    pid_t hog = fork();
    if (small < 0 || large < 0 || hog < 0) { perror("fork"); return 9; }
    if (hog == 0) { hear(go[0]); fill(120 << 20, 99); _exit(0); }
    if (*freezer != '-') put(freezer, "freezer.state", "FROZEN");
    if (*shm != '-') {
        int fd = open(shm, O_WRONLY | O_CREAT, 0600);
        while (write(fd, block, sizeof block) > 0) {}
    }
    // Nobody but this process has its other end.
    if (pipe(idle)) return 9;
    pid_t idlers[MOST];
    for (; *tasks != '-' && n < MOST && (idlers[n] = fork()) >= 0; n++)
        if (idlers[n] == 0) { close(idle[1]); _exit(read(idle[0], block, 1) != 0); }
    if (*tasks != '-' && (n == 0 || n == MOST)) { printf("%d idlers\n", n); return 9; }
    clock_gettime(CLOCK_MONOTONIC, &from);
    say(go[1]);
    end("hog", hog);
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (to.tv_sec - from.tv_sec > 10) puts("late");
    close(idle[1]);
    for (int i = 0; i < n; i++) waitpid(idlers[i], 0, 0);
    if (*freezer != '-') { put(freezer, "freezer.state", "THAWED"); end("frozen", large); }
    kill(small, SIGTERM);
    end("innocent", small);
    return 0;
}
