/* Calls on ranges with holes: they mean what the kernel means, and what is left is managed still.
   Prints "holes right". */
#include "defects.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* 8 MiB in bytes of a pattern, without the second. */
static unsigned char *holed(void)
{
	unsigned char *p = map(8 * MIB);
	fill(p, 5, 8 * MIB);
	CHECK(munmap(p + MIB, MIB) == 0);
	return p;
}

/* Whether the memory has, and nothing else has, what `holed` has left of so many bytes. */
static int is_left(unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes / PAGE; i++)
		if ((i < MIB / PAGE || i >= 2 * MIB / PAGE) && !right_page(p, 5, i))
			return 0;
	return msync(p + MIB, MIB, MS_ASYNC) == -1 && errno == ENOMEM;
}

int main(void)
{
	/* A resize that makes it smaller cuts what is behind. */
	unsigned char *p = holed();
	CHECK(mremap(p, 8 * MIB, 4 * MIB, 0) == p);
	CHECK(is_left(p, 4 * MIB) && msync(p + 4 * MIB, PAGE, MS_ASYNC) == -1);
	CHECK(is_managed((uintptr_t)p + MIB / 2) && is_managed((uintptr_t)p + 7 * MIB / 2));
	CHECK(munmap(p, 4 * MIB) == 0);

	/* What is not one mapping does not grow, and what begins with a hole is none. */
	p = holed();
	CHECK(mremap(p, 8 * MIB, 9 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
	CHECK(mremap(p + MIB, 2 * MIB, MIB, 0) == MAP_FAILED && errno == EFAULT);
	CHECK(is_left(p, 8 * MIB) && is_managed((uintptr_t)p + MIB / 2));

	/* It moves with its gaps, which take nothing away where they come to lie: Linux since 6.17. */
	unsigned char *to = map(16 * MIB);
	fill(to, 6, 16 * MIB);
	int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
	void *at = mremap(p, 8 * MIB, 8 * MIB, flags, to);
	if (at == to) {
		CHECK(right_page(to, 6, MIB / PAGE) && right_page(to, 6, 8 * MIB / PAGE));
		CHECK(munmap(to + MIB, MIB) == 0 && is_left(to, 8 * MIB));
		CHECK(is_managed((uintptr_t)to + MIB / 2) && is_managed((uintptr_t)to + 15 * MIB / 2));
		CHECK(msync(p, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
	} else {
		CHECK(errno == EFAULT);
	}

	/* Populating ends at a hole. */
	p = map(4 * MIB);
	CHECK(munmap(p + 2 * MIB, PAGE) == 0);
	CHECK(madvise(p, 4 * MIB, MADV_POPULATE_WRITE) == -1 && errno == ENOMEM);
	unsigned char seen[2];
	CHECK(mincore(p + MIB, PAGE, seen) == 0 && seen[0] & 1);
	CHECK(mincore(p + 3 * MIB, PAGE, seen + 1) == 0 && !(seen[1] & 1));
	puts("holes right");
	return 0;
}
