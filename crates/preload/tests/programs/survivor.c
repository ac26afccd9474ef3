/* What a process shared with a child is its own again when the child has ended: it goes out before
   what is read just now. */
#include "defects.h"

#define BYTES ((size_t)48 << 20)
#define AWAY ((size_t)16 << 20)
#define LAST ((size_t)4 << 20)
#define ROUNDS 10

/* Pages of it that are not there. */
static int missing(int pagemap, const unsigned char *p, size_t bytes)
{
	int gone = 0;
	for (size_t i = 0; i < bytes / PAGE; i++) {
		uint64_t entry;
		off_t at = (off_t)((uintptr_t)p / PAGE + i) * 8;
		CHECK(pread(pagemap, &entry, 8, at) == 8);
		gone += !(entry >> 63);
	}
	return gone;
}

int main(void)
{
	int gone = 0, pagemap = open("/proc/self/pagemap", O_RDONLY);
	CHECK(pagemap >= 0);
	unsigned char *p = map(BYTES);
	unsigned char *kept = p + AWAY;
	fill(p, 1, AWAY);
	fill(kept, 2, BYTES - AWAY);
	for (int round = 0; round < ROUNDS; round++) {
		evict(p, AWAY);
		CHECK(right(kept, 2, BYTES - AWAY));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(0);
		CHECK(waitpid(pid, NULL, 0) == pid);
		/* The child's service learns of its end as its parent does. */
		pause_ms(20);
		CHECK(right(p, 1, AWAY));
		gone += missing(pagemap, kept - LAST, LAST);
	}
	printf("missing %d of %zu\n", gone, ROUNDS * LAST / PAGE);
	CHECK(right(kept, 2, BYTES - AWAY));
	puts("survivor right");
	return 0;
}
