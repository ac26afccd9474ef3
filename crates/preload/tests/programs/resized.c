/* Threads that map, grow and unmap memory, so that the kernel gives the place of one to another at
   once. Arguments: "library" or "instructions", for how they call the kernel; rounds; how many
   rounds of a thread there are to a fork, 0: no fork; MiB that are there besides. Prints "resized right". */
#include "defects.h"
#include <stdbool.h>

#define THREADS 3

static int rounds, each;
static bool raw;

static uint64_t roll(uint64_t *dice, uint64_t n)
{
	*dice ^= *dice << 13;
	*dice ^= *dice >> 7;
	*dice ^= *dice << 17;
	return *dice % n;
}

static unsigned char *new_map(size_t bytes)
{
	if (!raw)
		return mmap(NULL, bytes, RW, ANON, -1, 0);
	long p = by_instruction(SYS_mmap, NULL, bytes, RW, ANON, -1);
	CHECK(p > 0);
	return (unsigned char *)p;
}

static unsigned char *resize(unsigned char *p, size_t old, size_t new)
{
	if (!raw)
		return mremap(p, old, new, MREMAP_MAYMOVE);
	long q = by_instruction(SYS_mremap, p, old, new, MREMAP_MAYMOVE, 0);
	errno = q < 0 ? -q : 0;
	CHECK(q > 0);
	return (unsigned char *)q;
}

static int unmap(unsigned char *p, size_t bytes)
{
	return raw ? (int)by_instruction(SYS_munmap, p, bytes, 0, 0, 0) : munmap(p, bytes);
}

static void *work(void *number)
{
	uint64_t dice = ((uint64_t)(size_t)number + 1) * 0x9e3779b97f4a7c15u | 1;
	for (int round = 0; round < rounds; round++) {
		size_t old = (1 + roll(&dice, 700)) * PAGE, new = (1 + roll(&dice, 1400)) * PAGE;
		uint64_t seed = roll(&dice, ~0ul);
		unsigned char *p = new_map(old);
		CHECK(p != MAP_FAILED);
		for (size_t k = 0; k < old; k += PAGE)
			*(uint64_t *)(p + k) = seed + k;
		p = resize(p, old, new);
		CHECK(p != MAP_FAILED);
		for (size_t k = 0; k < new; k += PAGE)
			CHECK(*(uint64_t *)(p + k) == (k < old ? seed + k : 0));
		CHECK(unmap(p, new) == 0);
		if (each && roll(&dice, each) == 0) {
			int status;
			pid_t child = fork();
			CHECK(child >= 0);
			if (child == 0)
				_exit(0);
			CHECK(waitpid(child, &status, 0) == child && status == 0);
		}
	}
	return NULL;
}

int main(int count, char **args)
{
	CHECK(count == 5);
	raw = strcmp(args[1], "instructions") == 0;
	rounds = atoi(args[2]);
	each = atoi(args[3]);
	size_t besides = strtoul(args[4], NULL, 10) * MIB;
	memset(malloc(besides), 1, besides);
	alarm(300);
	pthread_t ids[THREADS];
	for (size_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&ids[i], NULL, work, (void *)i) == 0);
	for (size_t i = 0; i < THREADS; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	puts("resized right");
	return 0;
}
