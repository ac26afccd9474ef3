/* Memory that the program maps, moves and discards by instructions of its own holds its bytes, and is
   inside the limit (its argument, MiB) a moment after it was touched. Prints "adopted right". */
#include "defects.h"

#define BYTES (192 * MIB)
#define SLACK (16 * MIB)

static size_t limit;

static unsigned char *raw_map(void *at, size_t bytes, int flags)
{
	long p = by_instruction(SYS_mmap, at, bytes, RW, ANON | flags, -1);
	CHECK(p > 0);
	return (unsigned char *)p;
}

static size_t resident(void)
{
	char line[200];
	size_t kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "RssAnon: %zu kB", &kib);
	fclose(f);
	return kib << 10;
}

/* Whoever looks does so by the CPU time that is used. */
static void within_the_limit(void)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		if (resident() <= limit + SLACK)
			return;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < 5);
	CHECK(resident() <= limit + SLACK);
}

static void whole(void)
{
	unsigned char *p = raw_map(NULL, BYTES, 0);
	fill(p, 1, BYTES);
	within_the_limit();
	CHECK(right(p, 1, BYTES));
	CHECK(by_instruction(SYS_munmap, p, BYTES, 0, 0, 0) == 0);
	step();
}

static void pieces(void)
{
	static unsigned char *p[BYTES / MIB];
	for (size_t i = 0; i < BYTES / MIB; i++) {
		p[i] = raw_map(NULL, MIB, 0);
		fill(p[i], i, MIB);
	}
	within_the_limit();
	for (size_t i = 0; i < BYTES / MIB; i++) {
		CHECK(right(p[i], i, MIB));
		CHECK(by_instruction(SYS_munmap, p[i], MIB, 0, 0, 0) == 0);
	}
	step();
}

/* Grown by mremap, in place or to another one, as a buffer is. */
static void grown(void)
{
	size_t bytes = MIB;
	unsigned char *p = raw_map(NULL, bytes, 0);
	fill(p, 2, bytes);
	while (bytes < BYTES) {
		long q = by_instruction(SYS_mremap, p, bytes, 2 * bytes, MREMAP_MAYMOVE, 0);
		CHECK(q > 0);
		p = (unsigned char *)q;
		for (size_t i = bytes / PAGE; i < 2 * bytes / PAGE; i++)
			fill_page(p, 2, i);
		bytes *= 2;
		CHECK(right(p, 2, bytes));
		step();
	}
	within_the_limit();
	CHECK(right(p, 2, bytes));
	/* To and fro, over something else, and the old place is used at once. */
	unsigned char *other = raw_map(NULL, bytes, 0);
	for (int turn = 0; turn < 6; turn++) {
		long q = by_instruction(SYS_mremap, p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
					(long)other);
		CHECK(q == (long)other);
		unsigned char *here = raw_map(p, bytes, MAP_FIXED_NOREPLACE);
		CHECK(here == p && here[17 * PAGE] == 0);
		here[17 * PAGE] = 1;
		CHECK(right(other, 2, bytes));
		other = p;
		p = (unsigned char *)q;
		step();
	}
	CHECK(by_instruction(SYS_munmap, p, bytes, 0, 0, 0) == 0);
	CHECK(by_instruction(SYS_munmap, other, bytes, 0, 0, 0) == 0);
}

/* A part that a mapping has grown by is a mapping by itself. */
static void parted(void)
{
	size_t bytes = 64 * MIB;
	unsigned char *p = raw_map(NULL, 2 * bytes, 0);
	CHECK(by_instruction(SYS_munmap, p + bytes, bytes, 0, 0, 0) == 0);
	fill(p, 6, bytes);
	for (int turn = 0; turn < 1000 && !is_managed((uintptr_t)p); turn++)
		step();
	CHECK(by_instruction(SYS_mremap, p, bytes, 2 * bytes, 0, 0) == (long)p);
	CHECK(by_instruction(SYS_madvise, p + bytes, bytes, MADV_DONTDUMP, 0, 0) == 0);
	for (size_t i = bytes / PAGE; i < 2 * bytes / PAGE; i++)
		fill_page(p, 6, i);
	CHECK(right(p, 6, 2 * bytes));
	CHECK(by_instruction(SYS_munmap, p, 2 * bytes, 0, 0, 0) == 0);
}

/* A place that is mapped anew and discarded all the time, beside memory that is kept. */
static void reused(void)
{
	size_t bytes = 32 * MIB;
	unsigned char *kept = raw_map(NULL, BYTES / 2, 0);
	fill(kept, 3, BYTES / 2);
	for (size_t turn = 0; turn < 40; turn++) {
		unsigned char *p = raw_map((void *)0x100000000, bytes, MAP_FIXED);
		for (size_t i = 0; i < bytes / PAGE; i++)
			CHECK(p[i * PAGE] == 0);
		fill(p, turn, bytes);
		CHECK(right(p, turn, bytes));
		CHECK(by_instruction(SYS_madvise, p, bytes / 2, MADV_DONTNEED, 0, 0) == 0);
		for (size_t i = 0; i < bytes / 2 / PAGE; i++)
			CHECK(p[i * PAGE] == 0);
		CHECK(turn % 8 || right(kept, 3, BYTES / 2));
		step();
	}
	within_the_limit();
	CHECK(right(kept, 3, BYTES / 2));
}

/* A child has what its parent had, and each its own then. */
static void forked(void)
{
	unsigned char *p = raw_map(NULL, BYTES / 2, 0);
	fill(p, 4, BYTES / 2);
	within_the_limit();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		int was = right(p, 4, BYTES / 2);
		fill(p, 5, BYTES / 4);
		_exit(was && right(p, 5, BYTES / 4) ? 0 : 3);
	}
	CHECK(well(pid, "child"));
	CHECK(right(p, 4, BYTES / 2));
}

int main(int count, char **args)
{
	CHECK(count == 2);
	limit = strtoul(args[1], NULL, 10) * MIB;
	watch(20);
	/* Managed before; and where deckle has its own memory, as Go's heap may lie. */
	unsigned char *first = map(4 * MIB);
	fill(first, 9, 4 * MIB);
	void *place = (void *)(59ul << 40);
	unsigned char *far = mmap(place, 32 * MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(far == place);
	fill(far, 8, 32 * MIB);
	whole();
	pieces();
	grown();
	parted();
	reused();
	forked();
	CHECK(right(first, 9, 4 * MIB) && right(far, 8, 32 * MIB));
	puts("adopted right");
	return 0;
}
