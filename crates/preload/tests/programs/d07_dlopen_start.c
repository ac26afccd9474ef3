/* One thread opens and closes a library while others start and the program allocates its first
   megabytes, in 50 short processes. Each must end. Prints "d07 right". */
#include "defects.h"
#include <dlfcn.h>

static volatile int over;

static void *opener(void *name)
{
	while (!over) {
		void *l = dlopen(name, RTLD_NOW);
		CHECK(l);
		dlclose(l);
	}
	return NULL;
}

static void *starter(void *unused)
{
	return unused;
}

static void *starts(void *unused)
{
	while (!over) {
		pthread_t t;
		CHECK(pthread_create(&t, NULL, starter, NULL) == 0 && pthread_join(t, NULL) == 0);
	}
	return unused;
}

static void *allocator(void *odd)
{
	void *p[128];
	for (size_t i = 0; i < 128; i++) {
		p[i] = odd ? (void *)map(64 << 10) : malloc(64 << 10);
		CHECK(p[i]);
		memset(p[i], 1, 64 << 10);
	}
	return NULL;
}

static int once(int number)
{
	pthread_t t[4];
	CHECK(pthread_create(&t[0], NULL, opener, "libm.so.6") == 0);
	CHECK(pthread_create(&t[1], NULL, opener, "libresolv.so.2") == 0);
	CHECK(pthread_create(&t[2], NULL, starts, NULL) == 0);
	/* Not always at the same moment. */
	for (double until = now() + 0.0002 * (number % 10); now() < until; ) {}
	CHECK(pthread_create(&t[3], NULL, allocator, "mmap") == 0);
	allocator(NULL);
	CHECK(pthread_join(t[3], NULL) == 0);
	over = 1;
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return once(atoi(argv[1]));
	int hung = 0;
	for (int i = 0; i < 50 && hung < 3; i++) {
		char number[12];
		int status;
		snprintf(number, sizeof number, "%d", i);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			execl("/proc/self/exe", argv[0], number, (char *)NULL);
			_exit(9);
		}
		for (double end = now() + 5; waitpid(pid, &status, WNOHANG) == 0; pause_ms(1))
			if (now() > end) {
				printf("HANG: process %d\n", i);
				fflush(stdout);
				hung++;
				kill(pid, SIGKILL);
				end += 1000;
			}
		CHECK(status == 0 || WTERMSIG(status) == SIGKILL);
	}
	CHECK(hung == 0);
	puts("d07 right");
	return 0;
}
