/* Threads that allocate, grow, free and check blocks of all sizes, by whatever malloc there is. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, SLOTS = 6000, STEPS = 120000 };

struct block {
	unsigned char *at;
	size_t bytes;
	unsigned seed;
};

static uint64_t next(uint64_t *r)
{
	*r ^= *r << 13;
	*r ^= *r >> 7;
	*r ^= *r << 17;
	return *r;
}

static unsigned char byte(unsigned seed, size_t i)
{
	return (unsigned char)(i % 16 < 4 ? seed * 2654435761u >> (i % 4 * 8) : i >> 8);
}

static void fill(struct block *b, size_t from)
{
	for (size_t i = from; i < b->bytes; i++)
		b->at[i] = byte(b->seed, i);
}

static void check(const struct block *b, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (b->at[i] != byte(b->seed, i)) {
			printf("byte %zu of %zu is wrong\n", i, b->bytes);
			exit(1);
		}
}

static size_t size(uint64_t r)
{
	switch (r % 16) {
	case 0:
		return 64 << 10 | (r >> 8 & 0xffff);
	case 1:
	case 2:
		return 8 << 10 | (r >> 8 & 0xfff);
	default:
		return 16 + (r >> 8 & 0x1fff);
	}
}

static void *work(void *me)
{
	struct block *blocks = calloc(SLOTS, sizeof *blocks);
	uint64_t r = 88172645463325252u + (uintptr_t)me;
	uint64_t *sum = malloc(sizeof *sum);
	*sum = 0;
	for (unsigned n = 0; n < STEPS; n++) {
		struct block *b = &blocks[next(&r) % SLOTS];
		size_t bytes = size(next(&r));
		if (!b->at || next(&r) % 3) {
			if (b->at)
				check(b, b->bytes);
			free(b->at);
			*b = (struct block){ malloc(bytes), bytes, n };
			fill(b, 0);
		} else {
			size_t old = b->bytes;
			b->at = realloc(b->at, bytes);
			b->bytes = bytes;
			check(b, old < bytes ? old : bytes);
			fill(b, old < bytes ? old : bytes);
		}
	}
	for (int i = 0; i < SLOTS; i++) {
		if (blocks[i].at)
			check(&blocks[i], blocks[i].bytes);
		*sum = *sum * 31 + blocks[i].bytes + blocks[i].seed;
		free(blocks[i].at);
	}
	free(blocks);
	return sum;
}

int main(void)
{
	pthread_t t[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, work, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++) {
		uint64_t *sum;
		pthread_join(t[i], (void **)&sum);
		printf("%d %016llx\n", i, (unsigned long long)*sum);
		free(sum);
	}
	return 0;
}
