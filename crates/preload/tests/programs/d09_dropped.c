/* A program that has become another user, or has left its namespaces or its capabilities, goes on:
   it forks, its children find their bytes and get memory of their own, and it executes programs.
   Run as root. The argument: "user", "net", "pid", "owner" (a user namespace), "mounts", "bound"
   (an empty bounding set, and no privileges to come). Prints "d09 right". */
#include "defects.h"
#include <grp.h>
#include <sched.h>

#define BYTES (96 * MIB)

static void leave(const char *what)
{
	if (strcmp(what, "user") == 0) {
		CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0);
		CHECK(setresuid(65534, 65534, 65534) == 0);
	} else if (strcmp(what, "bound") == 0) {
		for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1; cap++)
			CHECK(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0);
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	} else {
		int flags = strcmp(what, "net") == 0 ? CLONE_NEWNET : strcmp(what, "pid") == 0 ? CLONE_NEWPID
			: strcmp(what, "owner") == 0 ? CLONE_NEWUSER : CLONE_NEWNS;
		CHECK(unshare(flags) == 0);
	}
}

static int work(void)
{
	unsigned char *p = map(16 * MIB);
	fill(p, 10, 16 * MIB);
	return right(p, 10, 16 * MIB) ? 0 : 6;
}

int main(int argc, char **argv)
{
	if (argc > 2)
		return work();
	CHECK(argc == 2 && geteuid() == 0);
	static char self[4096];
	int bad = 0;
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	unsigned char *p = map(BYTES);
	fill(p, 9, BYTES);
	/* A process of one thread, which a user namespace asks for. */
	leave(argv[1]);
	alarm(60);
	for (size_t i = 0; i < 6; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0 && i % 2 == 0)
			_exit(right_page(p, 9, i * 100) && work() == 0 ? 0 : 7);
		if (pid == 0) {
			execl(self, self, argv[1], "work", (char *)NULL);
			_exit(9);
		}
		bad += !well(pid, i % 2 ? "program executed" : "child");
		/* In a new PID namespace the first child's end is the end of all. */
		if (strcmp(argv[1], "pid") == 0)
			break;
	}
	CHECK(bad == 0 && right(p, 9, BYTES) && work() == 0);
	puts("d09 right");
	return 0;
}
