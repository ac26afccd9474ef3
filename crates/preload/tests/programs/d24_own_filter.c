/* A program that refuses itself calls by a seccomp filter, as services do: sockets, userfaultfd and
   what reaches into other processes. It and its children have memory, fork and execute programs as
   before. The first argument: "small" or "managed", when the filter comes; or "crowd": many do so at
   once. A second one, "kill": what is refused is the end. A third: the program that is executed, if it
   is not this one. Prints "d24 right". */
#include "defects.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static void filter(unsigned then)
{
	static const int refused[] = {
		SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept4, SYS_userfaultfd,
		SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_getfd,
		SYS_process_madvise, SYS_memfd_create, SYS_kcmp, SYS_io_uring_setup, SYS_bpf,
		SYS_perf_event_open, SYS_mount, SYS_unshare, SYS_setns, SYS_seccomp,
	};
	enum { N = sizeof refused / sizeof refused[0] };
	struct sock_filter code[N + 3];
	unsigned number = offsetof(struct seccomp_data, nr);
	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number);
	for (unsigned i = 0; i < N; i++)
		code[i + 1] = (struct sock_filter)
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)refused[i], (unsigned char)(N - i), 0);
	code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, then);
	struct sock_fprog program = {N + 3, code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	CHECK(then == SECCOMP_RET_KILL_PROCESS
		|| (syscall(SYS_pidfd_open, getpid(), 0) == -1 && errno == EPERM));
}

static int work(void)
{
	unsigned char *p = map(16 * MIB);
	fill(p, 10, 16 * MIB);
	return right(p, 10, 16 * MIB) ? 0 : 6;
}

/* A child's own child has nothing of it either. */
static int wiped_again(unsigned char *p)
{
	fill(p, 26, MIB);
	pid_t pid = fork();
	if (pid == 0)
		_exit(!zero(p, MIB));
	return !well(pid, "grandchild");
}

static char self[4096];

/* All share what was kept for them before. */
static void crowd(void)
{
	pid_t children[8], pid;
	for (int i = 0; i < 8; i++) {
		CHECK((children[i] = fork()) >= 0);
		for (int k = 0; children[i] == 0 && k < 8; k++) {
			CHECK((pid = fork()) >= 0);
			/* As those do who execute strangers: at once, or (CLOSE_RANGE_CLOEXEC) then. */
			if (pid == 0 && k % 4 >= 2)
				CHECK(syscall(SYS_close_range, 3, ~0u, k % 4 == 3 ? 4 : 0) == 0);
			if (pid == 0 && k != 4)
				execl(self, self, "work", (char *)NULL);
			if (pid == 0)
				_exit(work());
			CHECK(well(pid, k != 4 ? "program executed" : "grandchild"));
		}
		if (children[i] == 0)
			_exit(0);
	}
	for (int i = 0; i < 8; i++)
		CHECK(well(children[i], "child"));
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "work") == 0)
		return work();
	unsigned char *p = NULL;
	unsigned char *wiped = NULL;
	size_t n = 96 * MIB;
	int managed = argc > 1 && strcmp(argv[1], "managed") == 0, bad = 0;
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	if (argc > 3)
		strcpy(self, argv[3]);
	alarm(60);
	if (managed) {
		p = map(n);
		fill(p, 24, n);
		wiped = map(MIB);
		fill(wiped, 25, MIB);
		CHECK(madvise(wiped, MIB, MADV_WIPEONFORK) == 0);
	}
	filter(argc > 2 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM);
	if (argc > 1 && strcmp(argv[1], "crowd") == 0) {
		crowd();
		puts("d24 right");
		return 0;
	}
	if (!managed) {
		p = map(n);
		fill(p, 24, n);
	}
	for (size_t i = 0; i < 6; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0 && i % 2 == 0)
			_exit(right_page(p, 24, i * 100) && work() == 0 ? 0 : 7);
		if (pid == 0) {
			execl(self, self, "work", (char *)NULL);
			_exit(9);
		}
		bad += !well(pid, i % 2 ? "program executed" : "child");
	}
	for (int kept = 0; managed && kept < 2; kept++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(kept ? !right(wiped, 25, MIB) : !zero(wiped, MIB) || wiped_again(wiped));
		bad += !well(pid, kept ? "child of what is kept" : "child of what is wiped");
		CHECK(right(wiped, 25, MIB) && madvise(wiped, MIB, MADV_KEEPONFORK) == 0);
	}
	CHECK(bad == 0 && right(p, 24, n) && work() == 0);
	puts("d24 right");
	return 0;
}
