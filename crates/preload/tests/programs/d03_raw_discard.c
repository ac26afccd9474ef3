/* Pages that a program discards by a system call of its own, as Go does, hold zeros when touched
   again, and their neighbours what they held. The arguments: how the call is made, "libc" (its
   syscall function) or "own" (an instruction of the program's); "resident", to end before pages
   that are away. Prints "d03 right". */
#include "defects.h"

static int by_libc;

static long raw(long number, void *p, size_t bytes, long what)
{
	return by_libc ? syscall(number, p, bytes, what) : by_instruction(number, p, bytes, what, 0, 0);
}

/* Every other piece is discarded, read, and written again. */
static void pieces(unsigned char *p, size_t bytes, size_t piece)
{
	fill(p, 3, bytes);
	/* Nothing is being moved then: what is discarded unheard in that moment is d03_unseen's. */
	if (!by_libc)
		usleep(300000);
	for (size_t i = 0; i < bytes; i += 2 * piece)
		CHECK(raw(SYS_madvise, p + i, piece, MADV_DONTNEED) == 0);
	for (size_t i = 0; i < bytes; i += piece) {
		if (i / piece % 2 == 0)
			CHECK(zero(p + i, piece));
		else
			for (size_t o = i; o < i + piece; o += PAGE)
				CHECK(right_page(p, 3, o / PAGE));
		step();
	}
	fill(p, 3, bytes);
	step();
	CHECK(right(p, 3, bytes));
	step();
}

int main(int argc, char **argv)
{
	by_libc = argc < 2 || strcmp(argv[1], "libc") == 0;
	watch(10);
	size_t small = 2 * MIB, large = 192 * MIB;
	/* Pages that are there. */
	unsigned char *p = map(small);
	pieces(p, small, PAGE);
	pieces(p, small, 16 * PAGE);
	say("resident pages right\n");
	/* A write is the first to touch. */
	fill(p, 3, small);
	CHECK(raw(SYS_madvise, p, small, MADV_DONTNEED) == 0);
	for (size_t i = 0; i < small; i += PAGE)
		p[i] = 1;
	for (size_t i = 0; i < small; i += PAGE)
		CHECK(p[i] == 1 && p[i + 8] == 0 && p[i + PAGE - 1] == 0);
	step();
	if (argc > 2) {
		puts("d03 right");
		return 0;
	}
	/* Pages that are away, and some that are there. */
	unsigned char *q = map(large);
	pieces(q, large, 16 * PAGE);
	pieces(q, large, 512 * PAGE);
	say("evicted pages right\n");
	puts("d03 right");
	return 0;
}
