/* The program unmaps, by an instruction of its own, memory that was taken under management, maps
   other memory there, and calls the C library on that, once for each kind of call. Argument: which.
   Prints "replaced right". */
#include "defects.h"
#include <stdbool.h>

#define BYTES (2 * MIB)

static void fork_once(const unsigned char *p, unsigned char has)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(p && p[BYTES / 2] != has);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static unsigned char *raw_map(void *at, int flags)
{
	long p = by_instruction(SYS_mmap, at, BYTES, RW, ANON | flags, -1);
	CHECK(p > 0);
	return (unsigned char *)p;
}

/* New memory, that a fork has taken under management. */
static unsigned char *managed(unsigned char has)
{
	unsigned char *p = raw_map(NULL, 0);
	memset(p, has, BYTES);
	fork_once(NULL, 0);
	return p;
}

static void all_is(const unsigned char *p, size_t bytes, unsigned char has)
{
	for (size_t i = 0; i < bytes; i++)
		CHECK(p[i] == has);
}

/* Managed memory is gone, and at its place is other memory, or none. */
static unsigned char *replaced(bool has_other)
{
	unsigned char *p = managed(1);
	CHECK(by_instruction(SYS_munmap, p, BYTES, 0, 0, 0) == 0);
	if (has_other)
		memset(raw_map(p, MAP_FIXED_NOREPLACE), 2, BYTES);
	return p;
}

static bool can_write(unsigned char *p)
{
	int ends[2];
	CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	bool can = read(ends[0], p, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return can;
}

int main(int count, char **args)
{
	CHECK(count == 2);
	const char *what = args[1];
	/* The service runs. */
	memset(malloc(4 * MIB), 1, 4 * MIB);
	if (strcmp(what, "mremap") == 0) {
		unsigned char *p = mremap(replaced(true), BYTES, 2 * BYTES, MREMAP_MAYMOVE);
		CHECK(p != MAP_FAILED);
		all_is(p, BYTES, 2);
		all_is(p + BYTES, BYTES, 0);
	} else if (strcmp(what, "odd mremap") == 0) {
		unsigned char *p = mremap(replaced(true), BYTES - 100, 2 * BYTES, MREMAP_MAYMOVE);
		CHECK(p != MAP_FAILED);
		all_is(p, BYTES, 2);
	} else if (strcmp(what, "madvise") == 0) {
		unsigned char *p = replaced(true);
		CHECK(madvise(p, BYTES, MADV_DONTNEED) == 0);
		all_is(p, BYTES, 0);
	} else if (strcmp(what, "munmap") == 0) {
		unsigned char *p = replaced(true), there;
		CHECK(munmap(p, BYTES) == 0);
		CHECK(mincore(p, PAGE, &there) == -1 && errno == ENOMEM);
	} else if (strcmp(what, "mmap") == 0) {
		unsigned char *p = replaced(false);
		CHECK(mmap(p, BYTES, RW, ANON | MAP_FIXED, -1, 0) == p);
		memset(p, 3, BYTES);
		all_is(p, BYTES, 3);
	} else if (strcmp(what, "mprotect") == 0) {
		unsigned char *p = replaced(true);
		CHECK(mprotect(p, BYTES, PROT_READ) == 0 && !can_write(p));
		all_is(p, BYTES, 2);
		/* The kernel has other rights than the service knows. */
		unsigned char *q = managed(4);
		CHECK(by_instruction(SYS_mprotect, q, BYTES, PROT_READ, 0, 0) == 0);
		CHECK(mprotect(q, BYTES, RW) == 0 && can_write(q));
	} else {
		CHECK(strcmp(what, "fork") == 0);
		unsigned char *p = replaced(true);
		fork_once(p, 2);
		fork_once(p, 2);
		all_is(p, BYTES, 2);
	}
	puts("replaced right");
	return 0;
}
