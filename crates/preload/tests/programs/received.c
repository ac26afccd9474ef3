/* What a program has written is no missing page for a userfaultfd of its own, whatever became
   of it meanwhile; what it has discarded or never touched is. So do programs that receive their
   memory from elsewhere: they write what comes at first, discard what has changed since, and
   serve that on demand. Prints "received right", also without the library where there are huge
   pages. */
#include "check.h"
#include "rights.h"
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 512ul
#define PAGES (8 * BLOCK)
#define SERVED 0x5a

static int fd;
static unsigned char *base;
static int missed[PAGES];
static volatile int stop;

static void *serve(void *arg)
{
	static unsigned char page[PAGE] __attribute__((aligned(4096)));
	memset(page, SERVED, PAGE);
	while (!stop) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		struct uffd_msg msg;
		if (poll(&ready, 1, 20) <= 0 || read(fd, &msg, sizeof msg) != sizeof msg)
			continue;
		CHECK(msg.event == UFFD_EVENT_PAGEFAULT);
		uintptr_t at = msg.arg.pagefault.address & ~(PAGE - 1);
		missed[(at - (uintptr_t)base) / PAGE]++;
		struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
		CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0);
	}
	return arg;
}

/* The first half is written sparsely onto huge pages, which fills the pages between, too; the
   third quarter page by page, every other one with zeros; of the last only every other page. */
static int is_written(size_t i)
{
	return i < PAGES * 3 / 4 || i % 2;
}

static unsigned char value(size_t i)
{
	if (i < PAGES / 2)
		return i % 9 || i % 2 == 0 || i / BLOCK == 1 ? 0 : 7;
	return i < PAGES * 3 / 4 && i % 2 ? 0 : 3;
}

static int is_discarded(size_t i)
{
	/* The second block, of zeros alone, is paged out whole and stays so. */
	return i / BLOCK != 1 && i % 64 < 8;
}

int main(void)
{
	size_t bytes = PAGES * PAGE;
	unsigned char *p = mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	base = (unsigned char *)(((uintptr_t)p + 2 * MIB - 1) & ~(2 * MIB - 1));
	unsigned char *small = base + bytes / 2;
	CHECK(madvise(base, bytes / 2, MADV_HUGEPAGE) == 0);
	CHECK(madvise(small, bytes / 2, MADV_NOHUGEPAGE) == 0);
	for (size_t i = 0; i < PAGES / 2; i += 9)
		base[i * PAGE] = value(i);
	for (size_t i = PAGES / 2; i < PAGES; i++)
		if (is_written(i))
			base[i * PAGE] = value(i);
	/* A block of zeros and what came page by page go; of the others a part is discarded. */
	CHECK(madvise(base + 2 * MIB, 2 * MIB, MADV_PAGEOUT) == 0);
	CHECK(madvise(small, bytes / 2, MADV_PAGEOUT) == 0);
	CHECK(madvise(base, bytes, MADV_NOHUGEPAGE) == 0);
	for (size_t i = 0; i < PAGES; i += 8)
		if (is_discarded(i))
			CHECK(madvise(base + i * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
	/* A block of them is the kernel's already. */
	CHECK(madvise(base + 6 * MIB, 2 * MIB, MADV_DONTFORK) == 0);
	fd = own_userfaultfd(O_NONBLOCK);
	struct uffdio_register reg = {.range = {.start = (uintptr_t)base, .len = bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	CHECK(ioctl(fd, UFFDIO_REGISTER, &reg) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
	size_t wrong = 0;
	for (size_t i = 0; i < PAGES; i++) {
		int want = is_discarded(i) || !is_written(i);
		unsigned char c = ((volatile unsigned char *)base)[i * PAGE];
		unsigned char should = want ? SERVED : value(i);
		if ((missed[i] == want && c == should) || wrong++ >= 5)
			continue;
		printf("page %zu: missing %d times, not %d; %d, not %d\n", i, missed[i], want, c, should);
	}
	printf("%zu pages wrong\n", wrong);
	fflush(stdout);
	/* What is present is the program's to write. */
	for (size_t i = 0; i < PAGES; i++)
		base[i * PAGE] = (unsigned char)(i | 1);
	for (size_t i = 0; i < PAGES; i++)
		CHECK(base[i * PAGE] == (unsigned char)(i | 1) && base[i * PAGE + 1] == base[i * PAGE + 2]);
	stop = 1;
	pthread_join(thread, NULL);
	CHECK(wrong == 0);
	puts("received right");
	return 0;
}
