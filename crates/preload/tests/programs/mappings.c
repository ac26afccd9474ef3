/* mprotect, munmap and mremap when the kernel has no mapping left to give: what was refused has
   changed nothing. Prints "refusals right". */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>

/* Pages behind the ones that use the mappings up: the first half is written, and huge where it
   can be. */
#define TAIL 2048ul

static sigjmp_buf back;
static unsigned char *p;
static size_t pages;
static unsigned char *want; /* 0 none, 1 read, 3 read and write */

static void caught(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static int reads(unsigned char *at, unsigned char *byte)
{
	if (sigsetjmp(back, 1))
		return 0;
	*byte = *(volatile unsigned char *)at;
	return 1;
}

static int writes(unsigned char *at)
{
	if (sigsetjmp(back, 1))
		return 0;
	at[8]++;
	return 1;
}

static unsigned char byte_of(size_t i)
{
	return i < pages - TAIL / 2 && (i % 4 == 0 || i >= pages - TAIL) ? (unsigned char)(i * 7 | 1) : 0;
}

/* Every page has the rights and the bytes that the calls which succeeded gave it. */
static void check(size_t from, size_t to, size_t step)
{
	for (size_t i = from; i < to; i += step) {
		unsigned char byte = 0;
		int may_read = reads(p + i * PAGE, &byte), may_write = writes(p + i * PAGE);
		if ((may_read | may_write << 1) != want[i] || (may_read && byte != byte_of(i))) {
			printf("page %zu of %zu: rights %d%d, not %d; byte %d\n", i, pages, may_read, may_write, want[i], byte);
			fflush(stdout);
			_exit(1);
		}
	}
}

int main(void)
{
	struct sigaction action = {.sa_handler = caught};
	sigaction(SIGSEGV, &action, NULL);
	unsigned long most = 0;
	FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
	CHECK(file && fscanf(file, "%lu", &most) == 1);
	fclose(file);
	if (most > 300000) {
		printf("SKIPPED: %lu mappings are too many to use up\nrefusals right\n", most);
		return 0;
	}
	pages = (most + TAIL + 511) / 512 * 512 + TAIL;
	p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	want = malloc(pages);
	CHECK(p != MAP_FAILED && want);
	memset(want, 3, pages);
	for (size_t i = 0; i < pages; i++)
		if (byte_of(i))
			p[i * PAGE] = byte_of(i);
	size_t end = 1;
	while (end < pages - TAIL && mprotect(p + end * PAGE, PAGE, PROT_READ) == 0) {
		want[end] = 1;
		end += 2;
	}
	CHECK(end < pages - TAIL && errno == ENOMEM);
	size_t huge = pages - TAIL;
	/* In the middle of one mapping; over many; of what is huge; of what was never written. */
	CHECK(mprotect(p + (end + 5) * PAGE, PAGE, PROT_NONE) == -1 && errno == ENOMEM);
	CHECK(mprotect(p + (end + 5) * PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == -1 && errno == ENOMEM);
	CHECK(munmap(p + (huge + 100) * PAGE, 50 * PAGE) == -1 && errno == ENOMEM);
	CHECK(mprotect(p + (huge + 700) * PAGE, 9 * PAGE, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(mprotect(p + (pages - 100) * PAGE, 9 * PAGE, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(mremap(p + (huge + 100) * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
	check(0, pages - TAIL, 3);
	check(pages - TAIL, pages, 1);
	/* Less is more: neighbours become one, and there is room again. */
	for (size_t i = 1; i < 400; i += 2) {
		CHECK(mprotect(p + i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
		want[i] = 3;
	}
	CHECK(mprotect(p + (end + 5) * PAGE, PAGE, PROT_NONE) == 0);
	want[end + 5] = 0;
	check(0, 512, 1);
	check(end - 8, end + 16, 1);
	CHECK(mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
	memset(want, 3, pages);
	check(0, pages, 1);
	CHECK(munmap(p, pages * PAGE) == 0);
	puts("refusals right");
	return 0;
}
