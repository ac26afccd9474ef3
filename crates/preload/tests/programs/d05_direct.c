/* Devices write into managed memory by the references that they hold, while that is evicted: no
   byte of theirs is lost. Arguments: how (pread: O_DIRECT; code: into memory that may be
   executed, too; ring: by io_uring; fixed: by io_uring into registered buffers), and the file. Says how often memory was taken out, or tried to
   be, within such a read. */
#define _GNU_SOURCE
#include "defects.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

#define BYTES (4 << 20)
#define READS 60
#define PIECE (16 * PAGE)

static unsigned char *buffer;
static long evictions;
static int ended;

static void *evicts(void *unused)
{
	unsigned seed = 5;
	while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
		size_t at = rand_r(&seed) % (BYTES / PIECE) * PIECE;
		evict(buffer + at, PIECE);
		__atomic_fetch_add(&evictions, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

static struct {
	int fd;
	unsigned char *sq, *cq;
	struct io_uring_sqe *sqes;
	struct io_uring_params p;
} ring;

static void set_up(int fixed)
{
	ring.fd = (int)syscall(SYS_io_uring_setup, 4, &ring.p);
	CHECK(ring.fd >= 0);
	size_t sq = ring.p.sq_off.array + ring.p.sq_entries * 4;
	size_t cq = ring.p.cq_off.cqes + ring.p.cq_entries * sizeof(struct io_uring_cqe);
	int how = MAP_SHARED | MAP_POPULATE;
	ring.sq = mmap(NULL, sq, RW, how, ring.fd, IORING_OFF_SQ_RING);
	ring.cq = mmap(NULL, cq, RW, how, ring.fd, IORING_OFF_CQ_RING);
	ring.sqes = mmap(NULL, ring.p.sq_entries * sizeof *ring.sqes, RW, how, ring.fd, IORING_OFF_SQES);
	CHECK(ring.sq != MAP_FAILED && ring.cq != MAP_FAILED && ring.sqes != MAP_FAILED);
	struct iovec all = {buffer, BYTES};
	if (fixed)
		CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &all, 1) == 0);
}

static ssize_t by_ring(int file, int fixed)
{
	unsigned *tail = (unsigned *)(ring.sq + ring.p.sq_off.tail);
	unsigned mask = *(unsigned *)(ring.sq + ring.p.sq_off.ring_mask), slot = *tail & mask;
	ring.sqes[slot] = (struct io_uring_sqe){
		.opcode = fixed ? IORING_OP_READ_FIXED : IORING_OP_READ,
		.fd = file,
		.addr = (uint64_t)(uintptr_t)buffer,
		.len = BYTES,
	};
	((unsigned *)(ring.sq + ring.p.sq_off.array))[slot] = slot;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	unsigned *head = (unsigned *)(ring.cq + ring.p.cq_off.head);
	CHECK(__atomic_load_n((unsigned *)(ring.cq + ring.p.cq_off.tail), __ATOMIC_ACQUIRE) != *head);
	unsigned at = *head & *(unsigned *)(ring.cq + ring.p.cq_off.ring_mask);
	ssize_t got = ((struct io_uring_cqe *)(ring.cq + ring.p.cq_off.cqes))[at].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return got;
}

static int ring_wanted(const char *how)
{
	return !strcmp(how, "ring") || !strcmp(how, "fixed");
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int fixed = !strcmp(argv[1], "fixed"), direct = !ring_wanted(argv[1]);
	watch(60);
	buffer = map(BYTES);
	if (!strcmp(argv[1], "code"))
		CHECK(mprotect(buffer, BYTES, RW | PROT_EXEC) == 0);
	/* What is read: one pattern; what is there before: another. */
	fill(buffer, 5, BYTES);
	int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0 && write(file, buffer, BYTES) == BYTES && fsync(file) == 0);
	close(file);
	file = open(argv[2], O_RDONLY | O_DIRECT);
	if (file < 0 && errno == EINVAL) {
		printf("d05 no O_DIRECT here\n");
		return 0;
	}
	CHECK(file >= 0);
	if (!direct)
		set_up(fixed);
	pthread_t evictor;
	CHECK(pthread_create(&evictor, NULL, evicts, NULL) == 0);
	long met = 0;
	for (int i = 0; i < READS || (met < 5 && i < 20 * READS); i++, step()) {
		fill(buffer, 500 + i, BYTES);
		long before = __atomic_load_n(&evictions, __ATOMIC_SEQ_CST);
		ssize_t got = direct ? pread(file, buffer, BYTES, 0) : by_ring(file, fixed);
		CHECK(got == BYTES);
		/* The one that was under way has begun before. */
		long more = __atomic_load_n(&evictions, __ATOMIC_SEQ_CST) - before;
		met += more > 1 ? more - 1 : 0;
		CHECK(right(buffer, 5, BYTES));
	}
	ended = 1;
	CHECK(pthread_join(evictor, NULL) == 0);
	CHECK(right(buffer, 5, BYTES));
	printf("met %ld\nd05 right\n", met);
	return 0;
}
