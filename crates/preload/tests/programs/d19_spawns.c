/* Starts 200 programs that cannot be managed, in all ways: nothing of them is left here. Arguments:
   how often, then the programs, in turns. In the end says so, and stays until its input ends. */
#include "defects.h"
#include <spawn.h>

extern char **environ;

static int mappings(void)
{
	static char text[1 << 20];
	/* Tasks of the service that have come for a while have stacks, and leave after two seconds. */
	usleep(2600000);
	int lines = 0, maps = open("/proc/self/maps", O_RDONLY);
	CHECK(maps >= 0);
	for (ssize_t n; (n = read(maps, text, sizeof text)) > 0;)
		for (ssize_t i = 0; i < n; i++)
			lines += text[i] == '\n';
	close(maps);
	return lines;
}

static pid_t start(int how, char *program)
{
	char *args[] = {program, NULL};
	pid_t pid = -1;
	switch (how % 3) {
	case 0:
		CHECK(posix_spawn(&pid, program, NULL, NULL, args, environ) == 0);
		break;
	case 1:
		pid = fork();
		break;
	default:
		pid = vfork();
	}
	if (pid == 0) {
		execv(program, args);
		_exit(127);
	}
	return pid;
}

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	watch(60);
	int times = atoi(argv[1]), before = 0;
	unsigned char *p = map(4 << 20);
	fill(p, 19, 4 << 20);
	for (int i = 0; i < times; i++, step()) {
		/* What the first of each kind takes is kept. */
		if (i == 3 * (argc - 2))
			before = mappings();
		CHECK(well(start(i / (argc - 2), argv[2 + i % (argc - 2)]), "program"));
	}
	CHECK(right(p, 19, 4 << 20));
	printf("ready %d before %d after %d\n", getpid(), before, mappings());
	fflush(stdout);
	char byte;
	for (; read(0, &byte, 1) > 0; step()) {}
	printf("d19 right\n");
	return 0;
}
