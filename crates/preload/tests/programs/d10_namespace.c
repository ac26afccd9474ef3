/* Memory ends while one of two processes of a tree is in a PID namespace of its own: the larger is
   killed, whichever side it is on, and the other gets what it asks for. The argument says where the
   larger one is: "inside" or "outside". To be run with a limit of 64 MiB without swap. Prints
   whether the larger was killed, then "d10 right". */
#include "defects.h"
#include <sched.h>

static int full[2], end[2];

/* Bytes that no other page has, so that nothing can be saved. */
static void noise(unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		((uint64_t *)p)[i] = mixed(i);
}

static int is_noise(const unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		if (((const uint64_t *)p)[i] != mixed(i))
			return 0;
	return 1;
}

static void larger(void)
{
	char c;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsigned char *p = map(44 * MIB);
	noise(p, 44 * MIB);
	CHECK(write(full[1], "f", 1) == 1);
	close(end[1]);
	CHECK(read(end[0], &c, 1) == 0);
	_exit(is_noise(p, 44 * MIB) ? 0 : 7);
}

static void grower(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(end[1]);
	unsigned char *p = map(36 * MIB);
	noise(p, 36 * MIB);
	_exit(is_noise(p, 36 * MIB) ? 0 : 7);
}

int main(int argc, char **argv)
{
	int inside = argc < 2 || strcmp(argv[1], "inside") == 0, status;
	char c;
	watch_from_outside(20);
	CHECK(pipe(full) == 0 && pipe(end) == 0);
	/* The first child that is made after unshare is the namespace's first process. */
	if (inside && unshare(CLONE_NEWPID) != 0)
		return puts("SKIPPED: no PID namespace"), puts("d10 right"), 0;
	pid_t large = fork();
	CHECK(large >= 0);
	if (large == 0)
		larger();
	CHECK(read(full[0], &c, 1) == 1);
	step();
	if (inside) {
		int outer = (int)syscall(SYS_pidfd_open, getpid(), 0);
		/* Back to the namespace of this process: children are made there again. */
		CHECK(outer >= 0 && setns(outer, CLONE_NEWPID) == 0);
		close(outer);
	} else if (unshare(CLONE_NEWPID) != 0) {
		return puts("SKIPPED: no PID namespace"), puts("d10 right"), 0;
	}
	pid_t small = fork();
	CHECK(small >= 0);
	if (small == 0)
		grower();
	CHECK(well(small, "who grows"));
	step();
	close(end[1]);
	CHECK(waitpid(large, &status, 0) == large);
	int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	CHECK(killed || status == 0);
	puts(killed ? "larger killed" : "larger lived");
	puts("d10 right");
	return 0;
}
