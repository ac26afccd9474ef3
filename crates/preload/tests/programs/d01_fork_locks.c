/* A fork while other threads hold a lock that the fork, too, needs: of stdio, of the name service,
   of the loader, of a library with handlers of its own (pthread_atfork). Prints "d01 right".
   The argument says which lock. */
#include "defects.h"
#include "busy.h"

int main(int argc, char **argv)
{
	pthread_t t[2];
	watch(10);
	unsigned char *p = map(8 * MIB);
	fill(p, 1, 8 * MIB);
	busy_start(argc > 1 ? argv[1] : "stdio", 2, t);
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(right_page(p, 1, (size_t)i) ? 0 : 7);
		CHECK(well(pid, "child"));
		step();
	}
	CHECK(right(p, 1, 8 * MIB));
	busy_end(2, t);
	puts("d01 right");
	return 0;
}
