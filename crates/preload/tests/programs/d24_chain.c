/* A program that takes rights from itself, and its children down to the third generation: each finds
   the bytes that its parent had at the fork, also those that are away, writes its own, has memory of
   its own, and its parent's stay as they were. The first argument says what is taken: by a filter
   that refuses calls of an ordinary program ("eperm", "enosys", "kill", "trap"), that allows what
   deckle needs and the program makes ("allow", the rest is the end), that allows no messages
   ("mute"), that refuses prctl ("prctl"); "chroot", "net", "pid", "mounts", "landlock", no files
   until the limit is raised ("files") or ever ("nofiles"). The second: "small" or "managed", what the
   program is then. Prints "d24 right", or "d24 no fork" if there is none, with its errno. */
#include "defects.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Each of four processes in a row gets to have a copy of its own of all of its memory in the store, a
   ninth of it: with what they are charged for themselves that takes 52 of 64 MiB. */
#define BYTES (80 * MIB)
#define OWN (8 * MIB)

static const int refused[] = {
	SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept4, SYS_userfaultfd,
	SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_getfd,
	SYS_process_madvise, SYS_memfd_create, SYS_kcmp, SYS_io_uring_setup, SYS_bpf, SYS_open,
	SYS_openat, SYS_stat, SYS_statx, SYS_readlink, SYS_access, SYS_setsid, SYS_chdir,
	SYS_perf_event_open, SYS_mount, SYS_unshare, SYS_setns, SYS_seccomp, SYS_capset, SYS_prlimit64,
	SYS_sched_setscheduler, SYS_sched_setaffinity, SYS_clone3,
};
/* What deckle says that it needs, then what the program needs. "mute" leaves the first two out. */
static const int allowed[] = {
	SYS_sendmsg, SYS_recvmsg,
	SYS_arch_prctl, SYS_clock_getres, SYS_clock_gettime, SYS_clone, SYS_close, SYS_close_range,
	SYS_eventfd2, SYS_exit, SYS_exit_group, SYS_futex, SYS_getpid, SYS_gettid, SYS_ioctl, SYS_lseek,
	SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_newfstatat, SYS_poll, SYS_ppoll,
	SYS_pread64, SYS_read, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
	SYS_sched_getaffinity, SYS_sched_yield, SYS_set_tid_address, SYS_sigaltstack, SYS_waitid,
	SYS_prctl, SYS_wait4, SYS_write, SYS_set_robust_list,
	/* With assertions on Rust's library asks whether a descriptor is open before it closes it. */
	SYS_fcntl,
};

static struct sock_filter code[128];

/* A filter that decides `then` on each of these calls, and `otherwise` on all others. */
static void filter(const int *calls, size_t n, unsigned then, unsigned otherwise)
{
	code[0] = (struct sock_filter)
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < n; i++)
		code[i + 1] = (struct sock_filter)
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], (unsigned char)(n - i), 0);
	code[n + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
	code[n + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, then);
	struct sock_fprog program = {(unsigned short)(n + 3), code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static int is(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

static void leave(const char *what)
{
	static const int prctl_alone[] = {SYS_prctl};
	size_t all = sizeof refused / sizeof *refused, most = sizeof allowed / sizeof *allowed;
	if (is(what, "eperm"))
		filter(refused, all, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW);
	else if (is(what, "enosys"))
		filter(refused, all, SECCOMP_RET_ERRNO | ENOSYS, SECCOMP_RET_ALLOW);
	else if (is(what, "kill"))
		/* clone3: what the C library tries before clone. */
		filter(refused, all - 1, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
	else if (is(what, "trap"))
		filter(refused, all - 1, SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW);
	else if (is(what, "allow"))
		filter(allowed, most, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
	else if (is(what, "mute"))
		filter(allowed + 2, most - 2, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
	else if (is(what, "prctl"))
		filter(prctl_alone, 1, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
	else if (is(what, "chroot")) {
		CHECK(mkdir("/tmp/deckle-empty", 0700) == 0 || errno == EEXIST);
		CHECK(chroot("/tmp/deckle-empty") == 0 && chdir("/") == 0);
	} else if (is(what, "files") || is(what, "nofiles")) {
		struct rlimit none = {0, is(what, "files") ? 1024 : 0};
		CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	} else if (is(what, "landlock")) {
		struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE
			| LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_DIR};
		int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
		CHECK(fd >= 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		CHECK(syscall(SYS_landlock_restrict_self, fd, 0) == 0 && close(fd) == 0);
	} else if (is(what, "mounts")) {
		CHECK(unshare(CLONE_NEWNS) == 0);
		CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
		CHECK(mount("none", "/dev", "tmpfs", 0, NULL) == 0 && umount2("/proc", MNT_DETACH) == 0);
	} else
		CHECK(unshare(is(what, "net") ? CLONE_NEWNET : CLONE_NEWPID) == 0);
}

static unsigned char *p;
static int last = 3;

/* A generation: pages that it and its ancestors have written hold their patterns, the others the
   first. */
static int generation(int number)
{
	size_t mine = (size_t)number * 64, pages = BYTES / PAGE;
	for (size_t i = 0; i < pages; i++)
		if (!right_page(p, i < mine ? 30 + i / 64 : 24, i))
			return 4;
	unsigned char *own = map(OWN);
	fill(own, 50 + (unsigned)number, OWN);
	if (number == last)
		return 0;
	for (size_t i = mine; i < mine + 64; i++)
		fill_page(p, 30 + (unsigned)number, i);
	for (int child = 0; child < (number ? 1 : 2); child++) {
		pid_t pid = fork();
		if (pid < 0) {
			say(errno == ENOMEM ? "d24 no fork: ENOMEM\n" : "d24 no fork: EAGAIN\n");
			return 5;
		}
		if (pid == 0)
			_exit(generation(number + 1));
		if (!well(pid, "child"))
			return 6;
	}
	for (size_t i = 0; i < pages; i++)
		if (!right_page(p, i < mine + 64 ? 30 + i / 64 : 24, i))
			return 7;
	return right(own, 50 + (unsigned)number, OWN) ? 0 : 8;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	alarm(100);
	int managed = is(argv[2], "managed");
	if (managed) {
		p = map(BYTES);
		fill(p, 24, BYTES);
	}
	leave(argv[1]);
	if (!managed) {
		p = map(BYTES);
		fill(p, 24, BYTES);
	}
	int bad = is(argv[1], "pid") ? 0 : generation(0);
	if (is(argv[1], "pid")) {
		/* The first child's end is the end of all in the new namespace. */
		pid_t pid = fork();
		CHECK(pid >= 0);
		last = 2;
		if (pid == 0)
			_exit(generation(0));
		bad = !well(pid, "first");
	}
	if (bad == 0)
		say("d24 right\n");
	return bad;
}
