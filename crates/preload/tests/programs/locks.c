/* mlockall, and what may be locked. Prints "locks right". The argument is the limit in MiB, or 0
   for a run without one, in which only what the kernel answers too is asked. */
#include "check.h"
#include "rights.h"
#include <sys/wait.h>

static unsigned char *map(size_t n, int prot, int flags)
{
	return mmap(NULL, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static size_t resident(const unsigned char *p, size_t n)
{
	static unsigned char vec[1 << 16];
	size_t k = 0;
	CHECK(mincore((void *)p, n, vec) == 0);
	for (size_t i = 0; i < n / PAGE; i++)
		k += vec[i] & 1;
	return k;
}

enum { RW = PROT_READ | PROT_WRITE };

static void everything(size_t limit)
{
	unsigned char *p = map(MIB, RW, 0), *none = map(64 * MIB, PROT_NONE, 0);
	unsigned char *room = limit ? map(4 * limit * MIB, RW, MAP_NORESERVE) : none;
	CHECK(p != MAP_FAILED && none != MAP_FAILED && room != MAP_FAILED);
	CHECK(mlockall(MCL_ONFAULT) == -1 && errno == EINVAL);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
	CHECK(resident(p, MIB) == 256 && resident(none, 64 * MIB) == 0 && resident(room, 64 * MIB) == 0);
	unsigned char *q = map(4 * MIB, RW, 0), *big = map(36 * MIB, RW, 0);
	CHECK(resident(q, 4 * MIB) == 1024 && resident(big, 36 * MIB) == 36 * 256);
	CHECK(munmap(big, 36 * MIB) == 0);
	if (limit)
		CHECK(map(limit * MIB, RW, 0) == MAP_FAILED && errno == EAGAIN);
	CHECK(madvise(q, MIB, MADV_DONTNEED) == -1 && errno == EINVAL);
	q[0] = 9;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		/* No lock is inherited, and none to come. */
		CHECK(q[0] == 9 && madvise(q, MIB, MADV_DONTNEED) == 0 && q[0] == 0);
		unsigned char *new = map(MIB, RW, 0);
		CHECK(resident(new, MIB) == 0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(q[0] == 9 && madvise(q, MIB, MADV_DONTNEED) == -1);
	CHECK(munlockall() == 0 && madvise(q, MIB, MADV_DONTNEED) == 0 && q[0] == 0);
	CHECK(resident(map(MIB, RW, 0), MIB) == 0);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
	unsigned char *later = map(MIB, RW, 0);
	CHECK(resident(later, MIB) == 0);
	later[0] = 1;
	CHECK(madvise(later, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL && munlockall() == 0);
}

static void limited(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	CHECK(syscall(SYS_capget, &head, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	CHECK(syscall(SYS_capset, &head, data) == 0);
	struct rlimit two = {2 * MIB, 2 * MIB}, nothing = {0, 2 * MIB};
	CHECK(setrlimit(RLIMIT_MEMLOCK, &two) == 0);
	unsigned char *p = map(4 * MIB, RW, 0);
	CHECK(mlock(p, MIB) == 0 && mlock(p, MIB) == 0);
	CHECK(mlock(p, 3 * MIB) == -1 && errno == ENOMEM);
	CHECK(mlock(p + MIB / 2, 3 * MIB / 2) == 0);
	CHECK(mlock2(p + 3 * MIB, PAGE, MLOCK_ONFAULT) == -1 && errno == ENOMEM);
	CHECK(munlock(p, 4 * MIB) == 0);
	CHECK(map(3 * MIB, RW, MAP_LOCKED) == MAP_FAILED && errno == EAGAIN);
	unsigned char *l = map(2 * MIB, RW, MAP_LOCKED);
	CHECK(l != MAP_FAILED && resident(l, 2 * MIB) == 512 && munmap(l, 2 * MIB) == 0);
	CHECK(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);
	CHECK(mlockall(MCL_FUTURE) == 0);
	CHECK(map(3 * MIB, RW, 0) == MAP_FAILED && errno == EAGAIN);
	l = map(MIB, RW, 0);
	CHECK(l != MAP_FAILED && resident(l, MIB) == 256 && munlockall() == 0);
	CHECK(setrlimit(RLIMIT_MEMLOCK, &nothing) == 0);
	CHECK(mlock(p, PAGE) == -1 && errno == EPERM);
	CHECK(mlockall(MCL_CURRENT) == -1 && errno == EPERM);
	CHECK(map(MIB, RW, MAP_LOCKED) == MAP_FAILED && errno == EPERM);
	CHECK(munlock(p, PAGE) == 0 && munlockall() == 0);
}

int main(int argc, char **argv)
{
	size_t limit = argc > 1 ? (size_t)atoi(argv[1]) : 0;
	if (may_lock((limit ? limit : 64) * MIB))
		everything(limit);
	limited();
	puts("locks right");
	return 0;
}
