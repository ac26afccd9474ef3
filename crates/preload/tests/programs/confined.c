/* Executes a program as a container runs it: `confined USER PROGRAM...`, as that user (0: root with
   the capabilities that Docker leaves it), in a mount namespace in which everybody may use
   /dev/userfaultfd, behind a filter that refuses what Docker's default one refuses of all that
   deckle or a program under it might ask for. */
#include "check.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

static const int REFUSED[] = {
	SYS_userfaultfd, SYS_kcmp, SYS_pidfd_getfd, SYS_process_madvise, SYS_mbind, SYS_set_mempolicy,
	SYS_get_mempolicy, SYS_move_pages, SYS_migrate_pages, SYS_unshare, SYS_setns, SYS_mount,
	SYS_umount2, SYS_pivot_root, SYS_perf_event_open, SYS_bpf, SYS_keyctl, SYS_swapon, SYS_swapoff,
	SYS_io_uring_setup, SYS_open_by_handle_at, SYS_quotactl,
};
#define COUNT (sizeof REFUSED / sizeof REFUSED[0])
/* CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. */
#define NAMESPACES 0x7e020000

static void filter(void)
{
	struct sock_filter code[2 * COUNT + 16], *to = code;
	*to++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < COUNT; i++) {
		*to++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REFUSED[i], 0, 1);
		*to++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	*to++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
	*to++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
	*to++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3);
	*to++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
	*to++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1);
	*to++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	*to++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {(unsigned short)(to - code), code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

/* What Docker leaves. */
static int is_left(int capability)
{
	static const int LEFT[] = {
		CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID,
		CAP_SETPCAP, CAP_NET_BIND_SERVICE, CAP_NET_RAW, CAP_SYS_CHROOT, CAP_MKNOD, CAP_AUDIT_WRITE,
		CAP_SETFCAP,
	};
	for (size_t i = 0; i < sizeof LEFT / sizeof LEFT[0]; i++)
		if (LEFT[i] == capability)
			return 1;
	return 0;
}

static void leave_capabilities(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {0};
	for (int i = 0; i <= CAP_LAST_CAP; i++) {
		if (is_left(i))
			data[i / 32].effective |= 1U << i % 32;
		else
			prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
	}
	for (int i = 0; i < 2; i++)
		data[i].permitted = data[i].effective;
	CHECK(syscall(SYS_capset, &head, data) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 3);
	uid_t user = (uid_t)atoi(argv[1]);
	char node[] = "/tmp/deckle-device-XXXXXX";
	struct stat device;
	CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	CHECK(stat("/dev/userfaultfd", &device) == 0);
	CHECK(mkdtemp(node) != NULL);
	/* Where nodes of devices may be, and gone with the namespace. */
	CHECK(mount("tmpfs", node, "tmpfs", 0, NULL) == 0);
	char path[64];
	snprintf(path, sizeof path, "%s/userfaultfd", node);
	CHECK(mknod(path, S_IFCHR | 0600, device.st_rdev) == 0 && chmod(path, 0666) == 0);
	CHECK(mount(path, "/dev/userfaultfd", NULL, MS_BIND, NULL) == 0);
	CHECK(umount2(node, MNT_DETACH) == 0 && rmdir(node) == 0);
	leave_capabilities();
	if (user != 0)
		CHECK(setgroups(0, NULL) == 0 && setgid(user) == 0 && setuid(user) == 0);
	filter();
	execv(argv[2], argv + 2);
	CHECK(!"executed");
	return 1;
}
