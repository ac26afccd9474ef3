/* mremap by force of what is not managed, or not there, over what is: what the kernel refuses
   takes nothing away. Passes without deckle, too. Prints "moves right". */
#define _GNU_SOURCE
#include "defects.h"
#include <sys/mman.h>

#define BYTES (4 * MIB)
#define BY_FORCE (MREMAP_MAYMOVE | MREMAP_FIXED)

int main(void)
{
	unsigned char *p = map(BYTES), *hole = map(BYTES);
	fill(p, 31, BYTES);
	CHECK(munmap(hole, BYTES) == 0);
	/* Nothing is there. */
	CHECK(mremap(hole, MIB, MIB, BY_FORCE, p) == MAP_FAILED && errno == EFAULT);
	CHECK(mremap(hole, PAGE, MIB, BY_FORCE, p) == MAP_FAILED && errno == EFAULT);
	CHECK(right(p, 31, BYTES));
	/* A file's page, and more than that is to grow. */
	int file = memfd_create("moved", 0);
	CHECK(file >= 0 && ftruncate(file, PAGE) == 0);
	unsigned char *f = mmap(hole, PAGE, RW, MAP_SHARED | MAP_FIXED, file, 0);
	CHECK(f == hole);
	f[0] = 77;
	CHECK(mremap(f, 2 * PAGE, 3 * PAGE, BY_FORCE, p) == MAP_FAILED && errno == EFAULT);
	CHECK(right(p, 31, BYTES) && f[0] == 77);
	/* One that is managed behind a hole. */
	unsigned char *q = map(BYTES);
	fill(q, 32, BYTES);
	CHECK(munmap(q, MIB) == 0);
	CHECK(mremap(q, 2 * MIB, 3 * MIB, BY_FORCE, p) == MAP_FAILED && errno == EFAULT);
	CHECK(right(p, 31, BYTES));
	for (size_t i = MIB / PAGE; i < BYTES / PAGE; i++)
		CHECK(right_page(q, 32, i));
	/* What it takes is there. */
	CHECK(mremap(f, PAGE, PAGE, BY_FORCE, p) == p && p[0] == 77);
	for (size_t i = 1; i < BYTES / PAGE; i++)
		CHECK(right_page(p, 31, i));
	puts("moves right");
	return 0;
}
