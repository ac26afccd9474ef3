/* The kernel writes to managed memory while a fork is made: to the words that clone and clone3 are
   given, in the parent and in the child, and to the forking thread's record on a stack of the
   program's own. The bytes beside the words stay, away or not. Prints "d31 right". */
#include "defects.h"
#include <sched.h>

#define BYTES (96 * MIB)
#define EACH 20

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

struct ask { /* struct clone_args, as of Linux 5.7 */
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
	uint64_t set_tid, set_tid_size, cgroup;
};

static unsigned char *memory;

/* A word in the middle of a page that is not touched otherwise, and so is away as a rule. */
static int *place(size_t i)
{
	return (int *)(memory + (mixed(i) % (BYTES / PAGE)) * PAGE + WORDS * 8 + 64);
}

static long make(int new, long flags, int *parent, int *child, int *pidfd)
{
	struct ask ask = {
		.flags = flags, .exit_signal = SIGCHLD, .parent_tid = (uintptr_t)parent,
		.child_tid = (uintptr_t)child, .pidfd = (uintptr_t)pidfd,
	};
	if (new)
		return syscall(SYS_clone3, &ask, sizeof ask);
	return syscall(SYS_clone, flags | SIGCHLD, 0, flags & CLONE_PIDFD ? pidfd : parent, child, 0);
}

/* The child has its word, and what lies beside it. */
static int as_made(int *child, long flags)
{
	size_t page = ((uintptr_t)child - (uintptr_t)memory) / PAGE;
	int is_told = !(flags & CLONE_CHILD_SETTID) || *child == syscall(SYS_getpid);
	return is_told && right_page(memory, 31, page);
}

static void evict_page(const void *at)
{
	evict((void *)((uintptr_t)at & -PAGE), PAGE);
}

static void words(int new)
{
	for (size_t i = 0; i < EACH; i++) {
		int *parent = place(3 * i), *child = place(3 * i + 1), *pidfd = place(3 * i + 2);
		long flags = i % 3 ? CLONE_CHILD_SETTID : CLONE_CHILD_CLEARTID;
		flags |= new || i % 2 ? CLONE_PIDFD : 0;
		if (new || i % 2 == 0)
			flags |= CLONE_PARENT_SETTID;
		*pidfd = -1;
		if (i % 4 == 0)
			CHECK(munlockall() == 0);
		evict_page(parent);
		evict_page(child);
		long pid = make(new, flags, parent, child, pidfd);
		CHECK(pid >= 0);
		if (pid == 0)
			syscall(SYS_exit_group, as_made(child, flags) ? 0 : 5);
		CHECK(well((pid_t)pid, "child of clone"));
		CHECK(!(flags & CLONE_PARENT_SETTID) || *parent == pid);
		CHECK(!(flags & CLONE_PIDFD) || (*pidfd > 2 && close(*pidfd) == 0));
		step();
	}
}

static void refused(int new, long flags, int *parent, int *pidfd, int error)
{
	errno = 0;
	CHECK(make(new, flags, parent, NULL, pidfd) == -1 && errno == error);
}

static void bad_words(int new)
{
	int *nowhere = (int *)16, *word = place(2000);
	refused(new, CLONE_PIDFD, NULL, nowhere, EFAULT);
	refused(new, CLONE_PIDFD, NULL, NULL, EFAULT);
	if (new)
		refused(new, CLONE_PIDFD | CLONE_PARENT_SETTID, word, word, EINVAL);
	long pid = make(new, CLONE_PARENT_SETTID, nowhere, NULL, NULL);
	if (pid == 0)
		syscall(SYS_exit_group, 0);
	CHECK(pid > 0 && well((pid_t)pid, "child without a word"));
}

/* Others see the parent's word before the child runs. */
static void shared_word(void)
{
	int *word = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(word != MAP_FAILED);
	for (size_t i = 0; i < EACH; i++) {
		*word = 0;
		long pid = make(0, CLONE_PARENT_SETTID, word, NULL, NULL);
		if (pid == 0)
			syscall(SYS_exit_group, *word == syscall(SYS_getpid) ? 0 : 6);
		CHECK(pid > 0 && well((pid_t)pid, "child with a shared word"));
	}
}

/* The kernel reads the id that a child is to have. */
static void chosen(void)
{
	int made = 0;
	struct ask none = { .exit_signal = SIGCHLD, .set_tid_size = 1 };
	errno = 0;
	CHECK(syscall(SYS_clone3, &none, sizeof none) == -1 && errno == EINVAL);
	for (size_t i = 0; i < EACH; i++) {
		int *id = place(1000 + i);
		struct ask ask = {
			.exit_signal = SIGCHLD, .set_tid = (uintptr_t)id, .set_tid_size = 1,
		};
		*id = 20000 + (getpid() * 37 + (int)i * 101) % 10000;
		evict_page(id);
		long pid = syscall(SYS_clone3, &ask, sizeof ask);
		if (pid == 0)
			syscall(SYS_exit_group, 0);
		if (pid < 0 && errno == EPERM) {
			puts("ids may not be chosen here");
			return;
		}
		CHECK(pid == *id || (pid < 0 && errno == EEXIST));
		CHECK(pid < 0 || well((pid_t)pid, "child of a chosen id"));
		made += pid > 0;
	}
	CHECK(made > 0);
}

static void *forks(void *unused)
{
	for (size_t i = 0; i < EACH; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(pthread_self() == 0);
		CHECK(well(pid, "child of a thread"));
		step();
	}
	return unused;
}

/* The first thread has ended. */
static void *alone(void *unused)
{
	char state = 0, path[64];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
	while (state != 'Z') {
		FILE *f = fopen(path, "r");
		CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1);
		fclose(f);
	}
	words(0);
	words(1);
	CHECK(right(memory, 31, BYTES));
	puts("d31 right");
	exit(0);
	return unused;
}

int main(void)
{
	watch(15);
	memory = map(BYTES);
	fill(memory, 31, BYTES);
	for (int new = 0; new < 2; new++) {
		words(new);
		bad_words(new);
	}
	chosen();
	shared_word();
	unsigned char *stack = map(4 * MIB);
	memset(stack, 1, 4 * MIB);
	pthread_attr_t attr;
	pthread_t thread;
	CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, 4 * MIB) == 0);
	CHECK(pthread_create(&thread, &attr, forks, NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, alone, NULL) == 0);
	pthread_exit(NULL);
}
