/* Processes that are hard to end: "wait" sleeps, "daemon" leaves its session by a double fork,
 * "hop" goes on in a new process a hundred times a second. All ignore what can be ignored. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "wait";
    for (int s = 1; s < 32; s++)
        signal(s, SIG_IGN);
    if (strcmp(how, "wait")) {
        if (fork() > 0)
            _exit(0);
        setsid();
        if (fork() > 0)
            _exit(0);
        int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
    }
    while (!strcmp(how, "hop")) {
        if (fork() > 0)
            _exit(0);
        usleep(10000);
    }
    for (;;)
        pause();
}
