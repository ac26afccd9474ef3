/* What a program that has set a limit on its address space is told of it: by itself, in its
   children, and in programs that it executes in all ways. The argument: "small" before the program
   has any memory, "managed" after; a second one: the program that is executed, if it is not this
   one. Prints "d11 right". */
#define _GNU_SOURCE
#include "defects.h"
#include <spawn.h>
#include <sys/resource.h>

#define SOFT (1024 * MIB)
#define HARD (2048 * MIB)

extern char **environ;

/* What the kernel says, by no function. */
static struct rlimit raw(void)
{
	struct rlimit is;
	long result;
	register void *old __asm__("r10") = &is;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_prlimit64), "D"(0), "S"(RLIMIT_AS),
			 "d"(0), "r"(old) : "rcx", "r11", "memory");
	CHECK(result == 0);
	return is;
}

static int told(unsigned long soft, unsigned long hard)
{
	struct rlimit all[4];
	CHECK(getrlimit(RLIMIT_AS, &all[0]) == 0);
	CHECK(prlimit(0, RLIMIT_AS, NULL, &all[1]) == 0);
	CHECK(prlimit(getpid(), RLIMIT_AS, NULL, &all[2]) == 0);
	CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, NULL, &all[3]) == 0);
	for (int i = 0; i < 4; i++)
		if (all[i].rlim_cur != soft || all[i].rlim_max != hard)
			return 0;
	return 1;
}

static int set(unsigned long soft, unsigned long hard)
{
	struct rlimit limit = {soft, hard};
	return setrlimit(RLIMIT_AS, &limit);
}

static void *thread(void *p) { return p; }

static void is_in_force(void)
{
	pthread_t t;
	CHECK(told(SOFT, HARD));
	CHECK(pthread_create(&t, NULL, thread, NULL) == 0 && pthread_join(t, NULL) == 0);
	unsigned char *p = map(32 * MIB);
	fill(p, 3, 4 * MIB);
	CHECK(right(p, 3, 4 * MIB) && munmap(p, 32 * MIB) == 0);
	CHECK(mmap(NULL, SOFT, RW, ANON, -1, 0) == MAP_FAILED && errno == ENOMEM);
	/* What the kernel maps alone may be 16 MiB more: room for the service to grow. */
	CHECK(mmap(NULL, SOFT + 16 * MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
}

int main(int argc, char **argv)
{
	pid_t pid;
	char *after[] = {argv[0], "after", NULL}, *before[] = {argv[0], "exact", NULL};
	if (argc > 1 && (strcmp(argv[1], "after") == 0 || strcmp(argv[1], "exact") == 0)) {
		CHECK(raw().rlim_cur == SOFT && raw().rlim_max == HARD && getenv("DECKLE_TOLD") == NULL);
		for (char **e = environ; *e; e++)
			CHECK(strncmp(*e, "DECKLE_TOLD", 11) != 0);
		is_in_force();
		return 0;
	}
	if (argc > 2)
		argv[0] = argv[2];
	if (argc > 1 && strcmp(argv[1], "managed") == 0)
		fill(map(96 * MIB), 11, 96 * MIB);
	alarm(60);
	CHECK(set(HARD, HARD) == 0 && told(HARD, HARD));
	CHECK(set(SOFT, HARD) == 0);
	is_in_force();
	/* The kernel's rules. */
	CHECK(set(HARD, SOFT) == -1 && errno == EINVAL && told(SOFT, HARD));
	CHECK(syscall(SYS_setrlimit, RLIMIT_AS, &(struct rlimit){HARD, HARD}) == 0 && told(HARD, HARD));
	struct rlimit old;
	CHECK(prlimit(getpid(), RLIMIT_AS, &(struct rlimit){SOFT, HARD}, &old) == 0);
	CHECK(old.rlim_cur == HARD && old.rlim_max == HARD);
	/* Without the right to, nobody sets the hard limit higher. */
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		is_in_force();
		CHECK(setresgid(65534, 65534, 65534) == 0 || geteuid() != 0);
		CHECK(setresuid(65534, 65534, 65534) == 0 || geteuid() != 0);
		CHECK(set(SOFT, 2 * HARD) == -1 && errno == EPERM);
		CHECK(set(HARD, HARD) == 0 && told(HARD, HARD) && set(SOFT, HARD) == 0);
		is_in_force();
		CHECK(set(SOFT / 2, SOFT / 2) == 0 && told(SOFT / 2, SOFT / 2));
		CHECK(set(SOFT, SOFT) == -1 && errno == EPERM);
		_exit(0);
	}
	CHECK(well(pid, "child"));
	is_in_force();
	/* A program that is not there. */
	CHECK(execve("/nowhere", after, environ) == -1 && errno == ENOENT);
	CHECK(execvp("nowhere-at-all", after) == -1 && errno == ENOENT);
	is_in_force();
	/* Programs that are. */
	for (int i = 0; i < 3; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			if (i == 0)
				execve(argv[0], after, environ);
			else if (i == 1)
				execvp(argv[0], after);
			else
				fexecve(open(argv[0], O_RDONLY | O_CLOEXEC), after, environ);
			_exit(9);
		}
		CHECK(well(pid, "program executed"));
	}
	CHECK(posix_spawn(&pid, argv[0], NULL, NULL, before, environ) == 0);
	CHECK(well(pid, "program spawned"));
	/* A child in this memory has a limit of its own. */
	pid = vfork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct rlimit mine = {HARD, HARD};
		if (setrlimit(RLIMIT_AS, &mine) == 0)
			execl("/bin/sh", "sh", "-c", "test $(ulimit -v) = 2097152", NULL);
		_exit(9);
	}
	CHECK(well(pid, "child of vfork"));
	is_in_force();
	/* No limit any more, where that is allowed. */
	if (set(RLIM_INFINITY, RLIM_INFINITY) == 0) {
		CHECK(told(RLIM_INFINITY, RLIM_INFINITY));
		CHECK(mmap(NULL, SOFT, RW, ANON, -1, 0) != MAP_FAILED);
	} else {
		CHECK(errno == EPERM && told(SOFT, HARD));
	}
	puts("d11 right");
	return 0;
}
