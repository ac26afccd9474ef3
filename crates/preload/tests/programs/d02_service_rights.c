/* A task that shares the program's memory holds nothing that the program could win back by running
   code in it: no capability, no way to new privileges, a filter on its calls. Looked at while the
   program is root, and after it has become another user. Run as root. Prints how many such tasks
   there are, then "d02 right". */
#include "defects.h"
#include <dirent.h>
#include <grp.h>
#include <linux/kcmp.h>

static unsigned long long field(const char *text, const char *name, int base)
{
	const char *at = strstr(text, name);
	CHECK(at);
	return strtoull(at + strlen(name), NULL, base);
}

/* Whether this thread holds nothing; says what it holds. */
static int harmless(const char *process, const char *thread)
{
	char path[600], text[4096] = "";
	snprintf(path, sizeof path, "/proc/%s/task/%s/status", process, thread);
	FILE *f = fopen(path, "r");
	if (!f)
		return 1;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	if (n == 0)
		return 1;
	unsigned long long held = field(text, "\nCapEff:", 16) | field(text, "\nCapPrm:", 16)
		| field(text, "\nCapInh:", 16) | field(text, "\nCapAmb:", 16);
	unsigned long long locked = field(text, "\nNoNewPrivs:", 10);
	unsigned long long filter = field(text, "\nSeccomp:", 10);
	if (held == 0 && locked == 1 && filter == 2)
		return 1;
	printf("%.*s task %s: capabilities %llx, NoNewPrivs %llu, Seccomp %llu\n",
	       (int)strcspn(text, "\n"), text, thread, held, locked, filter);
	return 0;
}

/* How many tasks outside process `of` share its memory, or -1 if one of them holds anything. */
static int look(pid_t of)
{
	int found = 0, bad = 0;
	DIR *all = opendir("/proc");
	CHECK(all);
	for (struct dirent *e; (e = readdir(all)); ) {
		pid_t pid = atoi(e->d_name);
		if (pid <= 0 || pid == of || syscall(SYS_kcmp, of, pid, KCMP_VM, 0, 0) != 0)
			continue;
		char path[300];
		snprintf(path, sizeof path, "/proc/%d/task", pid);
		DIR *tasks = opendir(path);
		for (struct dirent *t; tasks && (t = readdir(tasks)); )
			if (atoi(t->d_name) > 0) {
				found++;
				bad += !harmless(e->d_name, t->d_name);
			}
		if (tasks)
			closedir(tasks);
	}
	closedir(all);
	fflush(stdout);
	return bad ? -1 : found;
}

/* The one who looks stays root, which kcmp asks for, and does so before there is any memory. */
static int ask[2], tell[2];

static void looker(pid_t of)
{
	char c;
	close(ask[1]);
	while (read(ask[0], &c, 1) == 1) {
		int n = look(of);
		CHECK(write(tell[1], &n, sizeof n) == sizeof n);
	}
	_exit(0);
}

static int looked(void)
{
	int n = -1;
	CHECK(write(ask[1], "?", 1) == 1 && read(tell[0], &n, sizeof n) == sizeof n);
	step();
	return n;
}

int main(void)
{
	CHECK(getuid() == 0 && pipe(ask) == 0 && pipe(tell) == 0);
	pid_t self = getpid(), pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		looker(self);
	watch(20);
	size_t n = 96 * MIB;
	unsigned char *p = map(n);
	fill(p, 2, n);
	int before = looked();
	CHECK(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0);
	CHECK(setresuid(65534, 65534, 65534) == 0);
	int after = looked();
	CHECK(right(p, 2, n));
	unsigned char *q = map(16 * MIB);
	fill(q, 3, 16 * MIB);
	int late = looked();
	CHECK(right(q, 3, 16 * MIB));
	printf("tasks: %d as root, %d and %d as another user\n", before, after, late);
	CHECK(before >= 0 && after >= 0 && late >= 0);
	puts("d02 right");
	return 0;
}
