/* A library whose constructor, which runs before a preloaded library's, has more than a small
   program has; with THREADS a thread of it. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

char *early[64];

static void *take(void *none)
{
	for (int i = 0; i < 64; i++) {
		early[i] = malloc(70000);
		memset(early[i], i + 1, 70000);
	}
	return none;
}

#define BLOCKS 60

static char *kept[BLOCKS];

static void want(int is_right)
{
	if (!is_right)
		abort();
}

static void holds(const char *block, int size, int value)
{
	for (int i = 0; i < size; i++)
		want(block[i] == value);
}

/* Early blocks are what later ones are, and each call takes them. */
static void small_ones(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		int size = i * 97 % 5000;
		char *block = i % 2 ? malloc(size) : calloc(size, 1);
		want(block != NULL && (uintptr_t)block % 16 == 0);
		want((int)malloc_usable_size(block) >= size);
		if (i % 2 == 0)
			holds(block, size, 0);
		memset(block, i, size);
		kept[i] = block;
		free(malloc(size));
		free(NULL);
	}
	void *aligned;
	want(posix_memalign(&aligned, 4096, 100) == 0 && (uintptr_t)aligned % 4096 == 0);
	free(aligned);
	volatile size_t huge = SIZE_MAX / 2;
	want(calloc(huge, 3) == NULL && realloc(kept[1], huge) == NULL);
}

__attribute__((destructor)) static void end(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		int size = i * 97 % 5000, more = i % 3 * 4000 + size + 1;
		if (i % 5 == 0) {
			holds(kept[i], size, i);
			free(kept[i]);
			continue;
		}
		char *block = realloc(kept[i], more);
		want(block != NULL && (int)malloc_usable_size(block) >= more);
		holds(block, size, i);
		memset(block, 1, more);
		free(block);
	}
}

__attribute__((constructor)) static void begin(void)
{
	small_ones();
#ifdef THREADS
	pthread_t thread;
	if (pthread_create(&thread, NULL, take, NULL) != 0 || pthread_join(thread, NULL) != 0)
		abort();
#else
	take(NULL);
#endif
}
