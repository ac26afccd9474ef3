/* What the kernel writes on behalf of a thread that ends reaches memory that is away: the word of
   a robust mutex, and the thread's own number, in memory that the program has given it as stack,
   for which pthread_join waits. Prints "d04 right". The argument: "robust" or "join". */
#include "defects.h"
#include <sys/rseq.h>

static pthread_mutex_t *mutex;
static volatile int locked, go, waiting;
static volatile pid_t tid;

static void *owner(void *unused)
{
	CHECK(pthread_mutex_lock(mutex) == 0);
	tid = (pid_t)syscall(SYS_gettid);
	locked = 1;
	while (!go)
		pause_ms(1);
	return unused;
}

static void own_dead(const char *who)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 5;
	int e = pthread_mutex_timedlock(mutex, &end);
	if (e != EOWNERDEAD) {
		printf("%s: %s instead of EOWNERDEAD\n", who, e ? strerror(e) : "success");
		fflush(stdout);
		_exit(1);
	}
	CHECK(pthread_mutex_consistent(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
	step();
}

static void *waiter(void *unused)
{
	waiting = 1;
	own_dead("waiter");
	return unused;
}

static void robust(unsigned char *ballast, size_t n)
{
	pthread_mutexattr_t attr;
	CHECK(pthread_mutexattr_init(&attr) == 0);
	CHECK(pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0);
	/* One that moves is as little locked at its new place as it was at the old one. */
	unsigned char *old = map(64 * PAGE), *new = map(64 * PAGE);
	mutex = (pthread_mutex_t *)(old + 32 * PAGE);
	CHECK(pthread_mutex_init(mutex, &attr) == 0);
	CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
	CHECK(mremap(old, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new) == new);
	CHECK(madvise(new, 64 * PAGE, MADV_DONTNEED) == 0 && munmap(new, 64 * PAGE) == 0);
	for (int i = 0; i < 6; i++) {
		pthread_t t, w;
		unsigned char *p = map(64 * PAGE);
		mutex = (pthread_mutex_t *)(p + 32 * PAGE);
		CHECK(pthread_mutex_init(mutex, &attr) == 0);
		locked = go = waiting = 0;
		CHECK(pthread_create(&t, NULL, owner, NULL) == 0);
		while (!locked)
			pause_ms(1);
		if (i % 2 == 0) {
			/* Somebody waits already, and has told the word so. */
			CHECK(pthread_create(&w, NULL, waiter, NULL) == 0);
			while (!waiting)
				pause_ms(1);
			pause_ms(50);
		}
		evict(p, 64 * PAGE);
		fill(ballast, (uint64_t)i, n);
		go = 1;
		await_end_of(tid);
		CHECK(pthread_join(t, NULL) == 0);
		if (i % 2 == 0)
			CHECK(pthread_join(w, NULL) == 0);
		else
			own_dead("who comes later");
		CHECK(munmap(p, 64 * PAGE) == 0);
	}
}

/* Ends without touching its stack or its record once `go` says so. The kernel, too, would touch
   the record when it lets the thread run again, if restartable sequences were registered there. */
static void *ends_bare(void *unused)
{
	if (__rseq_size)
		CHECK(syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, 32,
			      RSEQ_FLAG_UNREGISTER, RSEQ_SIG) == 0);
	tid = (pid_t)syscall(SYS_gettid);
	locked = 1;
	__asm__ volatile("1: pause\n\tcmpl $0, %0\n\tje 1b\n\tmovl $60, %%eax\n\txorl %%edi, %%edi\n\t"
			 "syscall" : : "m"(go) : "rax", "rdi", "rcx", "r11", "memory");
	return unused;
}

static void join(unsigned char *ballast, size_t n)
{
	for (int i = 0; i < 4; i++) {
		pthread_t t;
		pthread_attr_t attr;
		size_t size = 64 * PAGE;
		unsigned char *stack = map(size);
		CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, size) == 0);
		locked = go = 0;
		CHECK(pthread_create(&t, &attr, ends_bare, NULL) == 0);
		while (!locked)
			pause_ms(1);
		pause_ms(20);
		evict(stack, size);
		fill(ballast, (uint64_t)i, n);
		go = 1;
		await_end_of(tid);
		struct timespec end;
		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_sec += 5;
		int e = pthread_timedjoin_np(t, NULL, &end);
		if (e)
			printf("join: %s\n", strerror(e));
		CHECK(e == 0 && munmap(stack, size) == 0);
		step();
	}
}

int main(int argc, char **argv)
{
	size_t n = 192 * MIB;
	watch(15);
	unsigned char *ballast = map(n);
	if (argc > 1 && strcmp(argv[1], "join") == 0)
		join(ballast, n);
	else
		robust(ballast, n);
	puts("d04 right");
	return 0;
}
