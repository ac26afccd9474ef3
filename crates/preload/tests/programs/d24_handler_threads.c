/* A program whose handlers of pthread_atfork, registered before all others, make threads and execute
   programs while a fork is under way. Prints "d24 right". */
#include "defects.h"
#include <spawn.h>

#define BYTES (96 * MIB)

static unsigned char *p;
static long threads, wrong;
static volatile sig_atomic_t heard;

static void hear(int number)
{
	heard = number;
}

/* A thread has its own stack and the mask of who has made it, and can fault, map and be signalled. */
static void *thread(void *argument)
{
	volatile unsigned char here[16384];
	sigset_t mask;
	for (size_t i = 0; i < sizeof here; i++)
		here[i] = (unsigned char)i;
	wrong += here[300] != (unsigned char)300;
	wrong += pthread_sigmask(SIG_SETMASK, NULL, &mask) != 0 || sigismember(&mask, SIGUSR2) != 1
		|| sigismember(&mask, SIGUSR1) != 0 || sigismember(&mask, SIGTERM) != 0;
	for (size_t i = (size_t)argument; i < BYTES / PAGE; i += 97)
		wrong += !right_page(p, 24, i);
	unsigned char *own = map(MIB);
	fill(own, 25, MIB);
	wrong += !right(own, 25, MIB) || munmap(own, MIB) != 0;
	heard = 0;
	raise(SIGUSR1);
	wrong += heard != SIGUSR1;
	__atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);
	return argument;
}

static void prepare(void)
{
	static char *arguments[] = {"true", NULL}, *none[] = {NULL};
	pthread_t t;
	void *said;
	pid_t pid;
	int status = -1;
	if (p == NULL)
		return;
	for (size_t i = 0; i < 3; i++) {
		CHECK(pthread_create(&t, NULL, thread, (void *)i) == 0);
		CHECK(pthread_join(t, &said) == 0 && said == (void *)i);
	}
	CHECK(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, none) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* By the call alone, on this stack. */
	pid = vfork();
	if (pid == 0)
		_exit(7);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 7 << 8);
}

static void register_first(void)
{
	CHECK(pthread_atfork(prepare, NULL, NULL) == 0);
}

__attribute__((section(".preinit_array"), used)) static void (*first)(void) = register_first;

int main(void)
{
	sigset_t blocked;
	unsigned char *memory = map(BYTES);
	fill(memory, 24, BYTES);
	signal(SIGUSR1, hear);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
	p = memory;
	alarm(100);
	for (size_t i = 0; i < 5; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(right_page(p, 24, i * 1000) && right_page(p, 24, BYTES / PAGE - 1) ? 0 : 5);
		CHECK(well(pid, "child"));
	}
	CHECK(threads == 15 && wrong == 0 && right(p, 24, BYTES));
	puts("d24 right");
	return 0;
}
