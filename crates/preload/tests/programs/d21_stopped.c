/* A tree of processes that fork all the time is stopped for eleven seconds, as a debugger or the
   freezer does it, and goes on: nobody is killed, and nobody has lost a byte. The argument: "tree"
   stops all of them wherever they are, "children" one child of each in the midst of its fork. A
   library that is initialised first has a handler that takes its time in every child, so that
   they are in the midst of it most of the time. Prints "d21 right". */
#include "defects.h"

#define WORKERS 4
#define BYTES (24 * MIB)
#define STOPPED 11

static volatile long *forks;
static volatile int *over;

static int stop_next;

static void library_child(void)
{
	if (stop_next)
		raise(SIGSTOP);
	pause_ms(20);
}

static void library_start(void) { pthread_atfork(NULL, NULL, library_child); }
__attribute__((section(".preinit_array"), used)) static void (*const start)(void) = library_start;

/* Stopped children are left alone for their time. */
static int ended(pid_t pid)
{
	int status = 0;
	while (waitpid(pid, &status, WUNTRACED) == pid)
		if (!WIFSTOPPED(status))
			break;
	if (status)
		printf("process %d of worker %d: status %#x\n", pid, getpid(), status);
	fflush(stdout);
	return status == 0;
}

static void worker(int number, int stops)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsigned char *p = map(BYTES);
	fill(p, 21, BYTES);
	for (size_t i = 0; !*over; i++) {
		stop_next = stops && i == 20;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(right_page(p, 21, i * 37 % (BYTES / PAGE)) ? 0 : 7);
		CHECK(ended(pid));
		__atomic_fetch_add(&forks[number], 1, __ATOMIC_RELAXED);
	}
	_exit(right(p, 21, BYTES) ? 0 : 7);
}

static long count(void)
{
	long sum = 0;
	for (int i = 0; i < WORKERS; i++)
		sum += forks[i];
	return sum;
}

int main(int argc, char **argv)
{
	int stops = argc > 1 && strcmp(argv[1], "children") == 0;
	pid_t pid[WORKERS];
	forks = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	over = (int *)(forks + WORKERS);
	for (int i = 0; i < WORKERS; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i] == 0) {
			setpgid(0, i ? pid[0] : 0);
			worker(i, stops);
		}
		setpgid(pid[i], pid[0]);
	}
	double end = now() + 20;
	for (; count() < (stops ? 20 : 40) * WORKERS; pause_ms(5))
		CHECK(now() < end);
	pause_ms(3);
	if (!stops)
		CHECK(kill(-pid[0], SIGSTOP) == 0);
	sleep(1);
	long before = count();
	pause_ms((STOPPED - 1) * 1000);
	CHECK(count() == before);
	CHECK(kill(-pid[0], SIGCONT) == 0);
	end = now() + 15;
	for (int i = 0; i < WORKERS; i++)
		while (forks[i] < 60) {
			pause_ms(5);
			CHECK(now() < end);
		}
	*over = 1;
	for (int i = 0; i < WORKERS; i++)
		CHECK(well(pid[i], "worker"));
	printf("%ld forks\n", count());
	puts("d21 right");
	return 0;
}
