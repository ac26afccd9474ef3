/* Every exec call with an empty environment: the next program still finds the library. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
	char *none[] = {NULL}, *args[] = {argv[0], "child", NULL};
	if (argc > 1) {
		const char *p = getenv("LD_PRELOAD"), *g = getenv("DECKLE_GROUP");
		return p && strstr(p, "libdeckle.so") && g && *g ? 0 : 9;
	}
	for (int how = 0; how < 11; how++) {
		pid_t pid = -1;
		if (how == 8 && posix_spawn(&pid, argv[0], NULL, NULL, args, none))
			return 2;
		if (how == 9 && posix_spawnp(&pid, argv[0], NULL, NULL, args, none))
			return 2;
		if (how < 8)
			pid = fork();
		if (how == 10)
			pid = vfork();
		if (pid == 0) {
			static char *empty[] = {NULL};
			if (how != 10)
				environ = empty;
			switch (how) {
			case 0: execve(argv[0], args, none); break;
			case 1: execv(argv[0], args); break;
			case 2: execvp(argv[0], args); break;
			case 3: execvpe(argv[0], args, none); break;
			case 4: execl(argv[0], argv[0], "child", (char *)NULL); break;
			case 5: execlp(argv[0], argv[0], "child", (char *)NULL); break;
			case 6: execle(argv[0], argv[0], "child", (char *)NULL, none); break;
			case 7: fexecve(open(argv[0], O_RDONLY), args, none); break;
			case 10: execve(argv[0], args, none); break;
			}
			_exit(8);
		}
		int status;
		if (waitpid(pid, &status, 0) != pid || status != 0) {
			printf("way %d: status %x\n", how, status);
			return 1;
		}
	}
	puts("execs right");
	return 0;
}
