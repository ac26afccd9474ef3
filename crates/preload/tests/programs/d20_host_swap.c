/* Memory that the host swaps out all the time (who started this sees to that), while the program
   evicts it, shares it with children, changes its rights, moves it and discards parts of it. In the
   end says where it is, and stays until SIGUSR1. */
#include "defects.h"

#define BYTES (24 << 20)
#define PART (6 << 20)
#define ROUNDS 6

static volatile sig_atomic_t ended;

static void end(int signal)
{
	ended = signal;
}

/* Whether parts `from` to `to` have the pattern that all of `p` was filled with. */
static int are_right(const unsigned char *p, uint64_t seed, int from, int to)
{
	for (size_t page = (size_t)from * PART / PAGE; page < (size_t)to * PART / PAGE; page++)
		if (!right_page(p, seed, page))
			return 0;
	return 1;
}

/* The child has the same bytes, and writes on its own. */
static void fork_once(unsigned char *p, uint64_t seed)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		pause_ms(20);
		CHECK(are_right(p, seed, 0, 3));
		fill(p, seed + 100, PART);
		evict(p, PART / 2);
		pause_ms(20);
		_exit(right(p, seed + 100, PART) && are_right(p, seed, 1, 2) ? 0 : 1);
	}
	fill(p + 3 * PART, seed, PART);
	CHECK(well(pid, "child"));
}

int main(void)
{
	struct sigaction act = {.sa_handler = end, .sa_flags = SA_RESTART};
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	watch(60);
	unsigned char *p = map(BYTES);
	printf("ready %d %p\n", getpid(), (void *)p);
	fflush(stdout);
	for (uint64_t seed = 1; seed <= ROUNDS; seed++, step()) {
		fill(p, seed, BYTES);
		pause_ms(20);
		evict(p, 2 * PART);
		CHECK(are_right(p, seed, 1, 3));
		/* Read-only pages are copied out, not moved. */
		CHECK(mprotect(p + 2 * PART, PART, PROT_READ) == 0);
		pause_ms(20);
		evict(p + 2 * PART, PART);
		pause_ms(10);
		CHECK(are_right(p, seed, 2, 3));
		CHECK(mprotect(p + 2 * PART, PART, RW) == 0);
		fork_once(p, seed);
		/* A part is discarded; the rest moves. */
		CHECK(madvise(p + 3 * PART, PART / 2, MADV_DONTNEED) == 0);
		evict(p + 3 * PART, PART);
		CHECK(zero(p + 3 * PART, PART / 2));
		CHECK(are_right(p, seed, 0, 3));
		p = mremap(p, BYTES, BYTES + PAGE * 512, MREMAP_MAYMOVE);
		CHECK(p != MAP_FAILED && munmap(p + BYTES, PAGE * 512) == 0);
		CHECK(are_right(p, seed, 0, 3) && zero(p + 3 * PART, PART / 2));
	}
	fill(p, 77, BYTES);
	evict(p, PART);
	printf("quiet %d %p\n", getpid(), (void *)p);
	fflush(stdout);
	while (!ended) {
		pause_ms(10);
		step();
	}
	CHECK(right(p, 77, BYTES));
	printf("d20 right\n");
	return 0;
}
