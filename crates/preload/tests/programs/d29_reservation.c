/* Eight tebibytes without rights, as InnoDB reserves them, and pieces of it made usable later, by
   mprotect and by MAP_FIXED. Prints "d29 right". */
#include "defects.h"

#define ALL (8ul << 40)
#define STEP (ALL / 16)
#define PIECE (8 * MIB)

int main(void)
{
	watch(10);
	for (int round = 0; round < 3; round++) {
		/* In a small program, in one whose memory is managed, and again after it is undone. */
		unsigned char *p = mmap(NULL, ALL, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
		CHECK(p != MAP_FAILED);
		unsigned char *other = map(4 * MIB);
		fill(other, 99, 4 * MIB);
		step();
		for (size_t i = 0; i < 16; i++) {
			unsigned char *at = p + i * STEP + i * 5 * PAGE;
			if (i % 2 == 0)
				CHECK(mprotect(at, PIECE, RW) == 0);
			else
				CHECK(mmap(at, PIECE, RW, ANON | MAP_FIXED, -1, 0) == at);
			CHECK(zero(at, PAGE));
			fill(at, i, PIECE);
			step();
		}
		/* The very last page. */
		CHECK(mprotect(p + ALL - PAGE, PAGE, RW) == 0);
		p[ALL - 1] = 1;
		for (size_t i = 0; i < 16; i++) {
			unsigned char *at = p + i * STEP + i * 5 * PAGE;
			CHECK(right(at, i, PIECE));
			if (i % 4 == 2) {
				CHECK(madvise(at, PIECE, MADV_DONTNEED) == 0 && zero(at, PIECE));
			} else if (i % 4 == 3) {
				int flags = ANON | MAP_FIXED | MAP_NORESERVE;
				CHECK(mmap(at, PIECE, PROT_NONE, flags, -1, 0) == at);
				CHECK(mprotect(at, PIECE, RW) == 0 && zero(at, PIECE));
			} else {
				continue;
			}
			fill(at, i + 50, PIECE);
			step();
		}
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(right_page(p, 0, 7) && p[ALL - 1] == 1 ? 0 : 7);
		CHECK(well(pid, "child"));
		for (size_t i = 0; i < 16; i++) {
			uint64_t seed = i % 4 >= 2 ? i + 50 : i;
			CHECK(right(p + i * STEP + i * 5 * PAGE, seed, PIECE));
		}
		CHECK(right(other, 99, 4 * MIB));
		CHECK(munmap(p, ALL) == 0 && munmap(other, 4 * MIB) == 0);
		step();
	}
	puts("d29 right");
	return 0;
}
