/* Forks in a signal handler that has interrupted malloc or free. The argument: "fork", in a
   program of one thread, where POSIX allows it and the C library takes no lock, or "_Fork", which
   is safe in handlers of any program, in one of several threads; and "early" if all that happens
   while the program is still small. Prints "d06 right". */
#include "defects.h"
#include <sys/time.h>

#define COUNT 400
#define BYTES (96 * MIB)

static const char text[] = "what the program was linked with";
static unsigned char *memory;
static volatile int forks, bad, storms_over;
static int with_libc, early;

static void handler(int signal)
{
	(void)signal;
	int error = errno, k = forks, status = 0;
	size_t page = (size_t)k * 7919 % (BYTES / PAGE);
	pid_t pid = with_libc ? fork() : _Fork();
	if (pid == 0) {
		if (k % 2 == 0)
			_exit(0);
		_exit(text[0] == 'w' && text[31] == 'h' && (early || right_page(memory, 6, page)) ? 0 : 7);
	}
	while (pid > 0 && waitpid(pid, &status, 0) != pid && errno == EINTR) {}
	if (pid < 0 || status != 0)
		bad++;
	forks++;
	step();
	errno = error;
}

static void churn(unsigned round)
{
	void *p[40];
	size_t most = early ? 1000 : 300000;
	for (unsigned i = 0; i < 40; i++) {
		size_t n = 16 + mixed(round * 40 + i) % (i % 8 ? 2000 : most);
		p[i] = malloc(n);
		CHECK(p[i]);
		memset(p[i], 1, n < 4000 ? n : 4000);
		if (i % 5 == 0)
			CHECK((p[i] = realloc(p[i], n * 2)) != NULL);
	}
	for (unsigned i = 0; i < 40; i++)
		free(p[i]);
}

/* One shot after the other, so that something happens between two. */
static void by_timer(void)
{
	for (unsigned i = 0; forks < COUNT && !bad; i++) {
		struct itimerval in = {{0, 0}, {0, 50 + (long)(mixed(i) % 400)}};
		int before = forks;
		CHECK(setitimer(ITIMER_REAL, &in, NULL) == 0);
		for (unsigned k = 0; forks == before; k++)
			churn(i + k);
	}
}

static void *churner(void *unused)
{
	for (unsigned k = 0; !storms_over; k++)
		churn(k);
	return unused;
}

static void by_storm(void)
{
	pthread_t t[2];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, churner, NULL) == 0);
	for (int i = 0; forks < COUNT && !bad; i++) {
		int before = forks;
		CHECK(pthread_kill(t[i % 2], SIGUSR1) == 0);
		/* The other thread, too, while the first is in its handler, now and then. */
		if (i % 4 == 0)
			CHECK(pthread_kill(t[(i + 1) % 2], SIGUSR1) == 0);
		while (forks == before)
			churn((unsigned)i);
	}
	storms_over = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	with_libc = argc < 2 || strcmp(argv[1], "fork") == 0;
	watch_from_outside(10);
	early = argc > 2 && strcmp(argv[2], "early") == 0;
	if (!early) {
		memory = map(BYTES);
		fill(memory, 6, BYTES);
	}
	step();
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	CHECK(sigaction(with_libc ? SIGALRM : SIGUSR1, &action, NULL) == 0);
	if (with_libc)
		by_timer();
	else
		by_storm();
	printf("%d forks, %d bad\n", forks, bad);
	CHECK(bad == 0 && (early || right(memory, 6, BYTES)));
	puts("d06 right");
	return 0;
}
