/* A library whose constructor, which runs before a preloaded library's, has more than a small
   program has; with THREADS a thread of it. */
#include <pthread.h>
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

__attribute__((constructor)) static void begin(void)
{
#ifdef THREADS
	pthread_t thread;
	if (pthread_create(&thread, NULL, take, NULL) != 0 || pthread_join(thread, NULL) != 0)
		abort();
#else
	take(NULL);
#endif
}
