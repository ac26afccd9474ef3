/* Maps and unmaps memory by instructions of its own while another thread forks: no fork fails, and
   each child has what its parent had. Prints "mapped right". */
#include "defects.h"

#define BYTES (1ul << 20)
#define KEPT (8 * BYTES)

static unsigned char *kept;
static volatile int done;

static void *forks(void *unused)
{
	(void)unused;
	unsigned made = 0;
	for (; !done; made++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(made % 8 || right(kept, 3, KEPT) ? 0 : 1);
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	fprintf(stderr, "forks: %u\n", made);
	return NULL;
}

int main(void)
{
	watch(60);
	kept = map(KEPT);
	fill(kept, 3, KEPT);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, forks, NULL) == 0);
	unsigned rounds = 0;
	for (double end = now() + 5; now() < end; rounds++) {
		unsigned char *p = (void *)by_instruction(SYS_mmap, NULL, BYTES, RW, ANON, -1);
		fill(p, rounds, BYTES);
		/* Long enough, some of them, that they are found. */
		if (rounds % 3 == 0)
			usleep(3000);
		CHECK(right(p, rounds, BYTES));
		CHECK(by_instruction(SYS_munmap, p, BYTES, 0, 0, 0) == 0);
		step();
	}
	done = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(right(kept, 3, KEPT));
	fprintf(stderr, "rounds: %u\n", rounds);
	puts("mapped right");
	return 0;
}
