/* After a fork nearly all that is resident is shared, and reclaim passes it by: what was evicted
   before has no room to come back to, until a child gives up what it shares.
   crowded parent|child|stranger: who works then. The others sleep. */
#include "defects.h"

#define BYTES ((size_t)100 << 20)
#define HOT ((size_t)12 << 20)
#define ROUNDS 400

/* What was filled first lies in the store. */
static int work(const unsigned char *p, uint64_t seed)
{
	for (int round = 0; round < ROUNDS; round++)
		if (!right(p, seed, HOT))
			return 0;
	return 1;
}

static void tell(int fd)
{
	CHECK(write(fd, "x", 1) == 1);
}

static void hear(int fd)
{
	char c;
	CHECK(read(fd, &c, 1) == 1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	int begin[2], done[2];
	CHECK(!pipe(begin) && !pipe(done));
	pid_t stranger = fork();
	if (!stranger) {
		hear(begin[0]);
		unsigned char *q = map(HOT);
		fill(q, 2, HOT);
		CHECK(work(q, 2));
		tell(done[1]);
		_exit(7);
	}
	unsigned char *p = map(BYTES);
	fill(p, 1, BYTES);
	int go[2];
	CHECK(!pipe(go));
	pid_t child = fork();
	if (!child) {
		if (*argv[1] == 'c') {
			CHECK(work(p, 1));
			tell(done[1]);
		}
		hear(go[0]);
		CHECK(right(p, 1, BYTES));
		_exit(7);
	}
	if (*argv[1] == 'p') {
		CHECK(work(p, 1));
		tell(done[1]);
	}
	if (*argv[1] == 's')
		tell(begin[1]);
	hear(done[0]);
	tell(go[1]);
	CHECK(right(p, 1, BYTES));
	int status;
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
	if (*argv[1] != 's')
		tell(begin[1]);
	CHECK(waitpid(stranger, &status, 0) == stranger && WEXITSTATUS(status) == 7);
	puts("crowded right");
	return 0;
}
