/* Futex operations in which the kernel itself writes the word, on words that are away. The
   argument: "calls" by system calls, "mutex" by mutexes with priority inheritance which several
   threads want while their page is taken away again and again. Prints "d13 right". */
#include "defects.h"
#include <linux/futex.h>

static unsigned char *ballast;
#define BYTES (96 * MIB)

static long futex(void *word, int op, unsigned value, void *time, void *second, unsigned third)
{
	return syscall(SYS_futex, word, op, value, time, second, third);
}

/* A word of this value that is away. */
static unsigned *away(unsigned char *p, unsigned value, uint64_t round)
{
	unsigned *at = (unsigned *)(p + 8 * PAGE);
	*at = value;
	at[100] = (unsigned)round + 1;
	evict(p, 16 * PAGE);
	if (round % 2)
		fill(ballast, round, BYTES);
	step();
	return at;
}

static void wrong(const char *what, long got)
{
	printf("%s: %ld, %s\n", what, got, strerror(errno));
	fflush(stdout);
	_exit(1);
}

#define WANT(call, result) do { \
	long got = call; \
	if (got != (result)) \
		wrong(#call, got); \
} while (0)

static unsigned *pi_word;
static volatile int waits;

static void *pi_waiter(void *unused)
{
	waits = 1;
	WANT(futex(pi_word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
	CHECK((*pi_word & FUTEX_TID_MASK) == (unsigned)syscall(SYS_gettid));
	WANT(futex(pi_word, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
	return unused;
}

static void calls(void)
{
	unsigned me = (unsigned)syscall(SYS_gettid);
	unsigned char *p = map(16 * PAGE), *q = map(16 * PAGE);
	for (uint64_t i = 0; i < 8; i++) {
		unsigned *w = away(p, 0, i), *v;
		WANT(futex(w, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
		CHECK(*w == me);
		w = away(p, me, i);
		WANT(futex(w, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
		CHECK(*w == 0);
		w = away(p, 0, i);
		WANT(futex(w, FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
		CHECK(*w == me);
		/* Somebody waits for it, and it is away when it is given back. */
		pthread_t t;
		pi_word = w;
		waits = 0;
		CHECK(pthread_create(&t, NULL, pi_waiter, NULL) == 0);
		while (!waits || !(*(volatile unsigned *)w & FUTEX_WAITERS))
			pause_ms(1);
		w = away(p, *w, i);
		WANT(futex(w, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0), 0);
		CHECK(pthread_join(t, NULL) == 0);
		CHECK(*w == 0);
		/* Both words of the calls that have two. */
		w = away(p, 5, i);
		v = away(q, 7, i);
		WANT(futex(w, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, v,
			   FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 7)), 0);
		CHECK(*w == 5 && *v == 10);
		w = away(p, 5, i);
		WANT(futex(w, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)1, v, 5), 0);
		w = away(p, 5, i);
		struct timespec soon = {0, 1000000};
		WANT(futex(w, FUTEX_WAIT_PRIVATE, 5, &soon, NULL, 0), -1);
		CHECK(errno == ETIMEDOUT);
		w = away(p, 5, i);
		WANT(futex(w, FUTEX_WAKE, 1, NULL, NULL, 0), 0);
		w = away(p, 5, i);
		WANT(futex(w, FUTEX_WAIT, 6, &soon, NULL, 0), -1);
		CHECK(errno == EAGAIN);
	}
}

static pthread_mutex_t *mutex;
static long *counter;
static volatile int over;

static void *contender(void *unused)
{
	for (long i = 0; !over; i++) {
		CHECK(pthread_mutex_lock(mutex) == 0);
		++*counter;
		if (i % 64 == 0)
			pause_ms(1);
		CHECK(pthread_mutex_unlock(mutex) == 0);
		__atomic_fetch_add((long *)unused, 1, __ATOMIC_RELAXED);
		step();
	}
	return NULL;
}

static void mutexes(void)
{
	pthread_t t[4];
	long all = 0;
	pthread_mutexattr_t attr;
	unsigned char *p = map(16 * PAGE);
	mutex = (pthread_mutex_t *)(p + 8 * PAGE);
	counter = (long *)(p + 12 * PAGE);
	CHECK(pthread_mutexattr_init(&attr) == 0);
	CHECK(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT) == 0);
	CHECK(pthread_mutex_init(mutex, &attr) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, contender, &all) == 0);
	for (double end = now() + 3; now() < end; )
		evict(p, 16 * PAGE);
	over = 1;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(*counter == all);
}

int main(int argc, char **argv)
{
	watch(10);
	ballast = map(BYTES);
	fill(ballast, 13, BYTES);
	if (argc > 1 && strcmp(argv[1], "mutex") == 0)
		mutexes();
	else
		calls();
	puts("d13 right");
	return 0;
}
