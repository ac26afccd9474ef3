/* A child at its limit of tasks (RLIMIT_NPROC): so many that its service can begin, and not one
 * more. It fills memory beyond its limit and finds every byte. Arguments: how many MiB, and the
 * user that the limit counts for. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 32, TRIES = 100 };

static unsigned long word(size_t page, int round)
{
    return (page + 1) * 0x9e3779b97f4a7c15 ^ round;
}

static int right(unsigned long *memory, size_t bytes, int round)
{
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (memory[page * (PAGE / 8)] != word(page, round))
            return 0;
    return 1;
}

static void *rest(void *nothing)
{
    pause();
    return nothing;
}

static int child(size_t bytes)
{
    pthread_t thread;
    /* What is left of the limit. */
    while (!pthread_create(&thread, 0, rest, 0))
        ;
    unsigned long *memory =
        mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    for (int round = 0; round < 3; round++) {
        for (size_t page = 0; page < bytes / PAGE; page++)
            memory[page * (PAGE / 8)] = word(page, round);
        if (!right(memory, bytes, round))
            return 4;
    }
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    /* There is no task left, for a program either. */
    return pid == -1 && errno == EAGAIN ? 0 : 5;
}

/* Forks at a limit of tasks. What a fork before this one had begun counts until it has ended, so
 * that a refusal says something when it stays. */
static pid_t fork_at(rlim_t most)
{
    struct rlimit limit = {most, MOST};
    if (setrlimit(RLIMIT_NPROC, &limit))
        return -2;
    pid_t pid = fork();
    for (int i = 0; i < TRIES && pid == -1 && errno == EAGAIN; i++) {
        usleep(5000);
        pid = fork();
    }
    return pid;
}

int main(int count, char **words)
{
    size_t bytes = count > 2 ? strtoul(words[1], 0, 10) << 20 : 0;
    uid_t user = count > 2 ? atoi(words[2]) : 0;
    /* So that it is managed. */
    char *memory = malloc(4 << 20);
    if (!bytes || !user || !memory || setresuid(user, user, user))
        return 2;
    memset(memory, 1, 4 << 20);
    alarm(90);
    for (rlim_t most = 1; most <= MOST; most++) {
        int status = -1;
        pid_t pid = fork_at(most);
        if (pid == 0)
            _exit(child(bytes));
        if (pid == -1 && errno == EAGAIN)
            continue;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
            return printf("the child ended with %#x\n", status), 1;
        printf("tasks %d\nno tasks right\n", (int)most);
        return 0;
    }
    return printf("no child was made\n"), 1;
}
