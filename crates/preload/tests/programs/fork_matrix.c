/* Children made in one way while other threads take and give back a lock all the time.

   fork_matrix KIND LOCK THREADS STATE COUNT [MIB]

   KIND   fork, _Fork, vfork, clone, clone3 (both by system call), posix_spawn
   LOCK   stdio, nss, dlopen, malloc, atfork (of a library that is initialised first)
   STATE  resident: a buffer of 16 MiB; evicted: one of MIB, 96 if not said, which should be half as
          much again as the limit

   A child that is a copy finds right bytes in some pages of the buffer, writes to some, and ends;
   children of vfork and posix_spawn execute /bin/true. The parent's bytes are its own. Who makes no
   progress for ten seconds is ended, with "HANG". Prints "fork_matrix right". */
#include "defects.h"
#include "busy.h"
#include <linux/sched.h>
#include <spawn.h>

#define LOOKED 24
#define WRITTEN 12

static unsigned char *memory;
static size_t pages;

/* No function of the C library: after _Fork and clone its locks may be anybody's. */
static int child(uint64_t number)
{
	for (uint64_t k = 0; k < LOOKED; k++)
		if (!right_page(memory, 1, mixed(number * LOOKED + k) % pages))
			return 7;
	for (uint64_t k = 0; k < WRITTEN; k++) {
		size_t page = mixed(number * LOOKED + k * 2) % pages;
		volatile uint64_t *at = (uint64_t *)(memory + page * PAGE);
		/* Another of them may have been this page. */
		at[2] = number + 1;
		if (at[2] != number + 1 || at[1] != word(1, page, 1) || at[3] != word(1, page, 3))
			return 8;
	}
	return 0;
}

static pid_t by_fork(uint64_t i)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(child(i));
	return pid;
}

static pid_t by_bare_fork(uint64_t i)
{
	pid_t pid = _Fork();
	if (pid == 0)
		_exit(child(i));
	return pid;
}

static char *const nothing[] = {"true", NULL};

static pid_t by_vfork(uint64_t i)
{
	(void)i;
	pid_t pid = vfork();
	if (pid == 0) {
		execv("/bin/true", nothing);
		_exit(9);
	}
	return pid;
}

static pid_t by_clone(uint64_t i)
{
	long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(child(i));
	return (pid_t)pid;
}

static pid_t by_clone3(uint64_t i)
{
	struct clone_args args = {.exit_signal = SIGCHLD};
	long pid = syscall(SYS_clone3, &args, sizeof args);
	if (pid == 0)
		_exit(child(i));
	return (pid_t)pid;
}

static pid_t by_spawn(uint64_t i)
{
	pid_t pid = -1;
	(void)i;
	errno = posix_spawn(&pid, "/bin/true", NULL, NULL, nothing, environ);
	return errno ? -1 : pid;
}

static const struct kind {
	const char *name;
	pid_t (*make)(uint64_t);
} KINDS[] = {
	{"fork", by_fork}, {"_Fork", by_bare_fork}, {"vfork", by_vfork}, {"clone", by_clone},
	{"clone3", by_clone3}, {"posix_spawn", by_spawn},
};

int main(int argc, char **argv)
{
	CHECK(argc >= 6);
	const struct kind *kind = NULL;
	for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++)
		if (strcmp(KINDS[i].name, argv[1]) == 0)
			kind = &KINDS[i];
	int threads = atoi(argv[3]), evicted = strcmp(argv[4], "evicted") == 0, bad = 0;
	long children = atol(argv[5]);
	size_t bytes = evicted ? (size_t)(argc > 6 ? atoi(argv[6]) : 96) * MIB : 16 * MIB;
	CHECK(kind && threads > 0 && threads <= 64);
	CHECK(evicted || strcmp(argv[4], "resident") == 0);
	watch(10);
	memory = map(bytes);
	pages = bytes / PAGE;
	fill(memory, 1, bytes);
	pthread_t t[64];
	busy_start(argv[2], threads, t);
	for (long i = 0; i < children && bad < 5; i++) {
		pid_t pid = kind->make((uint64_t)i);
		CHECK(pid > 0);
		bad += !well(pid, "child");
		/* Something of the parent's is written between two, and in different places. */
		size_t page = mixed((uint64_t)i) % pages;
		CHECK(right_page(memory, 1, page));
		fill_page(memory, 1, page);
		step();
	}
	busy_end(threads, t);
	CHECK(bad == 0 && right(memory, 1, bytes));
	puts("fork_matrix right");
	return 0;
}
