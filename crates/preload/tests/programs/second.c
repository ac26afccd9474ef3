/* A program that no library can be loaded into does all that concerns memory.

   second [MIB]: its heap (brk), its data (.bss), mappings, threads that end in every way, children
   of every kind, and programs that are not there. Prints "second right".
   second child N: ends with status N.
   second traced PROGRAM: executes it with a tracer of its own; its status. */
#include "defects.h"
#include <spawn.h>
#include <stdatomic.h>
#include <sys/ptrace.h>

#define DATA (24 * MIB)
static _Alignas(PAGE) unsigned char data[DATA];
static atomic_int ended;

static void *works(void *a)
{
	unsigned seed = (unsigned)(long)a;
	static __thread char *block[500];
	static __thread size_t bytes[500];
	for (int i = 0; i < 6000; i++) {
		int k = rand_r(&seed) % 500;
		if (block[k]) {
			for (size_t j = 0; j < bytes[k]; j += 61)
				CHECK(block[k][j] == (char)(k + (long)a));
			free(block[k]);
			block[k] = NULL;
		} else {
			bytes[k] = rand_r(&seed) % 40000 + 1;
			CHECK((block[k] = malloc(bytes[k])) != NULL);
			memset(block[k], k + (int)(long)a, bytes[k]);
		}
	}
	for (int k = 0; k < 500; k++)
		free(block[k]);
	atomic_fetch_add(&ended, 1);
	return NULL;
}

static int status_of(pid_t pid)
{
	int status = 0;
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	return status;
}

static void *executes(void *args)
{
	execve(((char **)args)[0], args, environ);
	return NULL;
}

static void makes_children(const char *self)
{
	char *args[] = {(char *)self, "child", "7", NULL}, *none[] = {NULL};
	/* By a thread that is not the first one. */
	pid_t by_thread = fork();
	if (by_thread == 0) {
		pthread_t other;
		CHECK(pthread_create(&other, NULL, executes, args) == 0);
		pthread_join(other, NULL);
		_exit(8);
	}
	CHECK(status_of(by_thread) == 7 << 8);
	for (int i = 0; i < 6; i++) {
		pid_t pid = i & 1 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (pid == 0) {
			int bad = !right(data, 2, DATA);
			fill_page(data, 3, (size_t)i);
			_exit(bad);
		}
		CHECK(status_of(pid) == 0);
	}
	for (int i = 0; i < 6; i++) {
		pid_t pid;
		if (i < 2)
			CHECK(posix_spawn(&pid, self, NULL, NULL, args, i ? environ : none) == 0);
		else if ((pid = i & 1 ? vfork() : fork()) == 0) {
			/* The first is not made, and the caller goes on. */
			execve("/not/there", args, none);
			execve(self, args, i < 4 ? none : environ);
			_exit(8);
		}
		CHECK(status_of(pid) == 7 << 8);
	}
	pid_t pid;
	CHECK(posix_spawn(&pid, "/not/there", NULL, NULL, args, environ) == ENOENT);
	char *shell[] = {"sh", "-c", "exit $(($(/bin/echo 3) + 1))", NULL};
	if ((pid = vfork()) == 0)
		execve("/bin/sh", shell, environ);
	CHECK(status_of(pid) == 4 << 8);
}

static int traced(char **argv)
{
	pid_t pid = fork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(argv[0], argv);
		_exit(9);
	}
	int status;
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status))
		ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "child") == 0)
		return atoi(argv[2]);
	if (argc > 2 && strcmp(argv[1], "traced") == 0)
		return traced(argv + 2);
	size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 32) * MIB;
	watch(60);
	for (size_t i = 0; i < DATA; i += PAGE)
		CHECK(data[i] == 0);
	fill(data, 2, DATA);
	unsigned char *memory = map(bytes);
	fill(memory, 1, bytes);
#ifdef __GLIBC__
	char *heap = sbrk(0);
	CHECK(sbrk(8 * MIB) == heap);
#else
	/* musl keeps the end of the heap for itself. */
	char *heap = (char *)map(8 * MIB);
#endif
	fill((unsigned char *)(((uintptr_t)heap + PAGE) & -PAGE), 4, 7 * MIB);
	step();
	pthread_t joined[3];
	pthread_attr_t detached;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	for (long i = 0; i < 3; i++)
		CHECK(pthread_create(&joined[i], NULL, works, (void *)i) == 0);
	for (long i = 3; i < 9; i++) {
		pthread_t other;
		CHECK(pthread_create(&other, &detached, works, (void *)i) == 0);
		step();
	}
	makes_children(argv[0]);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(joined[i], NULL) == 0);
	while (atomic_load(&ended) < 9)
		usleep(1000), step();
	CHECK(right(memory, 1, bytes) && right(data, 2, DATA));
	CHECK(right((unsigned char *)(((uintptr_t)heap + PAGE) & -PAGE), 4, 7 * MIB));
	CHECK(madvise(memory, bytes / 2, MADV_DONTNEED) == 0);
	for (size_t i = 0; i < bytes / 2; i += PAGE)
		CHECK(memory[i] == 0);
	CHECK(munmap(memory, bytes) == 0);
	puts("second right");
	return 0;
}
