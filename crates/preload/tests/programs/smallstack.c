/* A child on as little stack as that of musl's posix_spawn, in the memory of its parent, with a page
   behind the stack that nobody may touch: it asks for memory's sake, and executes a program. Prints
   how much of the stack was never used. */
#include "defects.h"
#include <sched.h>

#define STACK (1024 + 4096)

static char *none[] = {NULL};
static char *args[] = {"true", NULL};

static int child(void *memory)
{
	/* As it does: signals, descriptors, then the program, which is looked for in vain at first. */
	struct sigaction act = {.sa_handler = SIG_DFL};
	sigaction(SIGUSR1, &act, NULL);
	madvise(memory, PAGE, MADV_DONTNEED);
	execve("/nowhere/true", args, none);
	execve("/bin/true", args, none);
	_exit(3);
}

int main(void)
{
	unsigned char *memory = map(4 << 20);
	memset(memory, 1, 4 << 20);
	unsigned char *place = map(3 * PAGE), *stack = place + PAGE;
	CHECK(mprotect(place, PAGE, PROT_NONE) == 0);
	size_t unused = STACK;
	for (int i = 0; i < 50; i++) {
		memset(stack, 0x5a, STACK);
		pid_t pid = clone(child, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, memory);
		CHECK(pid > 0);
		CHECK(well(pid, "child"));
		size_t n = 0;
		while (n < STACK && stack[n] == 0x5a)
			n++;
		unused = n < unused ? n : unused;
	}
	CHECK(memory[0] == 0 && memory[PAGE] == 1);
	printf("unused %zu\nsmallstack right\n", unused);
	return 0;
}
