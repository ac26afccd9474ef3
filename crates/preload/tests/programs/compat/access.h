/* Memory as it is touched: by the program, by forks, by the kernel for it. */
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

CASE("access none", ALL) { (void)r; }
CASE("access read of one page", ALL) { told(r, *(volatile unsigned char *)AT(1) ? "set" : "zero"); }
CASE("access write of one page", ALL) { *(volatile unsigned char *)AT(1) = 0x55; }
CASE("access write of all", ALL) { fill(P, 0, r->n); }
CASE("access of what is unmapped", ALONE) { told(r, *(volatile unsigned char *)HERE ? "set" : "zero"); }

CASE("fork, the parent writes", ALL)
{
	struct holder h = held(r);
	memset(AT(2), 0x44, Q);
	release(r, h);
}
CASE("fork, the child writes", ALL)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		memset(AT(2), 0x44, Q);
		bytes_of(r->other, sizeof r->other, (struct view){"", P, r->n, 0});
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}
CASE("fork, the child unmaps and maps", ALL)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(munmap(AT(1), Q) == 0 && mmap(AT(2), Q, RW, ANON | MAP_FIXED, -1, 0) == AT(2));
		bytes_of(r->other, sizeof r->other, (struct view){"", P, r->n, 0});
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}
CASE("fork, the child forks", ALL)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		memset(AT(1), 0x44, Q);
		if (fork() == 0) {
			bytes_of(r->other, sizeof r->other, (struct view){"", P, r->n, 0});
			_exit(0);
		}
		memset(AT(2), 0x45, Q);
		wait(NULL);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}
CASE("fork, of what nobody may touch", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(mprotect(P, L, RW) == 0);
		bytes_of(r->other, sizeof r->other, (struct view){"", P, r->n, 0});
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	said(r, "mprotect", mprotect(P, L, RW));
}
CASE("vfork, the child writes", ALL)
{
	static struct run *volatile mine;
	mine = r;
	pid_t pid = vfork();
	if (pid == 0) {
		memset(mine->p, 0x44, PAGE);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

static int memory(int how)
{
	int fd = open("/proc/self/mem", how);
	CHECK(fd >= 0);
	return fd;
}
static unsigned char buffer[HUGE_PAGES * PAGE];

/* What was read from the memory, in the words for pages. */
static void got(struct run *r, const char *call, long n)
{
	said(r, call, n);
	char words[400] = "";
	if (n > 0)
		pages_in_words(words, sizeof words, (struct view){"", buffer, (size_t)n / PAGE, 0}, content);
	told(r, words);
}
CASE("/proc/self/mem, read", ALL) { got(r, "pread", pread(memory(O_RDONLY), buffer, L, (off_t)(uintptr_t)P)); }
CASE("/proc/self/mem, read over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	got(r, "pread", pread(memory(O_RDONLY), buffer, L, (off_t)(uintptr_t)P));
}
CASE("/proc/self/mem, written", ALL)
{
	memset(buffer, 0x66, Q);
	said(r, "pwrite", pwrite(memory(O_RDWR), buffer, Q, (off_t)(uintptr_t)AT(1)));
}
CASE("/proc/self/mem, written where the program may only read", ALL)
{
	memset(buffer, 0x66, Q);
	said(r, "mprotect", mprotect(P, L, PROT_READ));
	said(r, "pwrite", pwrite(memory(O_RDWR), buffer, Q, (off_t)(uintptr_t)AT(1)));
}
CASE("/proc/self/mem, read where the program may not", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	got(r, "pread", pread(memory(O_RDONLY), buffer, L, (off_t)(uintptr_t)P));
	said(r, "mprotect", mprotect(P, L, RW));
}

static ssize_t vm_read(struct run *r)
{
	struct iovec to = {buffer, L}, from = {P, L};
	return process_vm_readv(getpid(), &to, 1, &from, 1, 0);
}
CASE("process_vm_readv", ALL) { got(r, "", vm_read(r)); }
CASE("process_vm_readv over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	got(r, "", vm_read(r));
}
CASE("process_vm_readv of what nobody may touch", SOME)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	got(r, "", vm_read(r));
	said(r, "mprotect", mprotect(P, L, RW));
}
CASE("process_vm_readv by a child", ALL)
{
	int status;
	pid_t parent = getpid(), pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct iovec to = {buffer, L}, from = {P, L};
		got(r, "", process_vm_readv(parent, &to, 1, &from, 1, 0));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
}
CASE("process_vm_writev", ALL)
{
	memset(buffer, 0x66, Q);
	struct iovec from = {buffer, Q}, to = {AT(1), Q};
	said(r, "", process_vm_writev(getpid(), &from, 1, &to, 1, 0));
}

static int pair[2];
static void pipes(void)
{
	CHECK(pipe(pair) == 0 && fcntl(pair[1], F_SETPIPE_SZ, 64 * 1024) >= 0);
}
CASE("pipe, written from the memory", ALL)
{
	pipes();
	said(r, "write", write(pair[1], P, 16 * PAGE));
	size_t used = 0;
	for (ssize_t n; used < 16 * PAGE && (n = read(pair[0], buffer + used, 16 * PAGE - used)) > 0;)
		used += (size_t)n;
	got(r, "read", (long)used);
}
CASE("pipe, written from what nobody may touch", SOME)
{
	pipes();
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	said(r, "write", write(pair[1], P, Q));
	said(r, "mprotect", mprotect(P, L, RW));
}
CASE("pipe, written from a range with a hole", SOME)
{
	pipes();
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "write", write(pair[1], P, L));
}
CASE("pipe, read into the memory", ALL)
{
	pipes();
	fill(buffer, 0, 16);
	said(r, "write", write(pair[1], buffer, 16 * PAGE));
	said(r, "read", read(pair[0], P, 16 * PAGE));
}
CASE("pipe, read into what is read-only", SOME)
{
	pipes();
	fill(buffer, 0, 16);
	said(r, "mprotect", mprotect(P, L, PROT_READ));
	said(r, "write", write(pair[1], buffer, Q));
	said(r, "read", read(pair[0], P, Q));
}
CASE("pipe, vmsplice of the memory", ALL)
{
	pipes();
	struct iovec part = {P, 8 * PAGE};
	said(r, "vmsplice", vmsplice(pair[1], &part, 1, 0));
	got(r, "read", read(pair[0], buffer, 8 * PAGE));
}
CASE("file, written from the memory and read into it", ALL)
{
	int fd = memfd_create("copy", 0);
	said(r, "pwrite", pwrite(fd, P, L, 0));
	said(r, "pread", pread(fd, P, L, 0));
}
CASE("poll of a list in the memory", ALL)
{
	/* Overwritten, so it is neither ours nor zero afterwards. */
	pipes();
	*(struct pollfd *)(void *)P = (struct pollfd){.fd = pair[0], .events = POLLIN};
	said(r, "madvise", madvise(P, L, r->state == EVICTED ? MADV_PAGEOUT : MADV_NORMAL));
	said(r, "poll", poll((struct pollfd *)(void *)P, 1, 0));
	memset(P, 0, PAGE);
}

static long futex(void *word, int op, unsigned value, void *other)
{
	return syscall(SYS_futex, word, op, value, NULL, other, 0);
}
CASE("futex FUTEX_WAIT, another value", ALL) { said(r, "", futex(P, FUTEX_WAIT, 0x12345, NULL)); }
CASE("futex FUTEX_WAIT_PRIVATE, another value", ALL) { said(r, "", futex(P, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0x12345, NULL)); }
CASE("futex FUTEX_WAKE", ALL) { said(r, "", futex(P, FUTEX_WAKE, 1, NULL)); }
CASE("futex FUTEX_WAKE_OP", ALL)
{
	unsigned op = (unsigned)FUTEX_OP(FUTEX_OP_SET, 0, FUTEX_OP_CMP_EQ, 0);
	said(r, "", syscall(SYS_futex, AT(1), FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, 1, AT(2), op));
	memset(AT(2), 0, PAGE);
}
CASE("futex FUTEX_LOCK_PI", IN(FRESH) | IN(ZEROS))
{
	said(r, "lock", futex(P, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL));
	told(r, *(unsigned *)(void *)P == (unsigned)getpid() ? "mine" : "not mine");
	said(r, "unlock", futex(P, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL));
}
CASE("futex of what nobody may touch", SOME)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	said(r, "futex", futex(P, FUTEX_WAIT, 0, NULL));
}
CASE("futex of what is unmapped", ALONE) { said(r, "", futex(HERE, FUTEX_WAIT, 0, NULL)); }

static int own_userfaultfd(struct run *r, unsigned long mode)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API};
	CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
	struct uffdio_register reg = {.range = {(uintptr_t)P, L}, .mode = mode};
	said(r, "register", ioctl(fd, UFFDIO_REGISTER, &reg));
	return fd;
}
static void unregister(struct run *r, int fd)
{
	struct uffdio_range range = {(uintptr_t)P, L};
	said(r, "unregister", ioctl(fd, UFFDIO_UNREGISTER, &range));
	close(fd);
}
CASE("userfaultfd, UFFDIO_COPY", ALL)
{
	memset(buffer, 0x77, PAGE);
	int fd = own_userfaultfd(r, UFFDIO_REGISTER_MODE_MISSING);
	struct uffdio_copy copy = {.dst = (uintptr_t)AT(1), .src = (uintptr_t)buffer, .len = PAGE};
	said(r, "copy", ioctl(fd, UFFDIO_COPY, &copy));
	unregister(r, fd);
}
CASE("userfaultfd, UFFDIO_ZEROPAGE", ALL)
{
	int fd = own_userfaultfd(r, UFFDIO_REGISTER_MODE_MISSING);
	struct uffdio_zeropage zero = {.range = {(uintptr_t)AT(1), Q}};
	said(r, "zeropage", ioctl(fd, UFFDIO_ZEROPAGE, &zero));
	unregister(r, fd);
}
CASE("userfaultfd, UFFDIO_WRITEPROTECT", ALL)
{
	int fd = own_userfaultfd(r, UFFDIO_REGISTER_MODE_WP);
	struct uffdio_writeprotect wp = {.range = {(uintptr_t)P, L}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	said(r, "protect", ioctl(fd, UFFDIO_WRITEPROTECT, &wp));
	wp.mode = 0;
	said(r, "unprotect", ioctl(fd, UFFDIO_WRITEPROTECT, &wp));
	unregister(r, fd);
}
CASE("userfaultfd, a range with a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	unregister(r, own_userfaultfd(r, UFFDIO_REGISTER_MODE_MISSING));
}
CASE("userfaultfd, with no mode", SOME) { close(own_userfaultfd(r, 0)); }
