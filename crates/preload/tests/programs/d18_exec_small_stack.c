/* execve and its kin from a signal handler on an alternate stack of 8 KiB, below which nothing is
   mapped, in a small program and in one whose memory is managed. Prints "d18 right". */
#include "defects.h"
#include <fcntl.h>
#include <sys/auxv.h>

#define STACK 8192ul

static const char *way;
static char *self;

static void handler(int signal)
{
	char *args[] = {self, "after", NULL};
	(void)signal;
	if (strcmp(way, "execve") == 0)
		execve(self, args, environ);
	else if (strcmp(way, "execv") == 0)
		execv(self, args);
	else if (strcmp(way, "execl") == 0)
		execl(self, self, "after", (char *)NULL);
	else if (strcmp(way, "fexecve") == 0)
		fexecve(open(self, O_RDONLY | O_CLOEXEC), args, environ);
	else if (strcmp(way, "child") == 0) {
		pid_t pid = fork();
		if (pid == 0)
			execve(self, args, environ);
		int status = 1;
		waitpid(pid, &status, 0);
		_exit(status ? 8 : 0);
	}
	_exit(9);
}

/* In a child: the handler runs, and the program that it executes ends well. */
static int by(const char *how)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		way = how;
		size_t size = STACK;
		/* What a frame needs beyond 3 KiB (wider registers) is not the library's affair. */
		if (getauxval(AT_MINSIGSTKSZ) > 3072)
			size += (getauxval(AT_MINSIGSTKSZ) - 3072 + PAGE - 1) / PAGE * PAGE;
		unsigned char *p = map(size + 4 * PAGE);
		CHECK(mprotect(p, 4 * PAGE, PROT_NONE) == 0);
		stack_t stack = {.ss_sp = p + 4 * PAGE, .ss_size = size};
		CHECK(sigaltstack(&stack, NULL) == 0);
		struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
		CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
		raise(SIGUSR1);
		_exit(10);
	}
	step();
	return well(pid, how);
}

int main(int argc, char **argv)
{
	static const char *ways[] = {"execve", "execv", "execl", "fexecve", "child"};
	int bad = 0;
	if (argc > 1 && strcmp(argv[1], "after") == 0)
		return 0;
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
	CHECK(n > 0);
	self = path;
	watch(10);
	for (int managed = 0; managed < 2; managed++) {
		if (managed) {
			unsigned char *p = map(96 * MIB);
			fill(p, 18, 96 * MIB);
		}
		for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
			bad += !by(ways[i]);
	}
	CHECK(bad == 0);
	puts("d18 right");
	return 0;
}
