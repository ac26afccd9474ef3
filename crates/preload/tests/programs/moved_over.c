/* Moves memory by an instruction of its own over memory of which a thread has pages evicted all the
   time: what has come is there, and not what was there before. Prints "moved over right". */
#include "defects.h"

#define PAGES 256ul
#define BYTES (PAGES * PAGE)

static unsigned char *volatile place;

static void *presses(void *unused)
{
	(void)unused;
	for (;;)
		madvise(place, BYTES, MADV_PAGEOUT);
	return NULL;
}

int main(void)
{
	watch(60);
	unsigned char *from = map(BYTES), *to = map(BYTES);
	fill(to, 0, BYTES);
	place = to;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, presses, NULL) == 0);
	unsigned rounds = 0, again = 0;
	for (double end = now() + 5; now() < end;) {
		unsigned is = ++rounds;
		fill(from, is, BYTES);
		/* Managed from then on, in each round anew; every other time it is away. */
		evict(from, BYTES);
		if (is % 2)
			CHECK(right(from, is, BYTES));
		CHECK(by_instruction(SYS_mremap, from, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED,
				     (long)to) == (long)to);
		CHECK(right(to, is, BYTES));
		/* Where it was before, as a rule. */
		unsigned char *next = map(BYTES);
		again += next == from;
		from = next;
		CHECK(zero(from, BYTES));
		step();
	}
	fprintf(stderr, "rounds: %u\nplaces mapped again: %u\n", rounds, again);
	puts("moved over right");
	return 0;
}
