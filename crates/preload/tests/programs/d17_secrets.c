/* Dumps core with secrets in it where none may be: in memory that is to be left out of dumps, a
   part of which is away; and in what has been away and was wiped or unmapped since. Beside them
   memory that belongs into the dump. Argument: the directory that the core goes to, as "core". */
#include "defects.h"
#include <sys/resource.h>

#define BYTES (8 << 20)
#define HALF (BYTES / 2)

/* No register and no frame shall keep what was written last. */
static __attribute__((noinline)) void forget(void)
{
	volatile unsigned char frames[16384];
	for (size_t i = 0; i < sizeof frames; i++)
		frames[i] = 0;
}

static __attribute__((noinline)) unsigned char *filled(uint64_t seed)
{
	unsigned char *p = map(BYTES);
	fill(p, seed, BYTES);
	return p;
}

int main(int argc, char **argv)
{
	struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	CHECK(argc == 2 && chdir(argv[1]) == 0);
	CHECK(setrlimit(RLIMIT_CORE, &all) == 0);
	unlink("core");
	/* Left out: told before it is away, and while it is. Half of each is resident. */
	unsigned char *before = filled(171), *after = filled(172);
	CHECK(madvise(before, BYTES, MADV_DONTDUMP) == 0);
	evict(before, HALF);
	evict(after, HALF);
	CHECK(madvise(after, BYTES, MADV_DONTDUMP) == 0);
	/* Wiped and unmapped. */
	unsigned char *wiped = filled(173), *gone = filled(174);
	evict(wiped, BYTES);
	evict(gone, BYTES);
	memset(wiped, 0, BYTES);
	CHECK(munmap(gone, BYTES) == 0);
	/* Its half that is there belongs into the dump; the other half the store has, like all. */
	unsigned char *plain = filled(175);
	evict(plain, HALF);
	forget();
	abort();
}
