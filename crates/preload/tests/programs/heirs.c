/* What a forked child has of memory that the parent keeps to itself (MADV_DONTFORK) or wants wiped
   (MADV_WIPEONFORK), and its own child. Prints "heirs right". */
#include "check.h"
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define PART (8 * MIB)

static void fill(unsigned char *p, uint64_t seed, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i += 16)
		((uint64_t *)p)[i] = (seed << 32 | i) * 0x9e3779b97f4a7c15u | 1;
}

static int right(unsigned char *p, uint64_t seed, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i += 16)
		if (((uint64_t *)p)[i] != (seed ? (seed << 32 | i) * 0x9e3779b97f4a7c15u | 1 : 0))
			return 0;
	return 1;
}

static unsigned char *map(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes, RW, ANON, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void wait_for(pid_t pid)
{
	int status;
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

/* Four parts: had, not had, wiped but for a page on each side, had. */
static void child(unsigned char *p)
{
	unsigned char there, *kept = p + PART, *wiped = p + 2 * PART + PAGE;
	for (size_t i = 0; i < PART; i += PAGE)
		CHECK(syscall(SYS_mincore, kept + i, PAGE, &there) != 0 && errno == ENOMEM);
	CHECK(right(p, 2, PART) && right(p + 3 * PART, 5, PART));
	CHECK(right(wiped, 0, PART - 2 * PAGE));
	CHECK(right(wiped - PAGE, 4, PAGE) && right(p + 3 * PART - PAGE, 6, PAGE));
	fill(p, 8, PART);
	fill(wiped, 9, PART - 2 * PAGE);
	CHECK(mmap(kept, PART, RW, ANON, -1, 0) == kept && right(kept, 0, PART));
	fill(kept, 7, PART);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(right(p, 8, PART) && right(kept, 7, PART) && right(wiped, 0, PART - 2 * PAGE));
		_exit(0);
	}
	wait_for(pid);
	CHECK(right(kept, 7, PART) && right(wiped, 9, PART - 2 * PAGE));
}

int main(void)
{
	unsigned char *large = map(96 * MIB), *p = map(4 * PART);
	fill(large, 1, 96 * MIB);
	fill(p, 2, PART);
	fill(p + PART, 3, PART);
	fill(p + 2 * PART, 4, PART);
	fill(p + 3 * PART - PAGE, 6, PAGE);
	fill(p + 3 * PART, 5, PART);
	CHECK(madvise(p + PART, PART, MADV_DONTFORK) == 0);
	CHECK(madvise(p + 2 * PART + PAGE, PART - 2 * PAGE, MADV_WIPEONFORK) == 0);
	for (int round = 0; round < 6; round++) {
		if (round % 2)
			CHECK(madvise(p, 4 * PART, MADV_PAGEOUT) == 0);
		pid_t pid = fork();
		if (pid == 0) {
			child(p);
			_exit(0);
		}
		wait_for(pid);
		CHECK(right(p, 2, PART) && right(p + PART, 3, PART) && right(p + 3 * PART, 5, PART));
		CHECK(right(p + 2 * PART, 4, PART - PAGE) && right(p + 3 * PART - PAGE, 6, PAGE));
	}
	CHECK(right(large, 1, 96 * MIB));
	puts("heirs right");
	return 0;
}
