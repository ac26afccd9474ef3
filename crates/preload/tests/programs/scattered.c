/* Pages of 64 MiB touched in no order, a child that writes half of them, and all of them again.
   Prints "scattered right". */
#include "check.h"
#include <stdint.h>
#include <sys/wait.h>

#define PAGES ((size_t)16384)
#define STEP ((size_t)10007)

static uint64_t *page(unsigned char *p, size_t i)
{
	return (uint64_t *)(p + i * STEP % PAGES * PAGE);
}

int main(void)
{
	unsigned char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	for (size_t i = 0; i < PAGES; i++)
		*page(p, i) = i + 1;
	pid_t child = fork();
	CHECK(child >= 0);
	for (size_t i = child == 0; i < PAGES; i += 2)
		*page(p, i) += PAGES;
	for (size_t i = 0; i < PAGES; i++)
		CHECK(*page(p, i) == i + 1 + (i % 2 == (child == 0) ? PAGES : 0));
	if (child == 0)
		_exit(0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	puts("scattered right");
	return 0;
}
