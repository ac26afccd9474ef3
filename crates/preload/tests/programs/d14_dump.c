/* The time that a core dump takes and its size: of a program with filled memory, a part of which
   is away. Argument: the directory that the core goes to, as "core". */
#include "defects.h"
#include <sys/resource.h>
#include <sys/stat.h>

#define BYTES (96 << 20)
#define AWAY (32 << 20)

static _Noreturn void dump(int tell)
{
	struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	CHECK(setrlimit(RLIMIT_CORE, &all) == 0);
	unsigned char *p = map(BYTES);
	fill(p, 14, BYTES);
	evict(p, AWAY);
	/* Memory that was used and given back. */
	unsigned char *gone = map(AWAY);
	fill(gone, 41, AWAY / 4);
	CHECK(munmap(gone, AWAY) == 0);
	double begun = now();
	CHECK(write(tell, &begun, sizeof begun) == sizeof begun);
	abort();
}

int main(int argc, char **argv)
{
	if (argc == 3)
		dump(atoi(argv[2]));
	CHECK(argc == 2);
	char self[4096] = "", number[20];
	int told[2];
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	CHECK(chdir(argv[1]) == 0 && pipe(told) == 0);
	unlink("core");
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		snprintf(number, sizeof number, "%d", told[1]);
		execl(self, self, argv[1], number, NULL);
		_exit(127);
	}
	int status = 0;
	double begun;
	CHECK(read(told[0], &begun, sizeof begun) == sizeof begun);
	CHECK(waitpid(pid, &status, 0) == pid);
	double took = now() - begun;
	struct stat core;
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && WCOREDUMP(status));
	CHECK(stat("core", &core) == 0);
	printf("microseconds %ld bytes %ld\n", (long)(took * 1e6), (long)core.st_blocks * 512);
	printf("d14 right\n");
	return 0;
}
