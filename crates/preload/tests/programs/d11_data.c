/* A program that limits its data (RLIMIT_DATA), as browsers do for their renderers, goes on: it and
   its child make threads, map memory, and read back what they have set. The argument: "small" or
   "managed", what it is when the limit comes. Prints "d11 right". */
#include "defects.h"
#include <sys/resource.h>

#define LIMIT ((rlim_t)4 << 30)

static void *thread(void *argument)
{
	volatile char here[65536];
	here[0] = 1;
	return here[0] ? argument : NULL;
}

static void work(void)
{
	struct rlimit is;
	pthread_t t;
	void *said;
	CHECK(getrlimit(RLIMIT_DATA, &is) == 0 && is.rlim_cur == LIMIT && is.rlim_max == LIMIT);
	is.rlim_max++;
	for (int i = 0; i < 4; i++) {
		CHECK(pthread_create(&t, NULL, thread, &is) == 0);
		CHECK(pthread_join(t, &said) == 0 && said == &is);
	}
	unsigned char *p = map(16 * MIB);
	fill(p, 1, 16 * MIB);
	CHECK(right(p, 1, 16 * MIB));
	CHECK(mprotect(p, MIB, PROT_READ) == 0 && mprotect(p, MIB, RW) == 0);
}

int main(int argc, char **argv)
{
	struct rlimit limit = {LIMIT, LIMIT};
	alarm(60);
	if (argc > 1 && strcmp(argv[1], "managed") == 0)
		fill(map(32 * MIB), 2, 32 * MIB);
	CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
	work();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		work();
		_exit(0);
	}
	CHECK(well(pid, "child"));
	limit.rlim_cur = MIB;
	CHECK(setrlimit(RLIMIT_DATA, &limit) == 0 && getrlimit(RLIMIT_DATA, &limit) == 0);
	CHECK(limit.rlim_cur == MIB && limit.rlim_max == LIMIT);
	puts("d11 right");
	return 0;
}
