// sparse MODE PLACES MIB: one page in each stretch of so many MiB of one mapping is read (r), or
// written and kept (k), discarded (d) or unmapped with its stretch (u).
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
	if (argc != 4)
		return 2;
	char mode = *argv[1];
	size_t places = strtoul(argv[2], NULL, 10), stretch = strtoul(argv[3], NULL, 10) << 20;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *p = mmap(NULL, places * stretch, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	size_t wrong = 0;
	for (size_t i = 0; i < places; i++) {
		size_t *at = (size_t *)(p + i * stretch);
		if (mode == 'r')
			wrong += *(volatile size_t *)at != 0;
		else
			*(volatile size_t *)at = i + 1;
		if (mode == 'd')
			wrong += madvise(at, 4096, MADV_DONTNEED) != 0;
		if (mode == 'u')
			wrong += munmap(at, stretch) != 0;
	}
	for (size_t i = 0; i < places && mode != 'u'; i++)
		wrong += *(volatile size_t *)(p + i * stretch) != (mode == 'k' ? i + 1 : 0);
	puts(wrong ? "wrong" : "right");
	return wrong != 0;
}
