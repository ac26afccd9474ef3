/* What an ordinary user may. Included after check.h. */
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Whether so many bytes may be locked at once; says so if they may not. */
static inline int may_lock(size_t n)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	struct rlimit limit;
	CHECK(syscall(SYS_capget, &head, data) == 0 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (data[0].effective & 1u << CAP_IPC_LOCK || limit.rlim_cur >= n)
		return 1;
	printf("SKIPPED: in part, RLIMIT_MEMLOCK is below %lu MiB\n", (n + MIB - 1) / MIB);
	return 0;
}

/* A userfaultfd of the program's own: an ordinary user's hears of no faults of the kernel. */
static inline int own_userfaultfd(int flags)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | flags);
	if (fd < 0 && errno == EPERM)
		fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | flags | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = {.api = UFFD_API};
	CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
	return fd;
}
