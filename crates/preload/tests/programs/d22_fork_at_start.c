/* A fork at the moment at which another thread makes the program's memory managed: the child, too,
   gets memory. In 60 short processes. Half of them have a library that is initialised first, whose
   handler is the last before the fork and lasts a moment. Prints "d22 right". */
#include "defects.h"

static volatile int ready, go;
static int number = -1;

static void a_moment(void)
{
	for (double until = now() + 0.00002 * (number % 60); now() < until; ) {}
}

static void library_prepare(void)
{
	if (number < 0 || number % 2 == 0)
		return;
	go = 1;
	while (!ready) {}
	a_moment();
}

static void library_start(void) { pthread_atfork(library_prepare, NULL, NULL); }
__attribute__((section(".preinit_array"), used)) static void (*const start)(void) = library_start;

static void *grow(void *kind)
{
	unsigned char *p;
	while (!go) {}
	ready = 1;
	if (kind)
		p = map(4 * MIB);
	else
		CHECK((p = aligned_alloc(PAGE, 4 * MIB)) != NULL);
	memset(p, 0, 4 * MIB);
	fill(p, 22, 4 * MIB);
	CHECK(right(p, 22, 4 * MIB));
	return NULL;
}

static int once(void)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, grow, number % 4 < 2 ? "map" : NULL) == 0);
	if (number % 2 == 0) {
		go = 1;
		while (!ready) {}
		a_moment();
	}
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			grow(NULL);
			grow("map");
			_exit(0);
		}
		CHECK(well(pid, "child"));
	}
	CHECK(pthread_join(t, NULL) == 0);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		watch(5);
		number = atoi(argv[1]);
		return once();
	}
	int bad = 0;
	for (int i = 0; i < 60 && bad < 3; i++) {
		char text[12];
		snprintf(text, sizeof text, "%d", i);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			execl("/proc/self/exe", argv[0], text, (char *)NULL);
			_exit(9);
		}
		bad += !well(pid, text);
	}
	CHECK(bad == 0);
	puts("d22 right");
	return 0;
}
