/* 16 MiB that are freed lazily, of which half is written again and must stay, and a locked page that
   cannot be freed. Prints how many KiB the kernel knows to be free. */
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
		for (size_t k = 0; k < PAGE; k++) {
			unsigned char byte = p[i * PAGE + k];
			CHECK(i % 2 == 0 ? byte == 2 : byte <= 1);
		}
	CHECK(mlock(p + PAGE, PAGE) == 0);
	CHECK(madvise(p, 4 * PAGE, MADV_FREE) == -1 && errno == EINVAL);
	printf("lazy %u\nlazyfree right\n", kib);
	return 0;
}
