/* What the programs share. Included first, since it asks for all that the headers offer. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

/* Ends the program if the condition does not hold, and says where. One write: a signal handler may
   ask, too. */
#define CHECK(c) do { if (!(c)) failed(__LINE__, #c); } while (0)

static void failed(int line, const char *what)
{
	char text[300];
	int error = errno, n = snprintf(text, sizeof text, "line %d: %s (errno %d)\n", line, what, error);
	if (n > (int)sizeof text - 1)
		n = sizeof text - 1;
	if (write(1, text, n) < 0) {}
	_exit(1);
}
