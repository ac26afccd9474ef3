/* A huge page of which children inherit one half. It was shared with a child of before when the
   manager took it apart, so the kernel did not, and this process has each of its pages to itself
   again. While a child has the first half, the other must go where the program moves it. */
#include "check.h"
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#define HUGE (2 * MIB)
#define HALF (HUGE / 2)

static int held[2];

/* A child that lives until it is let go. */
static pid_t child(void)
{
	CHECK(pipe(held) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		char byte;
		close(held[1]);
		_exit(read(held[0], &byte, 1) == 0 ? 0 : 1);
	}
	return pid;
}

static void let_go(pid_t pid)
{
	int status = 0;
	close(held[0]);
	close(held[1]);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void move(unsigned char *from, unsigned char *to)
{
	CHECK(mremap(from, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
}

int main(void)
{
	unsigned char *room = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(room != MAP_FAILED);
	unsigned char *p = (unsigned char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1));
	CHECK(madvise(p, HUGE, MADV_HUGEPAGE) == 0);
	memset(p, 1, HUGE);
	pid_t before = child();
	CHECK(mprotect(p, PAGE, PROT_READ) == 0 && mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0);
	let_go(before);
	for (unsigned i = 0; i < HUGE / PAGE; i++)
		p[i * PAGE] = 2 + i % 200;

	CHECK(madvise(p + HALF, HALF, MADV_DONTFORK) == 0);
	pid_t heir = child();
	unsigned char *to = mmap(NULL, HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(to != MAP_FAILED);
	move(p, to);
	move(p + HALF, to + HALF);
	for (unsigned i = 0; i < HUGE / PAGE; i++)
		CHECK(to[i * PAGE] == 2 + i % 200 && to[i * PAGE + 1] == 1);
	let_go(heir);
	puts("both halves moved");
}
