/* A library whose constructor, which runs before a preloaded library's, has more than a small
   program has. */
#include <stdlib.h>
#include <string.h>

char *early[64];

__attribute__((constructor)) static void begin(void)
{
	for (int i = 0; i < 64; i++) {
		early[i] = malloc(70000);
		memset(early[i], i + 1, 70000);
	}
}
