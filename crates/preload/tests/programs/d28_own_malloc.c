/* A program with an allocator of its own, as with jemalloc linked in: a lock that is not
   recursive, held while the allocator maps its memory. Prints "d28 right". */
#include "defects.h"
#include <dlfcn.h>
#include <sched.h>

/* Each mapping of the allocator is so large; its first one begins with the program. */
#define CHUNK (4 * MIB)

struct head {
	size_t size;
	struct head *next;
};

static int locked;
static unsigned char *chunk;
static size_t left;
static struct head *spare[48];
static pid_t program;
static size_t mapped;

static void own_lock(void)
{
	struct timespec start = {0, 0}, at;
	for (long i = 0; __atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE); i++) {
		sched_yield();
		if (i % 4096 != 4095)
			continue;
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
		if (start.tv_sec == 0)
			start = at;
		if (at.tv_sec - start.tv_sec > 5) {
			say("HANG: who holds the allocator's lock does not come back\n");
			syscall(SYS_kill, program, SIGKILL);
		}
	}
}

static void own_unlock(void) { __atomic_store_n(&locked, 0, __ATOMIC_RELEASE); }

static int class_of(size_t n)
{
	int c = 5;
	while ((1ul << c) < n)
		c++;
	return c;
}

static void *take(size_t n, size_t align)
{
	if (n > 1ul << 40) {
		errno = ENOMEM;
		return NULL;
	}
	if (align < 16)
		align = 16;
	int c = class_of(n + align + sizeof(struct head));
	size_t size = 1ul << c;
	own_lock();
	if (!program)
		program = (pid_t)syscall(SYS_getpid);
	struct head *h = spare[c];
	if (h) {
		spare[c] = h->next;
	} else {
		if (left < size) {
			size_t more = size > CHUNK ? size : CHUNK;
			unsigned char *p = mmap(NULL, more, RW, ANON, -1, 0);
			if (p == MAP_FAILED) {
				own_unlock();
				errno = ENOMEM;
				return NULL;
			}
			mapped += more;
			chunk = p;
			left = more;
		}
		h = (struct head *)chunk;
		chunk += size;
		left -= size;
	}
	own_unlock();
	/* The block, and just before it its base. */
	uintptr_t at = ((uintptr_t)(h + 1) + align - 1) / align * align;
	h->size = size;
	((struct head **)at)[-1] = h;
	return (void *)at;
}

static size_t room_of(void *p)
{
	struct head *h = ((struct head **)p)[-1];
	return (uintptr_t)h + h->size - (uintptr_t)p;
}

void *malloc(size_t n) { return take(n, 16); }

void free(void *p)
{
	if (!p)
		return;
	struct head *h = ((struct head **)p)[-1];
	int c = class_of(h->size);
	own_lock();
	h->next = spare[c];
	spare[c] = h;
	own_unlock();
}

void *calloc(size_t n, size_t size)
{
	size_t all;
	if (__builtin_mul_overflow(n, size, &all)) {
		errno = ENOMEM;
		return NULL;
	}
	void *p = take(all, 16);
	/* Not by a loop that the compiler makes a calloc of. */
	return p ? memset(p, 0, all) : NULL;
}

void *realloc(void *p, size_t n)
{
	void *to = take(n, 16);
	if (p && to) {
		memcpy(to, p, room_of(p) < n ? room_of(p) : n);
		free(p);
	}
	return to;
}

void *aligned_alloc(size_t align, size_t n) { return take(n, align); }
void *memalign(size_t align, size_t n) { return take(n, align); }
size_t malloc_usable_size(void *p) { return p ? room_of(p) : 0; }

int posix_memalign(void **to, size_t align, size_t n)
{
	*to = take(n, align);
	return *to ? 0 : ENOMEM;
}

static void *worker(void *number)
{
	unsigned char *p[24];
	for (int round = 0; round < 20; round++) {
		for (size_t i = 0; i < 24; i++) {
			p[i] = aligned_alloc(PAGE, 8 * PAGE);
			CHECK(p[i]);
			memset(p[i], 0, 8 * PAGE);
			fill(p[i], (uint64_t)number + i, 8 * PAGE);
		}
		for (size_t i = 0; i < 24; i++) {
			CHECK(right(p[i], (uint64_t)number + i, 8 * PAGE));
			free(p[i]);
		}
		step();
	}
	return NULL;
}

int main(void)
{
	size_t n = 96 * MIB, each = 16 * PAGE;
	say("started\n");
	watch(10);
	CHECK(pthread_atfork(own_lock, own_unlock, own_unlock) == 0);
	unsigned char **p = malloc(n / each * sizeof *p);
	for (size_t i = 0; i < n / each; i++) {
		p[i] = aligned_alloc(PAGE, each - 2 * PAGE);
		CHECK(p[i]);
		fill(p[i], i, 8 * PAGE);
		if (i * each == 8 * MIB)
			say("past 8 MiB\n");
		step();
	}
	pthread_t t[3];
	for (size_t i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, worker, (void *)(i * 100 + 5000)) == 0);
	for (int i = 0; i < 20; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			size_t at = (size_t)i * 50;
			void *more = malloc(10000);
			_exit(more && right(p[at], at, 8 * PAGE) ? 0 : 7);
		}
		CHECK(well(pid, "child"));
		void *l = dlopen("libm.so.6", RTLD_NOW);
		CHECK(l && dlclose(l) == 0);
		step();
	}
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	for (size_t i = 0; i < n / each; i++) {
		CHECK(right(p[i], i, 8 * PAGE));
		free(p[i]);
	}
	CHECK(mapped >= 8 * MIB);
	puts("d28 right");
	return 0;
}
