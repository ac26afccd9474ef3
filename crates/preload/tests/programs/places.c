/* Mappings of all kinds side by side at addresses that the program chooses, in the same blocks, by
   several threads, against a model of what must be there. Arguments: a seed, rounds, threads.
   Prints "places right". */
#include "check.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
/* Each thread has lots of half a block, between those of the others. */
#define LOT 256
#define LOTS 24
#define ALL (LOTS * LOT)
#define MOST 3
#define WORDS 40
/* Pages of the file have these seeds. */
#define FILE_SEED 1000

enum kind { NONE, MANAGED, PRIVATE_FILE, SHARED };

struct page {
	enum kind kind;
	int prot;
	uint32_t seed;
};

struct thread {
	size_t id;
	uint64_t dice;
	uint32_t seed;
	struct page pages[ALL];
};

static unsigned char *base = (unsigned char *)0x140000000000ul;
static struct thread threads[MOST];
static size_t count;
static int file, rounds;

static uint64_t roll(struct thread *t, uint64_t n)
{
	t->dice ^= t->dice << 13;
	t->dice ^= t->dice >> 7;
	t->dice ^= t->dice << 17;
	return t->dice % n;
}

static unsigned char *at(struct thread *t, size_t i)
{
	return base + ((i / LOT * count + t->id) * LOT + i % LOT) * PAGE;
}

static uint64_t word(uint32_t seed, size_t w)
{
	uint64_t x = ((uint64_t)seed << 20) + w + 1;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	return (x ^ (x >> 27)) | 1;
}

static void fill(struct thread *t, size_t i, uint32_t seed)
{
	uint64_t *p = (uint64_t *)at(t, i);
	for (size_t w = 0; w < WORDS; w++)
		p[w] = word(seed, w);
	t->pages[i].seed = seed;
}

static void look(struct thread *t, size_t i)
{
	struct page *page = &t->pages[i];
	uint64_t *p = (uint64_t *)at(t, i);
	unsigned char there;
	if (page->kind == NONE)
		CHECK(syscall(SYS_mincore, p, PAGE, &there) != 0 && errno == ENOMEM);
	else if (page->prot & PROT_READ)
		for (size_t w = 0; w < (page->seed ? WORDS : 512); w++)
			CHECK(p[w] == (page->seed ? word(page->seed, w) : 0));
}

static void look_at_all(struct thread *t)
{
	for (size_t i = 0; i < ALL; i++)
		look(t, i);
}

/* A part of a lot: its first page and its length. */
static size_t part(struct thread *t, size_t *first, size_t most)
{
	size_t lot = roll(t, LOTS) * LOT, from = roll(t, LOT), n = 1 + roll(t, most);
	if (roll(t, 4) == 0)
		from = 0, n = LOT;
	*first = lot + from;
	return n < LOT - from ? n : LOT - from;
}

static void now(struct thread *t, size_t i, size_t n, enum kind kind, int prot)
{
	for (size_t k = i; k < i + n; k++)
		t->pages[k] = (struct page){kind, prot, kind == PRIVATE_FILE ? FILE_SEED + k - i : 0};
}

static size_t mapped(struct thread *t, size_t i, size_t n)
{
	size_t sum = 0;
	for (size_t k = i; k < i + n; k++)
		sum += t->pages[k].kind != NONE;
	return sum;
}

static void unmap(struct thread *t, size_t i, size_t n)
{
	CHECK(munmap(at(t, i), n * PAGE) == 0);
	now(t, i, n, NONE, 0);
}

static void map(struct thread *t, size_t i, size_t n)
{
	unsigned char *p = at(t, i), *q;
	size_t bytes = n * PAGE, taken = mapped(t, i, n);
	int prot = roll(t, 3) ? RW : PROT_NONE;
	switch (roll(t, 8)) {
	case 0:
		CHECK(mmap(p, bytes, RW, MAP_PRIVATE | MAP_FIXED, file, 0) == p);
		now(t, i, n, PRIVATE_FILE, RW);
		break;
	case 1:
		CHECK(mmap(p, bytes, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		now(t, i, n, SHARED, RW);
		break;
	case 2:
	case 3:
		q = mmap(p, bytes, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
		CHECK(taken ? q == MAP_FAILED && errno == EEXIST : q == p);
		if (q == p)
			now(t, i, n, MANAGED, RW);
		break;
	case 4:
		q = mmap(p, bytes, RW, ANON, -1, 0);
		CHECK(q != MAP_FAILED && (q == p) == !taken && q[bytes - 1] == 0);
		if (q == p)
			now(t, i, n, MANAGED, RW);
		else
			CHECK(munmap(q, bytes) == 0);
		break;
	default:
		CHECK(mmap(p, bytes, prot, ANON | MAP_FIXED, -1, 0) == p);
		now(t, i, n, MANAGED, prot);
	}
}

static void protect(struct thread *t, size_t i, size_t n)
{
	int prot = roll(t, 3) ? RW : PROT_READ;
	int done = mprotect(at(t, i), n * PAGE, prot);
	CHECK((done == 0) == (mapped(t, i, n) == n));
	for (size_t k = i; k < i + n; k++) {
		/* Up to the hole or not at all: page by page. */
		if (t->pages[k].kind != NONE) {
			CHECK(mprotect(at(t, k), PAGE, prot) == 0);
			t->pages[k].prot = prot;
		}
	}
}

static void advise(struct thread *t, size_t i, size_t n)
{
	size_t bytes = n * PAGE;
	int whole = mapped(t, i, n) == n;
	switch (roll(t, 4)) {
	case 0:
		CHECK((madvise(at(t, i), bytes, MADV_DONTNEED) == 0) == whole);
		for (size_t k = i; k < i + n; k++) {
			if (t->pages[k].kind == MANAGED)
				t->pages[k].seed = 0;
			else if (t->pages[k].kind == PRIVATE_FILE)
				unmap(t, k, 1);
		}
		break;
	case 1:
		CHECK((madvise(at(t, i), bytes, MADV_DONTFORK) == 0) == whole);
		madvise(at(t, i), bytes, MADV_DOFORK);
		break;
	default:
		madvise(at(t, i), bytes, MADV_PAGEOUT);
	}
}

/* From one lot to another, if all of it is mapped. What is refused may be done in part. */
static void move(struct thread *t, size_t i, size_t n)
{
	size_t to, room = part(t, &to, 100);
	n = n < room ? n : room;
	if (i / LOT == to / LOT || mapped(t, i, n) < n)
		return;
	int how = MREMAP_MAYMOVE | MREMAP_FIXED;
	if (mremap(at(t, i), n * PAGE, n * PAGE, how, at(t, to)) == at(t, to)) {
		memcpy(&t->pages[to], &t->pages[i], n * sizeof *t->pages);
		now(t, i, n, NONE, 0);
	} else {
		unmap(t, to, n);
		unmap(t, i, n);
	}
}

/* Grows and shrinks, in its place or elsewhere. */
static void resize(struct thread *t)
{
	size_t old = (1 + roll(t, 700)) * PAGE, new = (1 + roll(t, 1400)) * PAGE;
	uint64_t seed = roll(t, ~0ul);
	unsigned char *p = mmap(NULL, old, RW, ANON, -1, 0);
	CHECK(p != MAP_FAILED);
	for (size_t k = 0; k < old; k += PAGE)
		*(uint64_t *)(p + k) = seed + k;
	p = mremap(p, old, new, MREMAP_MAYMOVE);
	CHECK(p != MAP_FAILED);
	for (size_t k = 0; k < new; k += PAGE)
		CHECK(*(uint64_t *)(p + k) == (k < old ? seed + k : 0));
	CHECK(munmap(p, new) == 0);
}

static void make_child(struct thread *t)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		look_at_all(t);
		for (size_t i = 0; i < ALL; i += 3)
			if (t->pages[i].kind == MANAGED && t->pages[i].prot == RW)
				fill(t, i, 77777);
		look_at_all(t);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void *work(void *argument)
{
	struct thread *t = argument;
	for (int round = 0; round < rounds; round++) {
		size_t i, n = part(t, &i, 100);
		switch (roll(t, 10)) {
		case 0: if (roll(t, 3) == 0) unmap(t, i, n); break;
		case 1: case 2: protect(t, i, n); break;
		case 3: case 4: advise(t, i, n); break;
		case 5: move(t, i, n); break;
		case 6: resize(t); break;
		case 7: if (roll(t, 30) == 0) make_child(t); break;
		default: map(t, i, n);
		}
		n = part(t, &i, 60);
		for (size_t k = i; k < i + n; k++)
			if (t->pages[k].kind != NONE && t->pages[k].prot == RW)
				fill(t, k, ++t->seed % 500000 + 2 * FILE_SEED);
		n = part(t, &i, 60);
		for (size_t k = i; k < i + n; k++)
			look(t, k);
		if (round % 50 == 0)
			look_at_all(t);
	}
	look_at_all(t);
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	uint64_t seed = strtoul(argv[1], NULL, 10);
	rounds = atoi(argv[2]);
	count = strtoul(argv[3], NULL, 10);
	CHECK(count > 0 && count <= MOST);
	file = (int)syscall(SYS_memfd_create, "pages", 0);
	CHECK(file >= 0);
	for (uint32_t k = 0; k < LOT; k++) {
		uint64_t page[512] = {0};
		for (size_t w = 0; w < WORDS; w++)
			page[w] = word(FILE_SEED + k, w);
		CHECK(write(file, page, PAGE) == PAGE);
	}
	memset(malloc(4 * MIB), 1, 4 * MIB);
	alarm(300);
	pthread_t ids[MOST];
	for (size_t i = 0; i < count; i++) {
		threads[i].id = i;
		threads[i].dice = (seed * MOST + i + 1) * 0x9e3779b97f4a7c15u | 1;
		CHECK(pthread_create(&ids[i], NULL, work, &threads[i]) == 0);
	}
	for (size_t i = 0; i < count; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	puts("places right");
	return 0;
}
