/* Forks more children than there can be, and none is killed: each lives, has its parent's bytes and
 * memory of its own, or its fork failed with EAGAIN and left nothing behind. Arguments: how many;
 * for a limit on processes (RLIMIT_NPROC) that limit and the user it counts for, else 0 0; and a
 * file, if any, into which the name of the group is written, and whose removal is waited for. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY = 4 << 20, OWN = 1 << 20, PAGE = 4096, MOST = 1000 };

static volatile sig_atomic_t signals;

static void on_child(int signal)
{
    (void)signal;
    signals++;
}

static char *filled(size_t bytes, char with)
{
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    for (size_t at = 0; at < bytes; at += PAGE)
        memory[at] = with + at / PAGE;
    return memory;
}

static int holds(const char *memory, size_t bytes, char with)
{
    for (size_t at = 0; at < bytes; at += PAGE)
        if (memory[at] != (char)(with + at / PAGE))
            return 0;
    return 1;
}

static void child(const char *parents, char number, int report, int gate)
{
    char *own = filled(OWN, number), byte;
    if (!own || !holds(parents, MEMORY, 7) || write(report, "k", 1) != 1)
        _exit(3);
    if (read(gate, &byte, 1) != 0)
        _exit(4);
    _exit(holds(own, OWN, number) && holds(parents, MEMORY, 7) ? 0 : 5);
}

static int leaves_nothing(void)
{
    sigset_t pending;
    siginfo_t info = {0};
    int waited = waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG);
    if (waited == 0 ? info.si_pid != 0 : errno != ECHILD)
        return printf("child %d of a fork that failed was left\n", info.si_pid), 0;
    if (sigpending(&pending) || sigismember(&pending, SIGCHLD) || signals)
        return printf("a signal of a fork that failed was left\n"), 0;
    return 1;
}

static int wait_for_removal_of(const char *path)
{
    char made[4096];
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "w");
    if (!file || fputs(getenv("DECKLE_GROUP"), file) < 0 || fclose(file) || rename(made, path))
        return 0;
    while (!access(path, F_OK))
        usleep(1000);
    return 1;
}

int main(int count, char **words)
{
    static pid_t children[MOST];
    int wanted = count > 3 ? atoi(words[1]) : 0, made = 0, refused = 0;
    rlim_t processes = count > 3 ? atoi(words[2]) : 0;
    uid_t user = count > 3 ? atoi(words[3]) : 0;
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    struct rlimit limit = {processes, processes};
    int report[2], gate[2];
    if (user && setresuid(user, user, user))
        return 2;
    char *memory = filled(MEMORY, 7), byte;
    if (!memory || wanted > MOST || pipe(report) || pipe(gate) || sigaction(SIGCHLD, &action, 0))
        return 2;
    if (processes && setrlimit(RLIMIT_NPROC, &limit))
        return 2;
    /* No hang if a child that has not reported is gone. */
    alarm(90);
    if (count > 4 && !wait_for_removal_of(words[4]))
        return 2;
    for (int n = 0; n < wanted; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            close(gate[1]);
            child(memory, n, report[1], gate[0]);
        }
        if (pid > 0) {
            children[made++] = pid;
            continue;
        }
        if (errno != EAGAIN)
            return printf("fork %d failed with errno %d\n", n, errno), 1;
        refused++;
        if (!leaves_nothing())
            return 1;
    }
    for (int n = 0; n < made; n++)
        if (read(report[0], &byte, 1) != 1)
            return 1;
    if (!leaves_nothing())
        return 1;
    close(gate[1]);
    for (int n = 0; n < made; n++) {
        int status;
        if (waitpid(children[n], &status, 0) != children[n] || status)
            return printf("child %d ended with %#x\n", n, status), 1;
    }
    if (wait(0) != -1 || errno != ECHILD || !holds(memory, MEMORY, 7))
        return 1;
    /* What was refused can be had again. */
    pid_t pid = fork();
    int status = -1;
    if (pid == 0)
        _exit(holds(memory, MEMORY, 7) ? 0 : 5);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        return printf("the last child ended with %#x\n", status), 1;
    printf("made %d\nrefused %d\nall forks right\n", made, refused);
    return 0;
}
