/* A program for debuggers that come later: memory of which a part is away, and a loop over
   functions of libc, a fork among them. Says its number and where that memory is; ends at SIGUSR1,
   if all is right. */
#include "defects.h"

#define BYTES (48 << 20)
#define AWAY (16 << 20)

static volatile sig_atomic_t ended;
/* For who debugs without types. */
unsigned char *memory;

static void end(int signal)
{
	ended = signal;
}

int main(void)
{
	struct sigaction act = {.sa_handler = end, .sa_flags = SA_RESTART};
	CHECK(sigaction(SIGUSR1, &act, NULL) == 0);
	memory = map(BYTES);
	fill(memory, 15, BYTES);
	evict(memory, AWAY);
	int zeros = open("/dev/zero", O_RDWR);
	CHECK(zeros >= 0);
	printf("ready %d %p\n", getpid(), (void *)memory);
	fflush(stdout);
	long rounds = 0;
	for (; !ended; rounds++) {
		char *block = malloc(3000 + rounds % 100000);
		CHECK(block != NULL);
		CHECK(read(zeros, block, 3000) == 3000 && write(zeros, block, 1) == 1);
		/* What debuggers look at stays away. */
		CHECK(right_page(memory, 15, (AWAY + rounds % 1000 * PAGE) / PAGE));
		free(block);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(right_page(memory, 15, AWAY / PAGE) ? 0 : 1);
		CHECK(well(pid, "child"));
		pause_ms(1);
	}
	CHECK(right(memory, 15, BYTES));
	printf("rounds %ld\nd15 right\n", rounds);
	return 0;
}
