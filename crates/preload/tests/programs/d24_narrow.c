/* A program that allows itself a dozen calls and no more, as OpenSSH's does where it talks to
   strangers: memory, reading and writing, the time. Not even a signal's handler could return. It has
   its memory as before, with what is away, and its threads' registers. Prints "d24 right". */
#include "defects.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static const int allowed[] = {
	SYS_read, SYS_write, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mprotect, SYS_brk,
	SYS_futex, SYS_clock_gettime, SYS_rt_sigprocmask, SYS_exit, SYS_exit_group,
};

static void filter(void)
{
	enum { N = sizeof allowed / sizeof allowed[0] };
	static struct sock_filter code[N + 3];
	code[0] = (struct sock_filter)
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < N; i++)
		code[i + 1] = (struct sock_filter)
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], (unsigned char)(N - i), 0);
	code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {N + 3, code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* A call on memory by an instruction, with patterns in the registers that it keeps. */
static int keeps_registers(void)
{
	uint64_t r[6];
	long result = SYS_mprotect;
	double low[2] = {1.5, -2.25}, high[2] = {0, 0};
	unsigned long flags;
	static unsigned char page[2 * PAGE] __attribute__((aligned(4096)));
	__asm__ volatile(
		"movupd %[low], %%xmm9\n\t"
		"mov $0x1111, %%r12\n\tmov $0x2222, %%r13\n\tmov $0x3333, %%r14\n\tmov $0x4444, %%r15\n\t"
		"mov $0x5555, %%r8\n\tmov $0x6666, %%r9\n\t"
		"stc\n\tsyscall\n\t"
		"pushfq\n\tpop %[flags]\n\t"
		"mov %%r12, %[r]\n\tmov %%r13, 8+%[r]\n\tmov %%r14, 16+%[r]\n\tmov %%r15, 24+%[r]\n\t"
		"mov %%r8, 32+%[r]\n\tmov %%r9, 40+%[r]\n\tmovupd %%xmm9, %[high]"
		: "+a"(result), [r] "=m"(r), [high] "=m"(high), [flags] "=&b"(flags)
		: [low] "m"(low), "D"(page), "S"(PAGE), "d"(PROT_READ | PROT_WRITE)
		: "rcx", "r8", "r9", "r11", "r12", "r13", "r14", "r15", "xmm9", "memory", "cc");
	return result == 0 && r[0] == 0x1111 && r[1] == 0x2222 && r[2] == 0x3333 && r[3] == 0x4444
		&& r[4] == 0x5555 && r[5] == 0x6666 && high[0] == low[0] && high[1] == low[1] && flags & 1;
}

int main(int argc, char **argv)
{
	unsigned char *p = NULL;
	size_t n = 96 * MIB;
	if (argc > 1 && strcmp(argv[1], "managed") == 0) {
		p = map(n);
		fill(p, 24, n);
	}
	alarm(60);
	filter();
	if (!p) {
		p = map(n);
		fill(p, 24, n);
	}
	for (int i = 0; i < 1000; i++)
		CHECK(keeps_registers());
	for (int i = 0; i < 20; i++) {
		unsigned char *own = map(4 * MIB);
		fill(own, 25, 4 * MIB);
		CHECK(mprotect(own, MIB, PROT_READ) == 0 && right(own, 25, 4 * MIB));
		CHECK(mprotect(own, MIB, RW) == 0);
		own = mremap(own, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE);
		CHECK(own != MAP_FAILED && munmap(own, 8 * MIB) == 0);
		void *volatile block = malloc(300000u * (unsigned)(i + 1));
		CHECK(block);
		free(block);
	}
	CHECK(right(p, 24, n));
	say("d24 right\n");
	_exit(0);
}
