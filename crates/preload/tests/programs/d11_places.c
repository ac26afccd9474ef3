/* Fills all memory that its address space has room for. Prints "d11 right". */
#include "defects.h"

#define CHUNK (4 * MIB)
#define MOST 256

int main(void)
{
	unsigned char *p[MOST];
	int n = 0;
	while (n < MOST && (p[n] = mmap(NULL, CHUNK, RW, ANON, -1, 0)) != MAP_FAILED)
		n++;
	/* Some is left for others. */
	for (int i = 0; i < 4 && n > 0; i++)
		CHECK(munmap(p[--n], CHUNK) == 0);
	for (int i = 0; i < n; i++)
		fill(p[i], 11 + i, CHUNK);
	for (int i = 0; i < n; i++)
		CHECK(right(p[i], 11 + i, CHUNK));
	printf("%d MiB\n", n * 4);
	puts("d11 right");
	return 0;
}
