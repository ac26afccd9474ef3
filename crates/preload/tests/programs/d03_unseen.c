/* What a program does to memory that is away by system calls of its own instructions, which nobody
   hears: the argument says what. A discarded page holds zeros from then on, and its neighbours what
   they held. Prints "d03 right". */
#include "defects.h"

#define PAGES 4096ul
#define BYTES (PAGES * PAGE)

static int gone[PAGES];

/* Some pages alone, some in rows, some blocks. */
static void discard(unsigned char *p)
{
	for (size_t i = 0; i < PAGES; ) {
		uint64_t r = mixed(i + 7);
		size_t n = r % 5 == 0 ? 512 : r % 3 == 0 ? r / 16 % 40 + 1 : 1;
		n = n < PAGES - i ? n : PAGES - i;
		if (r / 64 % 2) {
			CHECK(by_instruction(SYS_madvise, p + i * PAGE, n * PAGE, MADV_DONTNEED, 0, 0) == 0);
			for (size_t k = i; k < i + n; k++)
				gone[k] = 1;
		}
		i += n;
	}
}

static int as_left(const unsigned char *p)
{
	for (size_t i = 0; i < PAGES; i++) {
		if (i % 64 == 0)
			step();
		if (gone[i] ? !zero(p + i * PAGE, PAGE) : !right_page(p, 5, i)) {
			fprintf(stderr, "page %zu, discarded: %d, begins with %lx\n", i, gone[i],
				*(const unsigned long *)(p + i * PAGE));
			return 0;
		}
	}
	return 1;
}

static unsigned char *away(void)
{
	unsigned char *p = map(BYTES);
	fill(p, 5, BYTES);
	evict(p, BYTES);
	return p;
}

static void in_child(unsigned char *p)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(as_left(p) ? 0 : 1);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A thread has pages evicted all the time, of which this one discards some. */
static unsigned char *shared;
static void *presses(void *unused)
{
	(void)unused;
	for (;;)
		evict(shared, BYTES / 16);
	return NULL;
}

static void race(void)
{
	shared = map(BYTES / 16);
	size_t pages = PAGES / 16;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, presses, NULL) == 0);
	long old = 0, rounds = 0;
	for (double end = now() + 3; now() < end; rounds++) {
		fill(shared, 5, BYTES / 16);
		for (size_t i = 0; i < pages; i += 2) {
			unsigned char *page = shared + i * PAGE;
			CHECK(by_instruction(SYS_madvise, page, PAGE, MADV_DONTNEED, 0, 0) == 0);
		}
		for (size_t i = 0; i < pages; i++)
			if (i % 2)
				CHECK(right_page(shared, 5, i));
			else
				old += !zero(shared + i * PAGE, PAGE);
		step();
	}
	fprintf(stderr, "old bytes: %ld of %ld\n", old, rounds * (long)(pages / 2));
	/* What a discard meets on its way is not told: microseconds (docs/limits.md). */
	CHECK(old * 100 <= rounds * (long)(pages / 2));
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	watch(20);
	if (strcmp(how, "race") == 0) {
		race();
		puts("d03 right");
		return 0;
	}
	unsigned char *p = away();
	if (strcmp(how, "touch") == 0) {
		discard(p);
	} else if (strcmp(how, "twice") == 0) {
		/* Discarded, written, away again. */
		discard(p);
		CHECK(as_left(p));
		fill(p, 5, BYTES);
		memset(gone, 0, sizeof gone);
		evict(p, BYTES);
		CHECK(as_left(p));
		evict(p, BYTES);
		discard(p);
	} else if (strcmp(how, "fork") == 0) {
		discard(p);
		in_child(p);
		CHECK(as_left(p));
		evict(p, BYTES);
		in_child(p);
	} else if (strcmp(how, "child") == 0) {
		/* In a child, whose pages were away before. */
		pid_t child = fork();
		CHECK(child >= 0);
		if (child > 0) {
			int status;
			CHECK(waitpid(child, &status, 0) == child && status == 0);
		} else {
			watch(20);
		}
		if (child == 0)
			discard(p);
		CHECK(as_left(p));
		if (child == 0)
			_exit(0);
	} else if (strcmp(how, "move") == 0) {
		discard(p);
		p = mremap(p, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
		CHECK(p != MAP_FAILED);
		CHECK(as_left(p));
		evict(p, BYTES);
		unsigned char *to = map(BYTES + PAGE) + PAGE;
		CHECK(mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		p = to;
		discard(p);
	} else if (strcmp(how, "populate") == 0) {
		discard(p);
		CHECK(madvise(p, BYTES / 2, MADV_WILLNEED) == 0);
		CHECK(madvise(p + BYTES / 2, BYTES / 2, MADV_POPULATE_READ) == 0);
	} else if (strcmp(how, "lock") == 0) {
		discard(p);
		/* No more at once than an ordinary user may. */
		for (size_t at = 0; at < BYTES; at += 4 * MIB)
			CHECK(mlock(p + at, 4 * MIB) == 0 && munlock(p + at, 4 * MIB) == 0);
	} else if (strcmp(how, "collapse") == 0) {
		discard(p);
		madvise(p, BYTES, 25 /* MADV_COLLAPSE */);
	} else if (strcmp(how, "rights") == 0) {
		CHECK(as_left(p));
		CHECK(mprotect(p, BYTES / 2, PROT_READ) == 0);
		CHECK(mprotect(p + BYTES / 2, BYTES / 2, PROT_NONE) == 0);
		evict(p, BYTES);
		discard(p);
		CHECK(mprotect(p, BYTES, RW) == 0);
	} else if (strcmp(how, "unmap") == 0) {
		for (size_t i = 0; i < PAGES; i += 8, step()) {
			unsigned char *page = p + i * PAGE;
			if (i % 16)
				CHECK(by_instruction(SYS_munmap, page, PAGE, 0, 0, 0) == 0);
			CHECK(by_instruction(SYS_mmap, page, PAGE, RW, ANON | MAP_FIXED, -1) == (long)page);
			gone[i] = 1;
		}
		CHECK(as_left(p));
		for (size_t i = 0; i < PAGES; i += 8)
			p[i * PAGE] = 1, p[i * PAGE] = 0;
		madvise(p, BYTES, MADV_WILLNEED);
		madvise(p, BYTES, MADV_PAGEOUT);
	} else if (strcmp(how, "over") == 0) {
		/* Mapped over while it was there: what is new there is not ours to take. */
		CHECK(as_left(p));
		for (size_t i = 0; i < PAGES; i += 8, step()) {
			unsigned char *page = p + i * PAGE;
			CHECK(by_instruction(SYS_mmap, page, PAGE, RW, ANON | MAP_FIXED, -1) == (long)page);
			fill_page(p, 5, i);
		}
		evict(p, BYTES);
		evict(p, BYTES);
	} else if (strcmp(how, "again") == 0) {
		/* Unmapped unseen, and mapped again where it was, seen. */
		CHECK(by_instruction(SYS_munmap, p, BYTES, 0, 0, 0) == 0);
		unsigned char *q = mmap(p, BYTES, RW, ANON, -1, 0);
		CHECK(q != MAP_FAILED);
		fprintf(stderr, "%s\n", p == q ? "the same place" : "elsewhere");
		p = q;
		for (size_t i = 0; i < PAGES; i++)
			gone[i] = 1;
		CHECK(as_left(p));
		fill(p, 5, BYTES);
		memset(gone, 0, sizeof gone);
		evict(p, BYTES);
	} else if (strcmp(how, "mremap") == 0) {
		unsigned char *to = map(2 * BYTES);
		long at = by_instruction(SYS_mremap, p, BYTES, BYTES,
					 MREMAP_MAYMOVE | MREMAP_FIXED, (long)to);
		CHECK(at == (long)to);
		p = to;
	} else {
		return 2;
	}
	CHECK(as_left(p));
	puts("d03 right");
	return 0;
}
