/* The programs that are started: nothing; a chain of execs (`N`: so many more); one that outgrows
   its first megabyte (`grow`). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 2)
		return 0;
	if (strcmp(argv[1], "grow") == 0) {
		size_t n = 2 << 20;
		volatile char *p = malloc(n);
		for (size_t i = 0; p && i < n; i += 4096)
			p[i] = 1;
		return p ? 0 : 1;
	}
	int left = atoi(argv[1]);
	char text[20];
	if (left == 0)
		return 0;
	snprintf(text, sizeof text, "%d", left - 1);
	execl(argv[0], argv[0], text, (char *)NULL);
	return 1;
}
