/* A limit on the address space, set while the program runs, counts what the program has mapped:
   small requests are granted, a large one is refused. The argument: "small" before the program has
   any memory, "managed" after. Prints "d11 right". */
#include "defects.h"
#include <dlfcn.h>
#include <sys/resource.h>

static void *thread(void *p) { return p; }

int main(int argc, char **argv)
{
	unsigned char *p = NULL;
	pthread_t t;
	struct rlimit limit = {1024 * MIB, RLIM_INFINITY}, is;
	if (argc > 1 && strcmp(argv[1], "managed") == 0) {
		p = map(96 * MIB);
		fill(p, 11, 96 * MIB);
	}
	alarm(60);
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	CHECK(getrlimit(RLIMIT_AS, &is) == 0 && is.rlim_cur == limit.rlim_cur);
	CHECK(pthread_create(&t, NULL, thread, NULL) == 0 && pthread_join(t, NULL) == 0);
	void *l = dlopen("libm.so.6", RTLD_NOW);
	CHECK(l && dlclose(l) == 0);
	unsigned char *q = map(64 * MIB);
	fill(q, 12, 64 * MIB);
	CHECK(mmap(NULL, 1024 * MIB, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
	CHECK(mmap(NULL, 1024 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0) == MAP_FAILED);
	void *volatile block = malloc(2048 * MIB);
	CHECK(block == NULL);
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			unsigned char *r = map(32 * MIB);
			fill(r, 13, 8 * MIB);
			if (mmap(NULL, 1024 * MIB, RW, ANON, -1, 0) != MAP_FAILED)
				_exit(8);
			_exit(right(r, 13, 8 * MIB) && right_page(q, 12, 77) ? 0 : 7);
		}
		CHECK(well(pid, "child"));
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(9);
		}
		CHECK(well(pid, "program executed"));
	}
	CHECK(right(q, 12, 64 * MIB) && (!p || right(p, 11, 96 * MIB)));
	/* What is given back may be had again. */
	CHECK(munmap(q, 64 * MIB) == 0);
	for (int i = 0; i < 40; i++) {
		q = map(64 * MIB);
		q[0] = 1;
		CHECK(munmap(q, 64 * MIB) == 0);
	}
	puts("d11 right");
	return 0;
}
