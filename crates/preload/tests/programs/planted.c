/* Errors for tools to find: "write" behind the end of a block, "race" of two threads, "twice" a block
   that is freed twice. With "none": some memory, and nothing wrong. Prints "planted". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int word;
/* So that no compiler leaves a block out. */
static char *volatile kept;

static void *adds(void *unused)
{
	(void)unused;
	word++;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "none";
	for (int i = 0; i < 40; i++) {
		kept = malloc(4 << 20);
		memset(kept, i, 4 << 20);
		free(kept);
	}
	char *block = kept = malloc(10);
	if (strcmp(what, "write") == 0)
		((volatile char *)block)[10] = 1;
	if (strcmp(what, "race") == 0) {
		pthread_t thread;
		pthread_create(&thread, NULL, adds, NULL);
		word++;
		pthread_join(thread, NULL);
	}
	free(block);
	if (strcmp(what, "twice") == 0)
		free(block);
	puts("planted");
	return 0;
}
