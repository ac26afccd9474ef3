/* Children that only read what their parent has, more than fits: it is stored once for all of them.
   Arguments: how many, and MiB; "idle": they only wait, and all of it is away; "write": they write
   what does not compress over all of it, and most are killed. */
#include "defects.h"

static size_t bytes;

/* A page that compresses to a tenth, another one for each number. */
static void page(unsigned *at, unsigned number)
{
	unsigned x = number;
	for (int k = 0; k < 1024; k++) {
		x = x * 1664525 + 1013904223;
		at[k] = k % 32 ? 7 : x;
	}
}

static int is_right(const unsigned char *p)
{
	unsigned want[1024];
	for (size_t i = 0; i < bytes / PAGE; i++) {
		page(want, i + 1);
		if (memcmp(p + i * PAGE, want, PAGE) != 0)
			return 0;
	}
	return 1;
}

/* What each has written over all of it is there until it ends. */
static void write_all(unsigned char *p, unsigned seed)
{
	unsigned *at = (unsigned *)p, x = seed;
	for (size_t i = 0; i < bytes / sizeof *at; i++)
		at[i] = x = x * 1664525 + 1013904223;
	x = seed;
	for (size_t i = 0; i < bytes / sizeof *at; i++)
		CHECK(at[i] == (x = x * 1664525 + 1013904223));
	_exit(0);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 12, gate[2], status;
	int is_idle = argc > 3 && !strcmp(argv[3], "idle");
	int writes = argc > 3 && !is_idle;
	bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20;
	unsigned char *p = map(bytes);
	for (size_t i = 0; i < bytes / PAGE; i++)
		page((unsigned *)(p + i * PAGE), i + 1);
	if (is_idle)
		evict(p, bytes);
	CHECK(pipe(gate) == 0);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			char end;
			close(gate[1]);
			if (writes)
				write_all(p, i);
			CHECK(is_idle || is_right(p));
			/* Until all are there. */
			CHECK(read(gate[0], &end, 1) == 0);
			if (is_idle)
				_exit(0);
			CHECK(is_right(p));
			/* And what one of them writes is its own. */
			for (size_t k = i; k < bytes / PAGE; k += 64)
				p[k * PAGE] = i;
			for (size_t k = i; k < bytes / PAGE; k += 64)
				CHECK(p[k * PAGE] == i);
			_exit(0);
		}
	}
	if (is_idle)
		pause_ms(1000);
	CHECK(is_right(p));
	close(gate[1]);
	for (int i = 0; i < n; i++) {
		CHECK(wait(&status) > 0);
		CHECK(status == 0 || (writes && status == SIGKILL));
	}
	CHECK(is_right(p));
	puts("family right");
	return 0;
}
