/* The time that a core dump takes and its size: of a child with filled memory, a part of which is
   away. Argument: the directory that the core goes to, as "core". */
#include "defects.h"
#include <sys/resource.h>
#include <sys/stat.h>

#define BYTES (96 << 20)
#define AWAY (32 << 20)

int main(int argc, char **argv)
{
	CHECK(argc == 2 && chdir(argv[1]) == 0);
	double *begun = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(begun != MAP_FAILED);
	unlink("core");
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
		CHECK(setrlimit(RLIMIT_CORE, &all) == 0);
		unsigned char *p = map(BYTES);
		fill(p, 14, BYTES);
		evict(p, AWAY);
		*begun = now();
		abort();
	}
	int status = 0;
	CHECK(waitpid(pid, &status, 0) == pid);
	double took = now() - *begun;
	struct stat core;
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && WCOREDUMP(status));
	CHECK(stat("core", &core) == 0);
	printf("microseconds %ld bytes %ld\n", (long)(took * 1e6), (long)core.st_blocks * 512);
	printf("d14 right\n");
	return 0;
}
