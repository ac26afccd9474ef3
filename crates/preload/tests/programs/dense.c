/* 136 MiB that compress to 57, written anew in no order: what is stored comes and goes in pieces.
   Prints "dense right". */
#include "check.h"
#include <stdint.h>
#include <string.h>

#define PAGES ((size_t)34816)
#define TURNS ((size_t)8000)
#define WORDS (PAGE / 8)

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Word `k` of a page: each fourth is noise. */
static uint64_t word(size_t i, unsigned version, size_t k)
{
	return k % 4 ? 0x2020202020202020 : mix(i << 24 | version << 12 | k);
}

static unsigned char version[PAGES];

static void fill(uint64_t *p, size_t i)
{
	for (size_t k = 0; k < WORDS; k++)
		p[i * WORDS + k] = word(i, version[i], k);
}

static int is_right(const uint64_t *p, size_t i)
{
	for (size_t k = 0; k < WORDS; k++)
		if (p[i * WORDS + k] != word(i, version[i], k))
			return 0;
	return 1;
}

int main(void)
{
	uint64_t *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	CHECK(p != MAP_FAILED);
	for (size_t i = 0; i < PAGES; i++)
		fill(p, i);
	for (size_t n = 0; n < TURNS; n++) {
		size_t i = mix(n) % PAGES;
		CHECK(is_right(p, i));
		if (n % 2) {
			version[i]++;
			fill(p, i);
		}
	}
	for (size_t i = 0; i < PAGES; i++)
		CHECK(is_right(p, i));
	puts("dense right");
	return 0;
}
