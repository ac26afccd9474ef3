/* A mapping is made where the program asks for it, if that is free, without MAP_FIXED: what ZGC,
   Go and V8 rely on. Prints "d26 right". */
#include "defects.h"

static int bad;

/* Whether nothing is mapped there. */
static int is_free(uintptr_t at, size_t bytes)
{
	char line[600];
	unsigned long from, to;
	int clear = 1;
	FILE *f = fopen("/proc/self/maps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from < at + bytes && to > at)
			clear = 0;
	fclose(f);
	return clear;
}

static unsigned char *hinted(uintptr_t at, size_t bytes, int prot, int flags)
{
	unsigned char *p = mmap((void *)at, bytes, prot, ANON | flags, -1, 0);
	CHECK(p != MAP_FAILED);
	step();
	if (p == (unsigned char *)at)
		return p;
	printf("%#lx of %zu KiB asked for, given %p\n", at, bytes >> 10, (void *)p);
	bad++;
	munmap(p, bytes);
	return NULL;
}

/* As ZGC starts: room at one of its places, then shared memory at a fixed address within. */
static void room(uintptr_t at, size_t bytes)
{
	if (!is_free(at, bytes)) {
		printf("SKIPPED: %#lx is not free\n", at);
		return;
	}
	unsigned char *p = hinted(at, bytes, PROT_NONE, MAP_NORESERVE);
	if (!p)
		return;
	int fd = (int)syscall(SYS_memfd_create, "heap", 0);
	CHECK(fd >= 0 && ftruncate(fd, 4 * MIB) == 0);
	unsigned char *s = mmap(p + MIB, 4 * MIB, RW, MAP_SHARED | MAP_FIXED, fd, 0);
	CHECK(s == p + MIB);
	fill(s, 26, 4 * MIB);
	CHECK(mprotect(p + 8 * MIB, 8 * MIB, RW) == 0);
	fill(p + 8 * MIB, 27, 8 * MIB);
	CHECK(right(s, 26, 4 * MIB) && right(p + 8 * MIB, 27, 8 * MIB));
	CHECK(munmap(p, bytes) == 0 && is_free(at, bytes));
	close(fd);
}

/* The hint of what is taken is not followed, and harms nobody. */
static void taken(void)
{
	unsigned char *p = map(4 * MIB);
	fill(p, 28, 4 * MIB);
	unsigned char *q = mmap(p + MIB, MIB, RW, ANON, -1, 0);
	CHECK(q != MAP_FAILED && (q + MIB <= p || q >= p + 4 * MIB));
	fill(q, 29, MIB);
	int fixed = MAP_FIXED_NOREPLACE;
	CHECK(mmap(p + MIB, MIB, RW, ANON | fixed, -1, 0) == MAP_FAILED && errno == EEXIST);
	CHECK(right(p, 28, 4 * MIB) && right(q, 29, MIB));
	CHECK(munmap(p + MIB, MIB) == 0);
	CHECK(mmap(p + MIB, MIB, RW, ANON | fixed, -1, 0) == p + MIB && zero(p + MIB, MIB));
	CHECK(right_page(p, 28, 0) && munmap(p, 4 * MIB) == 0 && munmap(q, MIB) == 0);
}

int main(void)
{
	static const uintptr_t places[] = {
		1ul << 32, 3ul << 36, 1ul << 40, 0xc000000000ul, 1ul << 42, 1ul << 43, 1ul << 44,
		0x3ffe00200000ul, 0x500000001000ul,
	};
	watch(10);
	for (int managed = 0; managed < 2; managed++) {
		for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
			room(places[i], 64 * MIB);
		taken();
		/* Where memory has just been given back. */
		for (size_t i = 0; i < 8; i++) {
			size_t n = (MIB / 4) << i;
			unsigned char *p = map(n);
			fill(p, i, n < 4 * MIB ? n : 4 * MIB);
			CHECK(munmap(p, n) == 0);
			unsigned char *q = hinted((uintptr_t)p, n, RW, 0);
			if (q)
				CHECK(zero(q, n) && munmap(q, n) == 0);
		}
		unsigned char *p = map(8 * MIB);
		fill(p, 30, 8 * MIB);
	}
	/* Side by side, far more than fits, and holes that are filled by hint. */
	uintptr_t base = 5ul << 42;
	for (size_t i = 0; i < 12 && !bad; i++) {
		unsigned char *p = hinted(base + i * 8 * MIB, 8 * MIB, RW, 0);
		if (p)
			fill(p, 100 + i, 8 * MIB);
	}
	for (size_t i = 0; i < 12 && !bad; i++) {
		unsigned char *p = (unsigned char *)base + i * 8 * MIB;
		CHECK(right(p, 100 + i, 8 * MIB));
		if (i % 3 == 1) {
			CHECK(munmap(p, 8 * MIB) == 0);
			p = hinted((uintptr_t)p, 8 * MIB, RW, 0);
			CHECK(p && p[0] == 0 && p[8 * MIB - 1] == 0);
			fill(p, 100 + i, 8 * MIB);
		}
	}
	for (size_t i = 0; i < 12 && !bad; i++)
		CHECK(right((unsigned char *)base + i * 8 * MIB, 100 + i, 8 * MIB));
	fflush(stdout);
	CHECK(bad == 0);
	puts("d26 right");
	return 0;
}
