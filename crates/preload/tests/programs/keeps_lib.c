/* A library that is loaded so that it sees libc before anything that was preloaded: what it frees
   and hands out is libc's. */
#include <stdlib.h>
#include <string.h>

void give_back(char *block)
{
	free(block);
}

char *take(size_t bytes)
{
	char *block = malloc(bytes);
	memset(block, 3, bytes);
	return block;
}
