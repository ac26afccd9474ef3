/* Pages pinned as registered buffers of an io_uring, and read and written through it. */
#include <linux/io_uring.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct ring {
	int fd;
	unsigned char *queues;
	struct io_uring_sqe *entries;
	struct io_uring_params at;
	size_t bytes;
};

/* 0, or why there is none; leaves it as it is if it is open. */
static int ring_open(struct ring *r)
{
	if (r->fd >= 0)
		return 0;
	memset(&r->at, 0, sizeof r->at);
	r->fd = (int)syscall(SYS_io_uring_setup, 2, &r->at);
	if (r->fd < 0)
		return -1;
	size_t sq = r->at.sq_off.array + r->at.sq_entries * sizeof(uint32_t);
	size_t cq = r->at.cq_off.cqes + r->at.cq_entries * sizeof(struct io_uring_cqe);
	r->bytes = sq > cq ? sq : cq;
	int rw = PROT_READ | PROT_WRITE;
	r->queues = mmap(NULL, r->bytes, rw, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
	r->entries = mmap(NULL, 4096, rw, MAP_SHARED, r->fd, IORING_OFF_SQES);
	return r->queues == MAP_FAILED || r->entries == MAP_FAILED;
}

static int ring_register(struct ring *r, const struct iovec *buffers, unsigned n)
{
	return (int)syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, buffers, n);
}

/* Lets the buffers go and closes it. */
static void ring_leave(struct ring *r)
{
	if (r->fd < 0)
		return;
	syscall(SYS_io_uring_register, r->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
	munmap(r->queues, r->bytes);
	munmap(r->entries, 4096);
	close(r->fd);
	r->fd = -1;
}

/* One transfer by a registered buffer; what it has transferred. */
static int ring_fixed(struct ring *r, int op, int fd, const void *p, unsigned n, int buffer)
{
	volatile uint32_t *tail = (uint32_t *)(r->queues + r->at.sq_off.tail);
	volatile uint32_t *head = (uint32_t *)(r->queues + r->at.cq_off.head);
	uint32_t mask = *(uint32_t *)(r->queues + r->at.sq_off.ring_mask), slot = *tail & mask;
	struct io_uring_sqe *e = &r->entries[slot];
	memset(e, 0, sizeof *e);
	e->opcode = (uint8_t)op;
	e->fd = fd;
	e->off = (uint64_t)-1;
	e->addr = (uint64_t)(uintptr_t)p;
	e->len = n;
	e->buf_index = (uint16_t)buffer;
	((uint32_t *)(r->queues + r->at.sq_off.array))[slot] = slot;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return -1;
	struct io_uring_cqe *done = (struct io_uring_cqe *)(r->queues + r->at.cq_off.cqes);
	uint32_t last = *(uint32_t *)(r->queues + r->at.cq_off.ring_mask);
	int result = done[*head & last].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

static int read_all(int fd, unsigned char *p, size_t n)
{
	for (ssize_t got; n > 0; p += got, n -= (size_t)got)
		if ((got = read(fd, p, n)) <= 0)
			return 0;
	return 1;
}
