/* What few programs do. Prints "unusual right". The first argument: "pointers" (calls with pointers
   that lead nowhere fail with EFAULT), "vdso" (the vDSO is unmapped), "files" (processes that share
   descriptors and not memory). */
#include "defects.h"
#include <sched.h>
#include <sys/auxv.h>

static char *arguments[] = {"true", NULL};

static void pointers(void)
{
	char *nowhere[] = {(char *)-1L, (char *)mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
	for (int i = 0; i < 2; i++) {
		char **list = (char **)nowhere[i];
		CHECK(execve(nowhere[i], arguments, environ) == -1 && errno == EFAULT);
		CHECK(execve("/bin/true", list, environ) == -1 && errno == EFAULT);
		CHECK(execve("/bin/true", arguments, list) == -1 && errno == EFAULT);
		char *entries[] = {"A=b", nowhere[i], NULL};
		CHECK(execve("/bin/true", arguments, entries) == -1 && errno == EFAULT);
		CHECK(execveat(AT_FDCWD, nowhere[i], arguments, environ, 0) == -1 && errno == EFAULT);
		CHECK(execveat(AT_FDCWD, "/bin/true", arguments, list, 0) == -1 && errno == EFAULT);
		/* Static programs have none: libc falls back to clone. */
		int other = getauxval(AT_BASE) ? EFAULT : ENOSYS;
		CHECK(syscall(SYS_clone3, nowhere[i], 88) == -1 && (errno == EFAULT || errno == other));
	}
	/* A string may end with its page, a list with another. */
	char *pages = (char *)map(3 * PAGE);
	CHECK(munmap(pages + 2 * PAGE, PAGE) == 0);
	char *path = pages + 2 * PAGE - strlen("/no/such") - 1;
	strcpy(path, "/no/such");
	char **list = (char **)(pages + PAGE) - 1;
	list[0] = "A=b";
	list[1] = NULL;
	CHECK(execve(path, arguments, list) == -1 && errno == ENOENT);
}

static void vdso(void)
{
	unsigned char *p = map(8 * MIB);
	fill(p, 5, 8 * MIB);
	unsigned long at = getauxval(AT_SYSINFO_EHDR), from, to = 0;
	char line[600];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps) && (sscanf(line, "%lx-%lx ", &from, &to) != 2 || from != at))
		;
	fclose(maps);
	CHECK(from == at && munmap((void *)at, to - at) == 0);
	for (int i = 0; i < 20; i++) {
		unsigned char *more = map(8 * MIB);
		fill(more, i, 8 * MIB);
		CHECK(right_page(more, i, 77) && munmap(more, 8 * MIB) == 0);
	}
	evict(p, 8 * MIB);
	/* Several times what the service waits between two looks at its program. */
	struct timespec time = {0, 300000000};
	syscall(SYS_nanosleep, &time, NULL);
	for (size_t i = 0; i < 8 * MIB / PAGE; i++)
		CHECK(right_page(p, 5, i));
}

static unsigned char *shared;

static int child(void *page)
{
	int bad = 0, ends[2];
	for (size_t i = 0; i < MIB / PAGE; i++)
		bad |= !right_page(shared, 7, i);
	shared[(size_t)page * PAGE] = 1;
	bad |= pipe(ends) != 0 || close(ends[0]) != 0 || close(ends[1]) != 0;
	return bad;
}

static void files(void)
{
	static const int flags[] = {CLONE_FILES, CLONE_FILES | CLONE_FS, CLONE_FILES | CLONE_IO,
		CLONE_FILES | CLONE_UNTRACED, CLONE_FS};
	shared = map(MIB);
	fill(shared, 7, MIB);
	int before = dup(0);
	CHECK(before >= 0 && close(before) == 0);
	for (int round = 0; round < 20; round++)
		for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
			evict(shared, MIB);
			unsigned char *stacks = map(4 * 16 * PAGE);
			for (size_t i = 1; i <= 4; i++)
				CHECK(clone(child, stacks + i * 16 * PAGE, flags[f] | SIGCHLD, (void *)i) > 0);
			for (int i = 0; i < 4; i++) {
				int status;
				CHECK(wait(&status) > 0 && status == 0);
			}
			CHECK(munmap(stacks, 4 * 16 * PAGE) == 0);
			step();
		}
	/* Their ends and ours leave no descriptor behind. */
	CHECK(dup(0) == before);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	/* Without a vDSO no thread may ask libc for the time. */
	if (strcmp(argv[1], "vdso") == 0)
		alarm(60);
	else
		watch(60);
	unsigned char *p = map(4 * MIB);
	fill(p, 1, 4 * MIB);
	if (strcmp(argv[1], "pointers") == 0)
		pointers();
	if (strcmp(argv[1], "vdso") == 0)
		vdso();
	if (strcmp(argv[1], "files") == 0)
		files();
	puts("unusual right");
	return 0;
}
