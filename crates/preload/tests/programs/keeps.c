/* What a program sees of its own allocator. Prints "keeps right". Arguments: "calls"; "deep" and a
   library; "early" and a library whose constructor allocates, which is linked; "heap" and how many
   MiB each of two threads has at least; "one" and of how many MiB a block is; "locked", how many MiB
   are, and how: "all", "future", "fault" by mlockall, "block" by mlock; "breaks": the program has a
   part of the main heap by itself; "grows": blocks grow by realloc in three threads; "arena" and how
   many MiB a thread has: in few mappings. */
#include "defects.h"
#include <dlfcn.h>
#include <malloc.h>

/* Under MALLOC_PERTURB_ new blocks hold its complement. */
static void calls(void)
{
	const char *set = getenv("MALLOC_PERTURB_");
	unsigned char *block = malloc(1000);
	for (int i = 0; set && i < 1000; i++)
		CHECK(block[i] == (unsigned char)~atoi(set));
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 2000; i++)
		CHECK(malloc(3000));
	CHECK(mallinfo2().uordblks - before > 2000 * 3000);
	CHECK(malloc_usable_size(block) >= 1000 && malloc_usable_size(block) < 1040);
	CHECK(mallopt(M_MMAP_THRESHOLD, 64 << 10) == 1);
	size_t mapped = mallinfo2().hblks;
	void *volatile large = malloc(400 << 10);
	CHECK(mallinfo2().hblks == mapped + 1);
	free(large);
	CHECK(mallinfo2().hblks == mapped);
	errno = 0;
	volatile size_t most = -4096;
	CHECK(!malloc(most) && errno == ENOMEM);
	errno = 7;
	free(block);
	CHECK(errno == 7);
	CHECK(!((uintptr_t)aligned_alloc(4096, 8192) & 4095));
	void *at = NULL;
	CHECK(posix_memalign(&at, 3, 10) == EINVAL && posix_memalign(&at, 64, 10) == 0 && at);
}

static void deep(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
	CHECK(library);
	void (*give_back)(char *) = dlsym(library, "give_back");
	char *(*take)(size_t) = dlsym(library, "take");
	for (size_t bytes = 10; bytes < 4 * MIB; bytes *= 3) {
		char *block = malloc(bytes);
		memset(block, 5, bytes);
		give_back(block);
		block = take(bytes);
		CHECK(block[bytes - 1] == 3);
		free(realloc(block, 2 * bytes));
	}
}

struct part {
	uint64_t word;
	size_t bytes;
	uint64_t rest[];
};

static size_t least;

static size_t size_of(size_t i)
{
	return i % 997 == 0 ? 300000 : 32 + i * 7919 % 3000;
}

static void *fills(void *which)
{
	uint64_t seed = (uintptr_t)which;
	size_t count = least / 1500;
	struct part **parts = calloc(count, sizeof *parts);
	CHECK(parts);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < count; i++) {
			if (round && i % 2)
				continue;
			size_t bytes = size_of(i + round);
			parts[i] = parts[i] ? realloc(parts[i], bytes) : malloc(bytes);
			CHECK(parts[i]);
			parts[i]->word = mixed(seed + i);
			parts[i]->bytes = bytes;
			for (size_t k = 0; k < (bytes - sizeof(struct part)) / 8; k += 64)
				parts[i]->rest[k] = seed + k;
		}
		for (size_t i = 0; i < count; i++) {
			CHECK(parts[i]->word == mixed(seed + i));
			for (size_t k = 0; k < (parts[i]->bytes - sizeof(struct part)) / 8; k += 64)
				CHECK(parts[i]->rest[k] == seed + k);
		}
		step();
	}
	for (size_t i = 0; i < count; i++)
		free(parts[i]);
	free(parts);
	return NULL;
}

static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	int lines = 0;
	for (int c; (c = getc(maps)) != EOF;)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

static void fills_one(size_t bytes)
{
	unsigned char *block = malloc(bytes);
	CHECK(block && is_managed((uintptr_t)block + bytes / 2));
	uint64_t sum = 0;
	for (size_t at = 0; at < bytes; at += PAGE)
		*(uint64_t *)(block + at) = mixed(at);
	for (size_t at = 0; at < bytes; at += PAGE)
		sum += *(uint64_t *)(block + at) == mixed(at);
	CHECK(sum == bytes / PAGE);
	free(block);
}

static void locks(size_t bytes, const char *how)
{
	if (strcmp(how, "block") == 0) {
		char *block = malloc(bytes);
		if (mlock(block, bytes) != 0) {
			CHECK(errno == ENOMEM);
			puts("no block is locked");
			return;
		}
		CHECK(is_managed((uintptr_t)block + PAGE));
		memset(block, 1, bytes);
	} else {
		int flags = strcmp(how, "fault") == 0 ? MCL_FUTURE | MCL_ONFAULT : MCL_FUTURE;
		CHECK(mlockall(strcmp(how, "all") == 0 ? flags | MCL_CURRENT : flags) == 0);
		for (size_t at = 0; at < bytes; at += 64 << 10) {
			char *block = malloc(64 << 10);
			CHECK(block);
			memset(block, 1, 64 << 10);
		}
	}
	usleep(300000);
}

static void breaks(void)
{
	static struct {
		unsigned char *at;
		size_t bytes;
	} all[600];
	for (int i = 0; i < 600; i++) {
		all[i].bytes = 20000 + i % 7 * 9000;
		all[i].at = i % 3 ? malloc(all[i].bytes) : sbrk(all[i].bytes);
		CHECK(all[i].at && all[i].at != (void *)-1);
		memset(all[i].at, i % 251 + 1, all[i].bytes);
	}
	for (int i = 0; i < 600; i++)
		for (size_t k = 0; k < all[i].bytes; k++)
			CHECK(all[i].at[k] == i % 251 + 1);
	char *top = sbrk(0);
	CHECK(brk(top + 5 * PAGE) == 0 && sbrk(0) == top + 5 * PAGE);
	memset(top, 1, 5 * PAGE);
	CHECK(sbrk(-5 * PAGE) == top + 5 * PAGE && sbrk(0) == top);
}

/* libc moves such a block by mremap, which is an instruction of its own. */
static void *grows(void *which)
{
	for (uint64_t round = 0; round < 6; round++) {
		uint64_t seed = (uintptr_t)which + round * 1000;
		size_t words = 32 << 10, from = 0;
		uint64_t *block = NULL;
		for (; words < 12 * MIB / 8; words += words / 3 + 512) {
			block = realloc(block, words * 8);
			CHECK(block);
			for (; from < words; from++)
				block[from] = seed ^ mixed(from / 64);
			for (size_t k = 0; k < words; k += 512)
				CHECK(block[k] == (seed ^ mixed(k / 64)));
		}
		for (size_t k = 0; k < from; k++)
			CHECK(block[k] == (seed ^ mixed(k / 64)));
		free(block);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	watch(60);
	CHECK(argc > 1);
	if (strcmp(argv[1], "calls") == 0)
		calls();
	if (strcmp(argv[1], "deep") == 0)
		deep(argv[2]);
#ifdef EARLY
	extern char *early[64];
	if (strcmp(argv[1], "early") == 0)
		for (int i = 0; i < 64; i++) {
			CHECK(early[i][69999] == i + 1);
			early[i] = i % 2 ? realloc(early[i], 140000) : early[i];
			CHECK(early[i][0] == i + 1);
			free(early[i]);
		}
	/* Whoever believes that the program has ended needs a moment. */
	usleep(300000);
#endif
	if (strcmp(argv[1], "arena") == 0) {
		pthread_t thread;
		least = atol(argv[2]) * MIB;
		int before = mappings();
		CHECK(pthread_create(&thread, NULL, fills, (void *)1) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(mappings() < before + 200);
	}
	if (strcmp(argv[1], "heap") == 0) {
		least = atol(argv[2]) * MIB;
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, fills, (void *)1) == 0);
		fills((void *)(1ul << 32));
		CHECK(pthread_join(thread, NULL) == 0);
	}
	if (strcmp(argv[1], "breaks") == 0)
		breaks();
	if (strcmp(argv[1], "grows") == 0) {
		pthread_t threads[3];
		CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
		for (size_t i = 0; i < 3; i++)
			CHECK(pthread_create(&threads[i], NULL, grows, (void *)(i + 1)) == 0);
		for (size_t i = 0; i < 3; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
	}
	if (strcmp(argv[1], "one") == 0)
		fills_one(atol(argv[2]) * MIB);
	if (strcmp(argv[1], "locked") == 0)
		locks(atol(argv[2]) * MIB, argv[3]);
	puts("keeps right");
	return 0;
}
