/* 16 MiB that are freed lazily, of which half is written again and must stay; parts of huge pages
   freed so before all is evicted; and a locked page that cannot be freed. Prints how many KiB the
   kernel knows to be free. */
#include "check.h"
#include <stdint.h>
#include <string.h>

#define PAGES ((size_t)4096)

static unsigned kib_lazy(void)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	CHECK(smaps);
	char line[256];
	unsigned sum = 0, kib;
	while (fgets(line, sizeof line, smaps))
		if (sscanf(line, "LazyFree: %u", &kib) == 1)
			sum += kib;
	fclose(smaps);
	return sum;
}

/* All bytes of a page are `byte`, or it is all zeros if it was free. */
static void check(const unsigned char *p, unsigned char byte, int was_free)
{
	if (was_free && p[0] == 0)
		byte = 0;
	for (size_t k = 0; k < PAGE; k++)
		CHECK(p[k] == byte);
}

int main(void)
{
	unsigned char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	memset(p, 1, PAGES * PAGE);
	/* How far memory is from short is known a tenth of a second later. */
	usleep(300000);
	CHECK(madvise(p, PAGES * PAGE, MADV_FREE) == 0);
	unsigned kib = kib_lazy();
	for (size_t i = 0; i < PAGES; i += 2)
		memset(p + i * PAGE, 2, PAGE);
	for (size_t i = 0; i < PAGES; i++)
		check(p + i * PAGE, i % 2 == 0 ? 2 : 1, i % 2 != 0);
	memset(p, 3, PAGES * PAGE);
	for (size_t i = 5; i < PAGES; i += 64) {
		CHECK(madvise(p + i * PAGE, 2 * PAGE, MADV_FREE) == 0);
		memset(p + i * PAGE, 4, PAGE);
	}
	CHECK(madvise(p, PAGES * PAGE, MADV_PAGEOUT) == 0);
	for (size_t i = 0; i < PAGES; i++)
		check(p + i * PAGE, i % 64 == 5 ? 4 : 3, i % 64 == 6);
	CHECK(mlock(p + PAGE, PAGE) == 0);
	CHECK(madvise(p, 4 * PAGE, MADV_FREE) == -1 && errno == EINVAL);
	printf("lazy %u\nlazyfree right\n", kib);
	return 0;
}
