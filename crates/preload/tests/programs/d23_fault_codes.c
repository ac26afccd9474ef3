/* What a SIGSEGV says of memory that is no more, and of memory that may not be touched: address
   and code are the kernel's. Prints "d23 right". */
#include "defects.h"
#include <setjmp.h>

static sigjmp_buf back;
static volatile int code;
static void *volatile address;

static void handler(int signal, siginfo_t *info, void *context)
{
	(void)context;
	(void)signal;
	code = info->si_code;
	address = info->si_addr;
	siglongjmp(back, 1);
}

/* The code of a fault at `p`; 0 if there is none. */
static int touch(volatile unsigned char *p, int write)
{
	code = 0;
	if (sigsetjmp(back, 1) == 0) {
		if (write)
			*p = 1;
		else
			(void)*p;
	} else {
		CHECK(address == p);
	}
	step();
	return code;
}

static int bad;

static void expect(const char *what, volatile unsigned char *p, int want)
{
	for (int write = 0; write < 2; write++) {
		int got = touch(p, write);
		if (got == want)
			continue;
		printf("%s, %s: code %d instead of %d\n", what, write ? "write" : "read", got, want);
		bad++;
	}
}

static void all(int away)
{
	size_t n = 64 * PAGE;
	for (int kept = 0; kept < 2; kept++) {
		/* Alone, and between memory that stays. */
		unsigned char *p = map(3 * n), *q = p + (kept ? n : 0);
		size_t bytes = kept ? n : 3 * n;
		fill(p, 23, 3 * n);
		if (away)
			evict(p, 3 * n);
		CHECK(munmap(q, bytes) == 0);
		expect("unmapped, first page", q, SEGV_MAPERR);
		expect("unmapped, last page", q + bytes - PAGE, SEGV_MAPERR);
		if (kept) {
			CHECK(right_page(p, 23, 0) && right_page(p, 23, 2 * n / PAGE));
			CHECK(munmap(p, n) == 0 && munmap(p + 2 * n, n) == 0);
			expect("unmapped last", p + 2 * n, SEGV_MAPERR);
		}
	}
	unsigned char *p = map(n);
	fill(p, 23, n);
	if (away)
		evict(p, n);
	CHECK(mremap(p, n, n / 2, 0) == p);
	expect("cut off by mremap", p + n / 2, SEGV_MAPERR);
	unsigned char *q = mremap(p, n / 2, 4096 * n, MREMAP_MAYMOVE);
	CHECK(q != MAP_FAILED && right(q, 23, n / 2));
	if (q != p)
		expect("moved away by mremap", p, SEGV_MAPERR);
	CHECK(mprotect(q, n, PROT_NONE) == 0);
	expect("no rights", q, SEGV_ACCERR);
	CHECK(mprotect(q, n, PROT_READ) == 0);
	CHECK(touch(q, 0) == 0 && touch(q, 1) == SEGV_ACCERR);
	CHECK(munmap(q, 4096 * n) == 0);
	expect("unmapped without rights", q, SEGV_MAPERR);
	expect("unmapped, never touched", q + 2048 * n, SEGV_MAPERR);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
	watch(10);
	all(0);
	all(1);
	unsigned char *p = map(96 * MIB);
	fill(p, 23, 96 * MIB);
	all(1);
	fflush(stdout);
	CHECK(bad == 0 && right(p, 23, 96 * MIB));
	puts("d23 right");
	return 0;
}
