// callers PROGRAM ARGS: executes it in a child, and ends as that does.
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int status;
    pid_t child = fork();
    if (child == 0) { execv(argv[1], argv + 1); _exit(99); }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
