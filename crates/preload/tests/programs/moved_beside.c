/* Evicted pages that the program discards by an instruction beside a thread that moves other managed
   memory ("discarded"); pages of zeros that it moves while a thread reads their neighbours
   ("zeros"): no page holds what it should not. Prints "moved beside right". */
#include "defects.h"
#include <stdatomic.h>

#define PAGES 64ul
#define BYTES (PAGES * PAGE)
#define HALF 8ul

static atomic_int stop;
static unsigned moves;

static void move(const void *from, size_t bytes, void *to)
{
	CHECK(by_instruction(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (long)to) ==
	      (long)to);
}

static void *moves_all_the_time(void *first)
{
	unsigned char *at = first, *to = at + 4 * MIB;
	for (; !stop; moves++) {
		move(at, 16 * PAGE, to);
		unsigned char *from = at;
		at = to;
		to = from;
	}
	return NULL;
}

static void *reserved(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void discarded(void)
{
	unsigned char *other = map(8 * MIB), *room = reserved(BYTES);
	CHECK(munmap(other + 16 * PAGE, 8 * MIB - 16 * PAGE) == 0);
	fill(other, 1, 16 * PAGE);
	evict(other, 16 * PAGE);
	CHECK(right(other, 1, 16 * PAGE));
	pthread_t mover;
	CHECK(pthread_create(&mover, NULL, moves_all_the_time, other) == 0);
	unsigned rounds = 0;
	for (double end = now() + 4; now() < end; rounds++) {
		unsigned char *p = map(BYTES);
		fill(p, rounds, BYTES);
		evict(p, BYTES);
		CHECK(by_instruction(SYS_madvise, p, BYTES, MADV_DONTNEED, 0, 0) == 0);
		if (rounds % 2) {
			CHECK(mremap(p, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
			p = room;
		}
		CHECK(zero(p, BYTES));
		if (p == room)
			CHECK(mmap(p, BYTES, PROT_NONE, ANON | MAP_NORESERVE | MAP_FIXED, -1, 0) == p);
		else
			CHECK(munmap(p, BYTES) == 0);
		step();
	}
	stop = 1;
	CHECK(pthread_join(mover, NULL) == 0);
	fprintf(stderr, "rounds: %u\nmoves: %u\n", rounds, moves);
}

static unsigned char *volatile read_at;
static atomic_uint wanted, done;

static void *reads(void *unused)
{
	for (unsigned round = 1;; round++) {
		while (wanted < round)
			if (stop)
				return unused;
		volatile unsigned char byte = *(volatile unsigned char *)read_at;
		(void)byte;
		done = round;
	}
}

/* The first half is read, around which deckle shows zeros, while the second one is moved. */
static void zeros(void)
{
	uintptr_t room = (uintptr_t)reserved(4 * MIB);
	unsigned char *to = (unsigned char *)((room + 2 * MIB) & -(2 * MIB));
	pthread_t reader;
	CHECK(pthread_create(&reader, NULL, reads, NULL) == 0);
	unsigned rounds = 0, seed = 1;
	for (double end = now() + 4; now() < end;) {
		unsigned char *all = map(4 * HALF * PAGE);
		uintptr_t last_part = (uintptr_t)all + 2 * HALF * PAGE - 1;
		unsigned char *p = (unsigned char *)(last_part & -(2 * HALF * PAGE));
		memset(p, 0, 2 * HALF * PAGE);
		evict(p, 2 * HALF * PAGE);
		read_at = p;
		wanted = ++rounds;
		for (volatile int pause = rand_r(&seed) % 100000; pause > 0; pause--) {}
		move(p + HALF * PAGE, HALF * PAGE, to);
		while (done < rounds) {}
		for (size_t i = 0; i < HALF; i++)
			*(uint64_t *)(to + i * PAGE) = rounds * 100 + i + 1;
		unsigned char *last = to + MIB;
		CHECK(mremap(to, HALF * PAGE, HALF * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, last) == last);
		for (size_t i = 0; i < HALF; i++)
			CHECK(*(uint64_t *)(last + i * PAGE) == rounds * 100 + i + 1);
		CHECK(munmap(last, HALF * PAGE) == 0 && munmap(all, 4 * HALF * PAGE) == 0);
		step();
	}
	stop = 1;
	CHECK(pthread_join(reader, NULL) == 0);
	fprintf(stderr, "rounds: %u\n", rounds);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	watch(60);
	/* There is something to manage. */
	fill(map(8 * MIB), 9, 8 * MIB);
	if (strcmp(argv[1], "discarded") == 0)
		discarded();
	else
		zeros();
	puts("moved beside right");
	return 0;
}
