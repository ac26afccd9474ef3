/* Calls on managed memory whose meaning must be the kernel's. Prints "meanings right". The
   argument is the limit in MiB; what is called "evicted" has been paged out on request. */
#include "check.h"
#include "rights.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static unsigned char *map(size_t n)
{
	unsigned char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

/* Bytes of their own in every page, all of it away. */
static unsigned char *evicted(size_t n)
{
	unsigned char *p = map(n);
	for (size_t i = 0; i < n; i += PAGE) {
		memset(p + i, (int)(i / PAGE) | 1, 64);
	}
	CHECK(madvise(p, n, MADV_PAGEOUT) == 0);
	return p;
}

static int right(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i += PAGE)
		if (p[i] != (unsigned char)(i / PAGE | 1) || p[i + 63] != p[i] || p[i + 64])
			return 0;
	return 1;
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

static void alignment_and_places(void)
{
	for (size_t n = 2 * MIB; n <= 64 * MIB; n *= 4) {
		unsigned char *p = map(n);
		CHECK((uintptr_t)p % (2 * MIB) == 0);
		CHECK(munmap(p, n) == 0);
	}
	unsigned char *p = map(4 * MIB);
	int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
	p[MIB] = 7;
	CHECK(mmap(p + MIB, PAGE, PROT_READ, fixed, -1, 0) == MAP_FAILED && errno == EEXIST);
	CHECK(p[MIB] == 7);
	CHECK(munmap(p + MIB, 4 * PAGE) == 0);
	CHECK(mmap(p + MIB, 4 * PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0) == p + MIB && p[MIB] == 0);
	/* Of a file, too; and what the kernel refuses loses nothing. */
	int fd = memfd_create("x", 0);
	CHECK(ftruncate(fd, 4 * PAGE) == 0 && pwrite(fd, "file", 4, 0) == 4);
	CHECK(mmap(p, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
	p[5] = 9;
	CHECK(mmap(p, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, 999, 0) == MAP_FAILED && errno == EBADF && p[5] == 9);
	CHECK(munmap(p + MIB, 4 * PAGE) == 0);
	CHECK(mmap(p + MIB, 4 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == p + MIB);
	CHECK(memcmp(p + MIB, "file", 4) == 0);
	/* The kernel's answers for what is the kernel's. */
	CHECK(mprotect(p + MIB, PAGE, PROT_NONE) == 0 && mprotect(p + MIB, PAGE, PROT_READ) == 0);
	CHECK(mlock(p, 2 * MIB) == 0 && munlock(p, 2 * MIB) == 0);
	CHECK(memcmp(p + MIB, "file", 4) == 0);
	unsigned char *q = mremap(p + MIB, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE);
	CHECK(q == p + MIB && memcmp(q, "file", 4) == 0);
	q = mremap(p + MIB, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE);
	CHECK(q != MAP_FAILED && memcmp(q, "file", 4) == 0 && munmap(q, 3 * PAGE) == 0);
	CHECK(mmap(p + MIB, 4 * PAGE, PROT_READ | PROT_WRITE, fixed, -1, 0) == p + MIB && p[MIB] == 0);
	p[MIB] = 1;
	CHECK(munmap(p, 4 * MIB) == 0);
	/* A hint that is free is followed. */
	CHECK(mmap(p, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == p);
	CHECK(munmap(p, MIB) == 0);
	close(fd);
}

static void what_forks_do_not_get(void)
{
	unsigned char *dont = evicted(3 * MIB), *wipe = evicted(3 * MIB);
	CHECK(madvise(dont + MIB, MIB, MADV_DONTFORK) == 0);
	CHECK(madvise(wipe + PAGE, MIB, MADV_WIPEONFORK) == 0);
	CHECK(right(dont, 3 * MIB) && right(wipe, 3 * MIB));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		unsigned char vec[1];
		CHECK(wipe[PAGE] == 0 && wipe[MIB] == 0 && wipe[0] == 1 && right(dont, MIB));
		CHECK(syscall(SYS_mincore, dont + MIB, PAGE, vec) == -1 && errno == ENOMEM);
		wipe[PAGE] = 4;
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(right(dont, 3 * MIB) && right(wipe, 3 * MIB));
	CHECK(madvise(dont + MIB, MIB, MADV_DOFORK) == 0);
	/* What has left can be unmapped, and its place used again. */
	CHECK(munmap(dont, 3 * MIB) == 0 && munmap(wipe, 3 * MIB) == 0);
	unsigned char *again = evicted(3 * MIB);
	CHECK(right(again, 3 * MIB) && munmap(again, 3 * MIB) == 0);
}

static void *resolve(void *arg)
{
	int fd = *(int *)arg;
	struct uffd_msg msg;
	static unsigned char page[PAGE] __attribute__((aligned(4096)));
	memset(page, 0x5a, PAGE);
	CHECK(read(fd, &msg, sizeof msg) == sizeof msg && msg.event == UFFD_EVENT_PAGEFAULT);
	struct uffdio_copy copy = {.dst = msg.arg.pagefault.address & ~(PAGE - 1), .src = (uintptr_t)page, .len = PAGE};
	CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0);
	return NULL;
}

static void the_programs_own_userfaultfd(void)
{
	int fd = own_userfaultfd(0);
	unsigned char *p = evicted(4 * MIB);
	CHECK(madvise(p + 2 * MIB, MIB, MADV_DONTNEED) == 0);
	struct uffdio_register reg = {.range = {.start = (uintptr_t)p + MIB, .len = 2 * MIB}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	CHECK(ioctl(fd, UFFDIO_REGISTER, &reg) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, resolve, &fd) == 0);
	CHECK(p[2 * MIB + 5 * PAGE] == 0x5a);
	pthread_join(thread, NULL);
	CHECK(right(p, 2 * MIB) && right(p + 3 * MIB, MIB));
	close(fd);
	CHECK(munmap(p, 4 * MIB) == 0);
}

static void advice_of_the_kernel(void)
{
	unsigned char *p = evicted(2 * MIB);
	CHECK(resident(p, 2 * MIB) == 0 && p[0] == 1 && resident(p, 2 * MIB) > 0);
	CHECK(madvise(p, MIB, MADV_REMOVE) == -1 && errno == EINVAL);
	CHECK(madvise(p, MIB, 12345) == -1 && errno == EINVAL);
	CHECK(madvise(p, MIB, MADV_DONTDUMP) == 0 && madvise(p, MIB, MADV_DODUMP) == 0);
	/* The kernel has three mappings there now, at the edges of which pages come in runs. */
	CHECK(madvise(p + 9 * PAGE, 5 * PAGE, MADV_DONTDUMP) == 0 && madvise(p, 2 * MIB, MADV_PAGEOUT) == 0);
	CHECK(resident(p, 2 * MIB) == 0 && right(p, 2 * MIB));
	unsigned char *fresh = map(MIB);
	CHECK(madvise(fresh + 9 * PAGE, 5 * PAGE, MADV_DONTDUMP) == 0);
	memset(fresh, 6, MIB);
	CHECK(fresh[8 * PAGE] == 6 && fresh[14 * PAGE] == 6 && munmap(fresh, MIB) == 0);
	errno = 0;
	int merge = madvise(p, MIB, MADV_MERGEABLE);
	CHECK((merge == 0 || errno == EINVAL) && right(p, 2 * MIB));
	if (madvise(p + MIB, PAGE, MADV_GUARD_INSTALL) == 0) {
		pid_t pid = fork();
		if (pid == 0) {
			*(volatile char *)(p + MIB) = 1;
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		CHECK(p[MIB + PAGE] == (unsigned char)((MIB + PAGE) / PAGE | 1));
	}
	CHECK(munmap(p + PAGE, PAGE) == 0);
	unsigned char vec[4];
	CHECK(mincore(p, 4 * PAGE, vec) == -1 && errno == ENOMEM);
	CHECK(msync(p, 4 * PAGE, MS_SYNC) == -1 && errno == ENOMEM);
	CHECK(msync(p + 2 * PAGE, 2 * PAGE, MS_SYNC) == 0);
	CHECK(mprotect(p, PAGE, PROT_READ | PROT_GROWSDOWN) == -1 && errno == EINVAL);
	CHECK(munmap(p, 2 * MIB) == 0);

	/* process_madvise on oneself is madvise. */
	p = map(MIB);
	memset(p, 3, MIB);
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct iovec parts[2] = {{p, 4 * PAGE}, {p + 8 * PAGE, 4 * PAGE}};
	CHECK(self >= 0 && process_madvise(self, parts, 2, MADV_PAGEOUT, 0) == 8 * (ssize_t)PAGE);
	CHECK(resident(p, 4 * PAGE) == 0);
	CHECK(p[0] == 3 && p[9 * PAGE] == 3);
	close(self);
	CHECK(munmap(p, MIB) == 0);
}

static void code(void)
{
	static const unsigned char forty_two[] = {0xb8, 42, 0, 0, 0, 0xc3};
	unsigned char *p = evicted(64 * PAGE);
	memcpy(p + 5 * PAGE, forty_two, sizeof forty_two);
	CHECK(mprotect(p, 64 * PAGE, PROT_READ | PROT_EXEC) == 0);
	int (*f)(void) = (int (*)(void))(void *)(p + 5 * PAGE);
	CHECK(f() == 42);
	CHECK(madvise(p, 64 * PAGE, MADV_PAGEOUT) == 0 && f() == 42);
	CHECK(mprotect(p, 64 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	p[5 * PAGE + 1] = 43;
	CHECK(f() == 43 && madvise(p, 64 * PAGE, MADV_PAGEOUT) == 0 && f() == 43 && p[PAGE] == 1);
	CHECK(munmap(p, 64 * PAGE) == 0);
}

static void moves(void)
{
	unsigned char *p = evicted(3 * MIB);
	CHECK(mremap(p, 3 * MIB, 4 * MIB, MREMAP_DONTUNMAP | MREMAP_MAYMOVE, NULL) == MAP_FAILED && errno == EINVAL);
	CHECK(mremap(p, 3 * MIB, 3 * MIB, MREMAP_DONTUNMAP, NULL) == MAP_FAILED && errno == EINVAL);
	unsigned char *q = mremap(p, 3 * MIB, 3 * MIB, MREMAP_DONTUNMAP | MREMAP_MAYMOVE, NULL);
	CHECK(q != MAP_FAILED && q != p && right(q, 3 * MIB));
	for (size_t i = 0; i < 3 * MIB; i += PAGE)
		CHECK(p[i] == 0);
	memset(p, 8, 3 * MIB);
	CHECK(right(q, 3 * MIB));
	/* There by force, over what was written, and out of the arena. */
	CHECK(mremap(q, 3 * MIB, 3 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p && right(p, 3 * MIB));
	unsigned char *out = mmap(NULL, 4 * MIB, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(madvise(p, 3 * MIB, MADV_PAGEOUT) == 0);
	CHECK(mremap(p, 3 * MIB, 3 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, out) == out && right(out, 3 * MIB));
	CHECK(mprotect(p, PAGE, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(munmap(out, 4 * MIB) == 0);
}

static void locks(size_t limit)
{
	unsigned char *p = evicted(4 * MIB);
	CHECK(mlock2(p, 2 * MIB, MLOCK_ONFAULT) == 0 && resident(p, 2 * MIB) == 0);
	p[3 * PAGE] = 5;
	CHECK(madvise(p, 2 * MIB, MADV_PAGEOUT) == -1 && errno == EINVAL);
	CHECK(madvise(p, 2 * MIB, MADV_DONTNEED) == -1 && errno == EINVAL);
	CHECK(p[3 * PAGE] == 5);
	CHECK(mlock2(p, PAGE, 77) == -1 && errno == EINVAL);
	CHECK(munlock(p, 2 * MIB) == 0 && mlock(p, 4 * MIB) == 0 && resident(p, 4 * MIB) == 1024);
	CHECK(madvise(p, 4 * PAGE, MADV_DONTNEED_LOCKED) == 0 && p[0] == 0 && p[4 * PAGE] == 5);
	/* Under pressure it stays. */
	unsigned char *big = map(limit * MIB);
	for (size_t i = 0; i < limit * MIB; i += PAGE)
		big[i] = 1;
	CHECK(resident(p + MIB, 3 * MIB) == 768);
	CHECK(mlock(big, limit * MIB) == -1 && errno == ENOMEM);
	CHECK(munmap(big, limit * MIB) == 0);
	CHECK(mmap(NULL, limit * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED && errno == EAGAIN);
	unsigned char *l = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	CHECK(l != MAP_FAILED && resident(l, MIB) == 256);
	l = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(l != MAP_FAILED && resident(l, MIB) == 256);
	CHECK(munmap(p, 4 * MIB) == 0);

	p = evicted(MIB);
	CHECK(mlockall(0) == -1 && errno == EINVAL);
	CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
	CHECK(resident(p, MIB) == 256 && madvise(p, MIB, MADV_PAGEOUT) == -1);
	unsigned char *q = map(MIB);
	CHECK(resident(q, MIB) == 256);
	CHECK(munlockall() == 0 && madvise(p, MIB, MADV_PAGEOUT) == 0 && resident(p, MIB) == 0);
	q = map(MIB);
	CHECK(resident(q, MIB) == 0);
}

int main(int argc, char **argv)
{
	unsigned char *p = map(8 * MIB);
	CHECK(munmap(p, 8 * MIB) == 0);
	alignment_and_places();
	what_forks_do_not_get();
	the_programs_own_userfaultfd();
	advice_of_the_kernel();
	code();
	moves();
	/* All of the limit, and more. */
	size_t limit = argc > 1 ? (size_t)atoi(argv[1]) : 0;
	if (limit && may_lock(limit * MIB))
		locks(limit);
	puts("meanings right");
	return 0;
}
