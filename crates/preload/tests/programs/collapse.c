/* MADV_COLLAPSE makes huge pages of small ones at once, whatever `enabled` says, and says why if
   it cannot. To be run where a fault gets no huge page. The argument is the limit in MiB. Prints
   "collapse right". */
#include "check.h"
#include "rights.h"
#include <stdint.h>
#include <string.h>

#define FAILS(c, e) CHECK((c) == -1 && errno == (e))
#define HUGE (2 * MIB)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static unsigned char *map(size_t n)
{
	unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

/* KiB in huge pages of the mapping that the kernel has there. */
static size_t huge(const unsigned char *p)
{
	char line[256];
	size_t kib = 0, from, to;
	int here = 0;
	FILE *f = fopen("/proc/self/smaps", "r");
	CHECK(f != NULL);
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%zx-%zx ", &from, &to) == 2)
			here = from <= (uintptr_t)p && (uintptr_t)p < to;
		else if (here)
			sscanf(line, "AnonHugePages: %zu kB", &kib);
	}
	fclose(f);
	return kib;
}

static void no_room(unsigned char *block, size_t limit)
{
	unsigned char *big = map(limit * MIB);
	size_t locked = 0;
	while (mlock(big + locked, MIB / 2) == 0)
		locked += MIB / 2;
	CHECK(errno == ENOMEM && locked > limit * MIB / 2);
	int done = madvise(block, HUGE, MADV_COLLAPSE), why = errno;
	CHECK(munlock(big, limit * MIB) == 0 && munmap(big, limit * MIB) == 0);
	errno = why;
	FAILS(done, EBUSY);
	CHECK(block[0] == 9 && block[PAGE] == 0);
	CHECK(madvise(block, HUGE, MADV_COLLAPSE) == 0);
	CHECK(block[0] == 9 && block[PAGE] == 0);
}

int main(int argc, char **argv)
{
	unsigned char *room = map(12 * MIB);
	unsigned char *p = (unsigned char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
	size_t before = huge(p);
	/* Of the first block every third page, of the second one, of the third all, and away. */
	for (size_t i = 0; i < 512; i += 3)
		p[i * PAGE] = 3;
	p[HUGE + 7 * PAGE] = 7;
	for (size_t i = 0; i < 512; i++)
		memset(p + 2 * HUGE + i * PAGE, (int)i | 1, 64);
	CHECK(madvise(p + 2 * HUGE, HUGE, MADV_PAGEOUT) == 0);
	CHECK(huge(p) == before);
	/* No whole block: nothing to do. */
	CHECK(madvise(p + PAGE, HUGE, MADV_COLLAPSE) == 0 && huge(p) == before);
	for (int again = 0; again < 2; again++) {
		CHECK(madvise(p, 3 * HUGE, MADV_COLLAPSE) == 0);
		CHECK(huge(p) == before + 3 * HUGE / 1024);
	}
	for (size_t i = 0; i < 512; i++) {
		unsigned char *q = p + 2 * HUGE + i * PAGE;
		CHECK(p[i * PAGE] == (i % 3 ? 0 : 3) && p[HUGE + i * PAGE] == (i == 7 ? 7 : 0));
		CHECK(q[0] == (unsigned char)(i | 1) && q[63] == q[0] && q[64] == 0);
	}
	/* A huge page that was paged out whole. */
	CHECK(madvise(p, HUGE, MADV_PAGEOUT) == 0 && madvise(p, HUGE, MADV_COLLAPSE) == 0);
	CHECK(huge(p) == before + 3 * HUGE / 1024 && p[3 * PAGE] == 3 && p[4 * PAGE] == 0);
	/* Nothing is there; huge pages are refused; a part is not mapped. */
	unsigned char *last = p + 3 * HUGE;
	FAILS(madvise(last, HUGE, MADV_COLLAPSE), EINVAL);
	last[0] = 9;
	CHECK(madvise(last, HUGE, MADV_NOHUGEPAGE) == 0);
	FAILS(madvise(last, HUGE, MADV_COLLAPSE), EINVAL);
	CHECK(huge(p) == before + 3 * HUGE / 1024 && last[0] == 9);
	CHECK(madvise(last, HUGE, MADV_HUGEPAGE) == 0);
	CHECK(munmap(p + HUGE, HUGE) == 0);
	FAILS(madvise(p, 3 * HUGE, MADV_COLLAPSE), ENOMEM);
	CHECK(p[3 * PAGE] == 3 && p[2 * HUGE] == 1);
	/* All of the limit, and more. */
	if (argc > 1 && may_lock((size_t)atoi(argv[1]) * MIB))
		no_room(last, (size_t)atoi(argv[1]));
	puts("collapse right");
	return 0;
}
