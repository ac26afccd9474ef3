/* Memory that is mapped by MAP_FIXED_NOREPLACE alone, as linkers and sanitizers do, is managed like
   any other. Prints "noreplace right". */
#include "defects.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

int main(void)
{
	void *at = (void *)0x200000000000;
	unsigned char *p = mmap(at, 8 * MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(p == at);
	CHECK(mmap(at, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
	fill(p, 5, 8 * MIB);
	CHECK(is_managed((uintptr_t)p + MIB / 2));
	CHECK(right(p, 5, 8 * MIB));
	puts("noreplace right");
	return 0;
}
