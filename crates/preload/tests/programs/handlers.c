/* Coroutines and a signal stack in managed memory; a 1 kHz timer whose handler reads evicted
   memory, maps, unmaps and advises; threads that exit and are cancelled while calls are under
   way; a handler that is left by longjmp. The argument is how long, in seconds. Prints
   "handlers right". */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

enum { COROUTINES = 64, STACK = 64 << 10, PAGES = 20000 };
static unsigned char *data;
static volatile sig_atomic_t handled, jumps;
static ucontext_t main_context, coroutine[COROUTINES];
static volatile int running = 1;

static unsigned char of(size_t page) { return (unsigned char)(page * 7 % 251 + 1); }

static void *map(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void look(unsigned *seed, int n)
{
	for (int i = 0; i < n; i++) {
		*seed = *seed * 1103515245 + 12345;
		size_t page = (*seed >> 8) % PAGES;
		CHECK(data[page * PAGE] == of(page) && data[page * PAGE + 99] == of(page) && data[page * PAGE + 100] == 0);
	}
}

static void on_timer(int signal)
{
	(void)signal;
	static unsigned seed = 1;
	int before = errno;
	look(&seed, 3);
	unsigned char *p = map(16 * PAGE);
	p[5 * PAGE] = 3;
	CHECK(madvise(p, 16 * PAGE, handled % 2 ? MADV_PAGEOUT : MADV_DONTNEED) == 0);
	CHECK(p[5 * PAGE] == (handled % 2 ? 3 : 0));
	CHECK(munmap(p, 16 * PAGE) == 0);
	handled++;
	errno = before;
}

static void body(int me)
{
	unsigned seed = (unsigned)me;
	volatile unsigned char local[8000];
	for (;;) {
		memset((void *)local, me, sizeof local);
		look(&seed, 2);
		swapcontext(&coroutine[me], &main_context);
		for (size_t i = 0; i < sizeof local; i += 500)
			CHECK(local[i] == me);
	}
}

/* Calls without end; it ends in the middle of one, or between two. */
static void *caller(void *how)
{
	for (int i = 0; how != NULL || i < 20; i++) {
		unsigned char *p = map(64 * PAGE);
		p[0] = 1;
		CHECK(munmap(p, 64 * PAGE) == 0);
		pthread_testcancel();
	}
	return NULL;
}

static void *threads(void *unused)
{
	(void)unused;
	while (running) {
		pthread_t ends, cancelled;
		CHECK(pthread_create(&ends, NULL, caller, NULL) == 0);
		CHECK(pthread_create(&cancelled, NULL, caller, (void *)1) == 0);
		usleep(2000);
		void *result;
		CHECK(pthread_cancel(cancelled) == 0);
		CHECK(pthread_join(cancelled, &result) == 0 && result == PTHREAD_CANCELED);
		CHECK(pthread_join(ends, NULL) == 0);
	}
	return NULL;
}

static sigjmp_buf out;
static volatile sig_atomic_t may_jump;

static void on_jump(int signal)
{
	(void)signal;
	if (may_jump)
		siglongjmp(out, 1);
}

/* Left in the middle of calls, more often than there can be calls at one time. */
static void *jumper(void *unused)
{
	(void)unused;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	unsigned char *p = map(64 * PAGE);
	while (running) {
		if (sigsetjmp(out, 1) == 0) {
			may_jump = 1;
			for (;;) {
				if (!running)
					break;
				p[0] = 1;
				CHECK(madvise(p, 64 * PAGE, MADV_DONTNEED) == 0);
			}
		} else {
			jumps++;
		}
		may_jump = 0;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	data = map(PAGES * PAGE);
	for (size_t page = 0; page < PAGES; page++)
		memset(data + page * PAGE, of(page), 100);
	unsigned char *stacks = map((size_t)COROUTINES * STACK);
	for (int i = 0; i < COROUTINES; i++) {
		getcontext(&coroutine[i]);
		coroutine[i].uc_stack.ss_sp = stacks + (size_t)i * STACK;
		coroutine[i].uc_stack.ss_size = STACK;
		coroutine[i].uc_link = &main_context;
		makecontext(&coroutine[i], (void (*)(void))body, 1, i);
	}
	stack_t alt = {.ss_sp = map(64 * PAGE), .ss_size = 64 * PAGE};
	CHECK(sigaltstack(&alt, NULL) == 0);

	/* The other threads do not take the timer's signal. */
	sigset_t both;
	sigemptyset(&both);
	sigaddset(&both, SIGALRM);
	sigaddset(&both, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &both, NULL);
	struct sigaction jump = {.sa_handler = on_jump};
	CHECK(sigaction(SIGUSR1, &jump, NULL) == 0);
	pthread_t maker, jumping;
	CHECK(pthread_create(&maker, NULL, threads, NULL) == 0);
	CHECK(pthread_create(&jumping, NULL, jumper, NULL) == 0);
	struct sigaction timer = {.sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART};
	CHECK(sigaction(SIGALRM, &timer, NULL) == 0);
	sigdelset(&both, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &both, NULL);
	struct itimerval often = {{0, 1000}, {0, 1000}};
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);

	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	unsigned long switches = 0;
	do {
		for (int i = 0; i < COROUTINES; i++, switches++) {
			CHECK(swapcontext(&main_context, &coroutine[i]) == 0);
			if (i % 8 == 0)
				pthread_kill(jumping, SIGUSR1);
		}
		if (switches % 4096 == 0)
			CHECK(madvise(stacks, (size_t)COROUTINES * STACK, MADV_PAGEOUT) == 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds || jumps < 600);
	struct itimerval never = {{0, 0}, {0, 0}};
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	running = 0;
	CHECK(pthread_join(maker, NULL) == 0);
	pthread_kill(jumping, SIGUSR1);
	CHECK(pthread_join(jumping, NULL) == 0);
	for (size_t page = 0; page < PAGES; page++)
		CHECK(data[page * PAGE] == of(page));
	fprintf(stderr, "%d signals, %lu switches, %d jumps\n", (int)handled, switches, (int)jumps);
	CHECK(handled > 100);
	puts("handlers right");
	return 0;
}
