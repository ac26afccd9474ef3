/* The malloc and mmap families by their contracts. Prints "calls right". */
#include "check.h"
#include <malloc.h>
#include <stdint.h>
#include <string.h>

static int is_zero(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return 0;
	return 1;
}

int main(void)
{
	/* Small and large, before and after the library manages anything. */
	for (int round = 0; round < 2; round++) {
		for (size_t align = 16; align <= 1 << 16; align <<= 1) {
			void *p = NULL;
			CHECK(posix_memalign(&p, align, 100) == 0 && (uintptr_t)p % align == 0);
			CHECK(malloc_usable_size(p) >= 100);
			memset(p, 1, 100);
			free(p);
			p = aligned_alloc(align, align * 2);
			CHECK(p && (uintptr_t)p % align == 0);
			free(p);
		}
		CHECK(posix_memalign(&(void *){0}, 3, 8) == EINVAL);
		unsigned char *z = calloc(1000, 1000);
		CHECK(z && is_zero(z, 1000000));
		memset(z, 7, 1000000);
		z = realloc(z, 5000000);
		CHECK(z && z[999999] == 7);
		z = realloc(z, 10);
		CHECK(z && z[9] == 7);
		free(z);
		errno = 0;
		volatile size_t huge = SIZE_MAX / 2 + 5;
		CHECK(malloc(huge) == NULL && errno == ENOMEM);
		errno = 0;
		CHECK(calloc(huge, 4) == NULL && errno == ENOMEM);
		CHECK(reallocarray(NULL, huge, 4) == NULL);
		void *v = valloc(10), *w = pvalloc(10);
		CHECK((uintptr_t)v % 4096 == 0 && malloc_usable_size(w) >= 4096);
		free(v);
		errno = 123;
		free(w);
		CHECK(errno == 123);
	}

	size_t page = 4096, n = 8 << 20;
	unsigned char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED && is_zero(m, n));
	memset(m, 5, n);
	CHECK(madvise(m, 2 << 20, MADV_DONTNEED) == 0 && is_zero(m, 2 << 20) && m[2 << 20] == 5);
	CHECK(madvise(m + 1, page, MADV_DONTNEED) == -1 && errno == EINVAL);
	CHECK(madvise(m, n, MADV_PAGEOUT) == 0 && m[n - 1] == 5);
	CHECK(mprotect(m + (4 << 20), page, PROT_READ) == 0 && m[4 << 20] == 5);
	CHECK(mprotect(m + (4 << 20), page, PROT_READ | PROT_WRITE) == 0);
	m[4 << 20] = 6;
	CHECK(munmap(m + (6 << 20), page) == 0);
	CHECK(mprotect(m, n, PROT_READ) == -1 && errno == ENOMEM);
	CHECK(mprotect(m, n - (2 << 20), PROT_READ | PROT_WRITE) == 0);
	CHECK(munmap(m + 1, page) == -1 && errno == EINVAL);
	CHECK(munmap(m, 0) == -1 && errno == EINVAL);

	/* A file over managed memory, and back. */
	FILE *f = tmpfile();
	CHECK(f && ftruncate(fileno(f), 4 * page) == 0);
	CHECK(pwrite(fileno(f), "file", 4, 0) == 4);
	void *over = mmap(m + (3 << 20), 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fileno(f), 0);
	CHECK(over == m + (3 << 20) && memcmp(over, "file", 4) == 0);
	CHECK(munmap(over, 4 * page) == 0);
	over = mmap(m + (3 << 20), 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(over == m + (3 << 20) && is_zero(over, 4 * page));
	CHECK(m[(3 << 20) - 1] == 5 && m[(3 << 20) + 4 * page] == 5);

	/* P19: moving evicted memory keeps its bytes. */
	unsigned char *a = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < 256; i++)
		memset(a + i * page, (int)i, page);
	CHECK(madvise(a, 1 << 20, MADV_PAGEOUT) == 0);
	unsigned char *b = mremap(a, 1 << 20, 64 << 20, MREMAP_MAYMOVE);
	CHECK(b != MAP_FAILED);
	for (size_t i = 0; i < 256; i++)
		CHECK(b[i * page] == (unsigned char)i && b[i * page + 4095] == (unsigned char)i);
	CHECK(is_zero(b + (1 << 20), 8 << 20));
	CHECK(mremap(b, 64 << 20, 1 << 20, 0) == b && b[5 * page] == 5);
	CHECK(mlock(b, 4 * page) == 0 && munlock(b, 4 * page) == 0);
	puts("calls right");
	return 0;
}
