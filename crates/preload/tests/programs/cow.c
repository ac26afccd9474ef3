/* What a page is when a program forks, times what the sides do then: nobody sees what another
   side wrote after the fork, and each sees its own. Arguments: how resident the memory is, by a
   letter of RESIDENCE; then, if only some are wanted, parts of names of states; "pins" for the
   acts in which pages are pinned. Prints how many cases were right. */
#include "check.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "ring.h"

/* Here it says which case it was, too. */
#undef CHECK
#define CHECK(c) do { if (!(c)) fail(__LINE__, #c); } while (0)
#define HUGE (2 * MIB)
#define ALL 512
#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Pages that are written, spliced and pinned; all are looked at. */
static const int PAGES[] = {0, 1, 15, 255, 256, 511};
enum { FEW = 6 };

static const char *const STATES[] = {
	"base", "huge", "rights", "single", "alone", "half", "moved", "half-forked", "wiped",
	"collapsed", "locked", "locked-part", "sparse", "zero-dropped", "read", "untouched",
	"lazy", "cold", "forked-before", "forked-still",
};
/* As it is; all paged out; a part of it; all, and some pages read back. */
static const char RESIDENCE[] = "rspb";

/* Who does what, one after the other. P is the parent, C its child, G the child's child, S a
   child of before. | forks. Small w writes some pages, W all; r reads; p takes rights and gives
   them back; u unmaps, d drops, f frees lazily, o pages out, k makes huge, m moves; v splices
   pages into a pipe, e looks what is in it; i pins pages, j looks at them through the pin, J
   writes so; F forks, z ends; y reads the child's memory from the parent. After each ? all sides
   look at all their pages. */
static const char *const ACTS[] = {
	"|Pw?", "|Cw?", "|PW?CW?", "|CW?PW?", "|Pw?Cw?Pw?", "|Cr?Cw?Pr?", "|Pr?Pw?Cr?",
	"|Pp?Pw?", "|Cp?Cw?", "|PpCp?Cw?Pw?", "|CF?Gw?Cw?Pw?", "|CFPw?Gw?", "|CFCw?Gz?Cw?Pw?",
	"|CFCz?Gw?Pw?", "|CwCF?Gw?Cw?", "|CuPw?", "|PuCw?", "|Cd?Pw?Cw?", "|Pd?Cw?Pw?",
	"|CdCw?Pw?", "|CfPw?Cw?", "|PfCw?Pw?", "|CfCw?", "|CmCw?Pw?", "|PmPw?Cw?", "|CmPmPw?Cw?",
	"|CvPw?Ce", "|CvCuPw?Ce", "|CvCdPw?Ce", "Pv|Cw?Pe", "Pv|PuCw?Pe", "Pv|Pw?Pe", "PvPp|CwPe?",
	"|CoPw?Cw?", "|PoCw?Pw?", "|PoCoPw?", "|CkCw?Pw?", "|PkPw?Cw?", "|PkCw?", "|PwPk?CwCk?",
	"|CfCwCo?Pw?", "PfPwPo|Cw?Pw?", "|Cz?Pw?", "|CzPo?|Cw?Pw?", "|CwCzPw?|CwPw?", "|PwyCwyPwy", "|Coy?Pw?",
};
static const char *const PINS[] = {
	"Pi|Pw?Pj", "Pi|Cw?Pj", "Pi|CWPWPj?", "Pi|PJ?Cw?Pj", "Pi|Cz?PwPj?", "Pi|CF?GwCwPwPj?",
	"Pi|PpPw?Pj", "Pi|PoPwPj?", "Pi|PkPwPj?", "|PiCw?Pj", "|PiPw?PjCw?", "|CiPw?Cj", "|CiCJ?Pw?",
	"Pi|PJ|PJPj?", "PiPo|PwPj?", "PiPk|PwPj?", "Pi|Cz?PoPwPj?",
};

enum { P, C, G, S, SIDES };
/* What a side has; the parent's reader looks at it, too. */
struct side {
	unsigned char *base;
	uint64_t want[ALL], spliced[ALL], seq;
	unsigned char there[ALL], lazy[ALL], locked[ALL], unsure[ALL];
};
static struct side *sides;
static const char *state = "", *script = "";
static char residence = 0;
static int me, alive[SIDES], command[SIDES][2], answer[SIDES][2], spliced[2];
static pid_t pid[SIDES];
static struct ring ring = {.fd = -1};

static void fail(int line, const char *what)
{
	char text[100];
	int error = errno, n = snprintf(text, sizeof text, "%s, %c, %s: side %c: ", state, residence, script, "PCGS"[me]);
	if (write(1, text, (size_t)n) < 0) {}
	errno = error;
	failed(line, what);
}

static uint64_t tag(int side, int page) { return (uint64_t)(side + 1) << 56 | ++sides[me].seq << 16 | (uint64_t)page; }
static int side_of(uint64_t tag) { return (int)(tag >> 56) - 1; }
static unsigned char *at(int page) { return sides[me].base + (size_t)page * PAGE; }

static void put(unsigned char *p, uint64_t v)
{
	*(volatile uint64_t *)p = v;
	*(volatile uint64_t *)(p + PAGE / 2) = v;
	*(volatile uint64_t *)(p + PAGE - 8) = v;
}

/* What a page holds, if all of it is of one writing. */
static int get(const unsigned char *p, uint64_t *v)
{
	*v = *(const volatile uint64_t *)p;
	return *(const volatile uint64_t *)(p + PAGE / 2) == *v && *(const volatile uint64_t *)(p + PAGE - 8) == *v
		&& *(const volatile uint64_t *)(p + 512) == 0;
}

static int right(const struct side *s, int i, const unsigned char *p)
{
	uint64_t v;
	return get(p, &v) && (v == s->want[i] || (s->lazy[i] && v == 0));
}

static void wrong(int i, const unsigned char *p, const char *where)
{
	char text[200];
	uint64_t v;
	int whole = get(p, &v);
	snprintf(text, sizeof text, "page %d %s: %#lx%s instead of %#lx", i, where, (unsigned long)v, whole ? "" : " (torn)",
		 (unsigned long)sides[me].want[i]);
	fail(__LINE__, text);
}

static void look(void)
{
	for (int i = 0; i < ALL; i++)
		if (sides[me].there[i] && !right(&sides[me], i, at(i)))
			wrong(i, at(i), "has");
}

static void write_page(int i)
{
	struct side *s = &sides[me];
	if (!s->there[i])
		return;
	s->want[i] = tag(me, i);
	s->lazy[i] = 0;
	put(at(i), s->want[i]);
}

/* Whether a mapping ends before page `i`. */
static int edge(int i)
{
	struct side *s = &sides[me];
	return s->there[i] != s->there[i - 1] || s->locked[i] != s->locked[i - 1]
		|| (!strcmp(state, "half-forked") && i == 256) || (!strcmp(state, "wiped") && (i == 16 || i == 32));
}

/* Calls `f` for the pages of each mapping; but for locked ones, if it drops. */
static void runs(void (*f)(unsigned char *, size_t), int from, int to, int drops)
{
	struct side *s = &sides[me];
	for (int i = from, n; i < to; i += n) {
		for (n = 1; i + n < to && !edge(i + n); n++)
			;
		if (s->there[i] && !(drops && s->locked[i]))
			f(at(i), (size_t)n * PAGE);
	}
}

static void page_out(unsigned char *p, size_t n) { CHECK(madvise(p, n, MADV_PAGEOUT) == 0 || errno == EINVAL); }
static void drop(unsigned char *p, size_t n) { CHECK(madvise(p, n, MADV_DONTNEED) == 0); }
static void lazily(unsigned char *p, size_t n) { CHECK(madvise(p, n, MADV_FREE) == 0); }
static void cold(unsigned char *p, size_t n) { CHECK(madvise(p, n, MADV_COLD) == 0); }
static void unmap(unsigned char *p, size_t n) { CHECK(munmap(p, n) == 0); }
static void rights(unsigned char *p, size_t n)
{
	CHECK(mprotect(p, n, PROT_READ) == 0 && mprotect(p, n, PROT_READ | PROT_WRITE) == 0);
}
static unsigned char *to_base;
static void move(unsigned char *p, size_t n)
{
	unsigned char *to = to_base + (p - sides[me].base);
	CHECK(mremap(p, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
}

static unsigned char *room(int prot)
{
	unsigned char *p = mmap(NULL, 2 * HUGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	unsigned char *block = (unsigned char *)(((uintptr_t)p + HUGE - 1) & ~(HUGE - 1));
	if (block > p)
		CHECK(munmap(p, (size_t)(block - p)) == 0);
	CHECK(munmap(block + HUGE, (size_t)(p + HUGE - block)) == 0);
	return block;
}

static void gone(int from, int to)
{
	runs(unmap, from, to, 0);
	memset(sides[me].there + from, 0, (size_t)(to - from));
}

static void dropped(int from, int to)
{
	struct side *s = &sides[me];
	runs(drop, from, to, 1);
	for (int i = from; i < to; i++)
		if (s->locked[i])
			CHECK(madvise(at(i), PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
		else
			s->want[i] = s->lazy[i] = 0;
}

static void freed(void)
{
	runs(lazily, 0, ALL, 1);
	for (int i = 0; i < ALL; i++)
		sides[me].lazy[i] |= !sides[me].locked[i];
}

static void moved(void)
{
	to_base = room(PROT_NONE);
	runs(move, 0, ALL, 0);
	/* What has moved in took the places of the room; the rest goes. */
	for (int i = 0; i < ALL; i++)
		if (!sides[me].there[i])
			unmap(to_base + (size_t)i * PAGE, PAGE);
	sides[me].base = to_base;
}

static void splice_pages(void)
{
	struct side *s = &sides[me];
	CHECK(pipe(spliced) == 0);
	for (int k = 0; k < FEW; k++) {
		struct iovec v = {at(PAGES[k]), PAGE};
		s->spliced[PAGES[k]] = ~0ul;
		if (!s->there[PAGES[k]])
			continue;
		CHECK(vmsplice(spliced[1], &v, 1, 0) == (ssize_t)PAGE);
		s->spliced[PAGES[k]] = s->want[PAGES[k]];
		s->unsure[PAGES[k]] = s->lazy[PAGES[k]];
	}
}

/* What was spliced, or what this side wrote since: never what another did. */
static void look_at_splice(void)
{
	struct side *s = &sides[me];
	static _Alignas(8) unsigned char page[PAGE];
	for (int k = 0; k < FEW; k++) {
		int i = PAGES[k];
		uint64_t v;
		if (s->spliced[i] == ~0ul)
			continue;
		CHECK(read_all(spliced[0], page, PAGE));
		int mine = get(page, &v) && v != 0 && side_of(v) == me;
		if (!mine && !(get(page, &v) && (v == s->spliced[i] || (s->unsure[i] && v == 0))))
			wrong(i, page, "has in the pipe");
	}
	close(spliced[0]);
	close(spliced[1]);
}

static void pin_pages(void)
{
	struct iovec v[FEW];
	for (int k = 0; k < FEW; k++) {
		int there = sides[me].there[PAGES[k]];
		v[k] = (struct iovec){there ? at(PAGES[k]) : NULL, there ? PAGE : 0};
	}
	CHECK(ring_open(&ring) == 0);
	CHECK(ring_register(&ring, v, FEW) == 0);
}

/* A pinned page stays the one that its owner writes. */
static void look_through_pin(int writes)
{
	static _Alignas(8) unsigned char page[PAGE];
	int to[2];
	CHECK(pipe(to) == 0);
	for (int k = 0; k < FEW; k++) {
		int i = PAGES[k];
		if (!sides[me].there[i])
			continue;
		if (writes) {
			memset(page, 0, PAGE);
			put(page, sides[me].want[i] = tag(me, i));
			sides[me].lazy[i] = 0;
			CHECK(write(to[1], page, PAGE) == (ssize_t)PAGE);
			CHECK(ring_fixed(&ring, IORING_OP_READ_FIXED, to[0], at(i), PAGE, k) == (int)PAGE);
			continue;
		}
		CHECK(ring_fixed(&ring, IORING_OP_WRITE_FIXED, to[1], at(i), PAGE, k) == (int)PAGE);
		CHECK(read_all(to[0], page, PAGE));
		if (!right(&sides[me], i, page))
			wrong(i, page, "has by its pin");
	}
	close(to[0]);
	close(to[1]);
}

/* The child's memory, by the parent's eyes. */
static void read_child(void)
{
	static _Alignas(8) unsigned char page[PAGE];
	for (int k = 0; k < FEW; k++) {
		int i = PAGES[k];
		struct iovec to = {page, PAGE}, from = {sides[C].base + (size_t)i * PAGE, PAGE};
		if (!sides[C].there[i])
			continue;
		CHECK(process_vm_readv(pid[C], &to, 1, &from, 1, 0) == (ssize_t)PAGE);
		if (!right(&sides[C], i, page))
			wrong(i, page, "of the child is");
	}
}

static void serve(int side);

static void spawn(int side)
{
	/* The pipes of a child's child are made here, too: all go through the parent. */
	for (int k = side; me == P && (k == side || (k == G && side == C)); k++)
		CHECK(pipe(command[k]) == 0 && pipe(answer[k]) == 0);
	sides[side] = sides[me];
	sides[side].seq = 0;
	memset(sides[side].locked, 0, ALL);
	if (!strcmp(state, "half-forked"))
		memset(sides[side].there + 256, 0, 256);
	if (!strcmp(state, "wiped") && me == P)
		memset(sides[side].want + 16, 0, 16 * sizeof *sides->want);
	pid[side] = fork();
	CHECK(pid[side] >= 0);
	if (pid[side] == 0)
		serve(side);
	/* The end of a side must be seen by who waits for its answer. */
	for (int k = side; k == side || (k == G && side == C); k++) {
		close(command[k][0]);
		close(answer[k][1]);
	}
	alive[side] = 1;
}

static void act(char op)
{
	switch (op) {
	case 'w': for (int k = 0; k < FEW; k++) write_page(PAGES[k]); return;
	case 'W': for (int i = 0; i < ALL; i++) write_page(i); return;
	case 'r': case '?': look(); return;
	case 'p': runs(rights, 0, ALL, 0); return;
	case 'u': gone(0, ALL); return;
	case 'd': dropped(0, ALL); return;
	case 'f': freed(); return;
	case 'o': runs(page_out, 0, ALL, 0); return;
	case 'k': madvise(at(0), HUGE, MADV_COLLAPSE); return;
	case 'm': moved(); return;
	case 'v': splice_pages(); return;
	case 'e': look_at_splice(); return;
	case 'i': pin_pages(); return;
	case 'j': look_through_pin(0); return;
	case 'J': look_through_pin(1); return;
	case 'y': read_child(); return;
	case 'F': spawn(G); return;
	default: fail(op, "no such act");
	}
}

static _Noreturn void serve_on(int from, int to)
{
	char op;
	while (read(from, &op, 1) == 1 && op != 'z') {
		act(op);
		CHECK(write(to, "k", 1) == 1);
	}
	_exit(0);
}

static void serve(int side)
{
	int parent = me;
	me = side;
	close(command[side][1]);
	close(answer[side][0]);
	if (parent != P)
		close(answer[parent][1]);
	/* The ring is the parent's: only its descriptor is closed here. */
	if (ring.fd >= 0)
		close(ring.fd);
	ring.fd = -1;
	serve_on(command[side][0], answer[side][1]);
}

static void hang_up(int side)
{
	close(command[side][1]);
	close(answer[side][0]);
	command[side][1] = answer[side][0] = -1;
}

static void tell(int side, char op)
{
	char ok = 0;
	CHECK(write(command[side][1], &op, 1) == 1);
	if (op == 'F')
		alive[G] = 1;
	if (op != 'z') {
		if (read(answer[side][0], &ok, 1) != 1 || ok != 'k')
			fail(op, "a side has ended");
	} else {
		alive[side] = 0;
		hang_up(side);
		int status = 0;
		if (side != G)
			CHECK(waitpid(pid[side], &status, 0) == pid[side] && status == 0);
	}
}

#include "cow_states.h"

static void run(void)
{
	static const char *const WHO = "PCGS";
	memset(alive, 0, sizeof alive);
	set_up();
	for (const char *s = script; *s; s++) {
		if (*s == '|') {
			spawn(C);
		} else if (*s == '?') {
			for (int side = P; side < SIDES; side++)
				if (side == P)
					look();
				else if (alive[side])
					tell(side, '?');
		} else if (*s == 'y') {
			read_child();
		} else {
			int side = (int)(strchr(WHO, *s++) - WHO);
			if (side == P)
				act(*s);
			else
				tell(side, *s);
		}
	}
	for (int side = SIDES - 1; side > P; side--)
		if (alive[side])
			tell(side, 'z');
	/* Those of a child's child that never was. */
	if (command[G][1] >= 0)
		hang_up(G);
	ring_leave(&ring);
	look();
	gone(0, ALL);
}

int main(int argc, char **argv)
{
	int pins = 0, named = 0, cases = 0;
	CHECK(argc > 1 && strchr(RESIDENCE, argv[1][0]));
	residence = argv[1][0];
	for (int a = 2; a < argc; a++)
		strcmp(argv[a], "pins") ? named++ : pins++;
	sides = mmap(NULL, SIDES * sizeof *sides, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(sides != MAP_FAILED);
	if (pins && ring_open(&ring) != 0) {
		puts("no io_uring");
		return 0;
	}
	ring_leave(&ring);
	memset(command, -1, sizeof command);
	const char *const *acts = pins ? PINS : ACTS;
	size_t n = pins ? sizeof PINS / sizeof *PINS : sizeof ACTS / sizeof *ACTS;
	for (size_t s = 0; s < sizeof STATES / sizeof *STATES; s++) {
		int wanted = named == 0;
		for (int a = 2; a < argc; a++)
			wanted |= strstr(STATES[s], argv[a]) != NULL;
		for (size_t k = 0; wanted && k < n; k++, cases++) {
			state = STATES[s];
			script = acts[k];
			run();
		}
	}
	printf("%d cases right\n", cases);
	return 0;
}
