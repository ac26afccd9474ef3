/* One thread makes children by the clone system call, another by fork, both at once. Every child
   finds its bytes, those that are away too, and its writes are its own. Prints "d12 right". */
#include "defects.h"

#define BYTES (96 * MIB)
#define EACH 150

static unsigned char *memory;
static volatile int bad_raw, bad_fork;

static int child(size_t i)
{
	for (size_t k = 0; k < 8; k++) {
		size_t page = mixed(i * 8 + k) % (BYTES / PAGE);
		if (!right_page(memory, 12, page))
			return 7;
		memory[page * PAGE] ^= 0xff;
		if (right_page(memory, 12, page))
			return 8;
	}
	return 0;
}

static void *raw(void *unused)
{
	for (size_t i = 0; i < EACH; i++) {
		long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		CHECK(pid >= 0);
		if (pid == 0)
			syscall(SYS_exit_group, child(2 * i));
		bad_raw += !well((pid_t)pid, "child of clone");
		step();
	}
	return unused;
}

static void *libc(void *unused)
{
	for (size_t i = 0; i < EACH; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(child(2 * i + 1));
		bad_fork += !well(pid, "child of fork");
		step();
	}
	return unused;
}

int main(void)
{
	pthread_t t[2];
	watch(15);
	memory = map(BYTES);
	fill(memory, 12, BYTES);
	CHECK(pthread_create(&t[0], NULL, raw, NULL) == 0);
	CHECK(pthread_create(&t[1], NULL, libc, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	printf("children of clone not well %d, of fork %d\n", bad_raw, bad_fork);
	fflush(stdout);
	CHECK(bad_raw == 0 && bad_fork == 0);
	CHECK(right(memory, 12, BYTES));
	puts("d12 right");
	return 0;
}
