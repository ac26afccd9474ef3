package main

/*
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 400, BYTES = 40000 };

// Blocks of many sizes, freed and made anew; their sum.
static long use(int worker)
{
	unsigned char *all[BLOCKS] = {0};
	long sum = 0;
	for (int i = 0; i < 4 * BLOCKS; i++) {
		int at = i % BLOCKS, bytes = BYTES + at * 100;
		if (all[at] && all[at][bytes - 1] != (unsigned char)(worker + at))
			abort();
		free(all[at]);
		all[at] = malloc(bytes);
		memset(all[at], worker + at, bytes);
	}
	for (int i = 0; i < BLOCKS; i++) {
		for (int k = 0; k < BYTES; k++)
			sum += all[i][k];
		free(all[i]);
	}
	return sum;
}
*/
import "C"
import "fmt"

func init() {
	beside = func(worker int) string { return fmt.Sprint(C.use(C.int(worker))) }
}
