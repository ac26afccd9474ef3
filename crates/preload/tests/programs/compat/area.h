/* What the cases share: the memory that a call is made on, in its states, and what can be seen of
   it afterwards. Everything is told in words that are the same in every run. */
#include "../check.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
/* Where the memory lies, and where some calls put it: far from everything else. */
#define HERE ((unsigned char *)(5ul << 42))
#define THERE (HERE + 64 * MIB)
#define SMALL_PAGES 16
#define HUGE_PAGES 512

enum state { NONE, FRESH, WRITTEN, EVICTED, ZEROS, HUGE, FORKED, LOCKED, STATES };
static const char *const STATE_NAMES[] = {
	"-", "fresh", "written", "evicted", "zeros", "huge", "forked", "locked",
};

/* A part of the memory that is looked at when the call is done. */
struct view {
	const char *name;
	unsigned char *at;
	size_t pages;
	/* Which page of the memory its first one was. */
	size_t first;
};

/* One case, in a page that its process shares with the one that prints. */
struct run {
	enum state state;
	int arg;
	unsigned char *p;
	size_t n;
	struct view views[4];
	size_t nr_views;
	char result[1000], bytes[600], other[400], proc[600];
};

__attribute__((format(printf, 3, 4)))
static void add(char *to, size_t room, const char *format, ...)
{
	size_t used = strlen(to);
	va_list list;
	va_start(list, format);
	vsnprintf(to + used, room - used, format, list);
	va_end(list);
}
#define ADD(field, ...) add(field, sizeof field, __VA_ARGS__)

static void view(struct run *r, const char *name, unsigned char *at, size_t pages)
{
	r->views[r->nr_views++] = (struct view){name, at, pages, 0};
}

/* What a call has answered: 0 or a number, or the name of the error. */
static void said(struct run *r, const char *call, long value)
{
	int error = errno;
	ADD(r->result, "%s%s%s", *r->result ? ", " : "", call, *call ? " " : "");
	if (value == -1)
		ADD(r->result, "%s", strerrorname_np(error) ? strerrorname_np(error) : "unknown error");
	else
		ADD(r->result, "%ld", value);
}

/* The same for an address. */
static void placed(struct run *r, const char *call, void *value)
{
	unsigned char *at = value;
	if (at == MAP_FAILED) {
		said(r, call, -1);
		return;
	}
	ADD(r->result, "%s%s%s", *r->result ? ", " : "", call, *call ? " " : "");
	if (at >= HERE && at < THERE + 64 * MIB) {
		unsigned char *base = at < THERE ? HERE : THERE;
		ADD(r->result, "%s", at < THERE ? "here" : "there");
		if (at != base)
			ADD(r->result, "+%zu", (size_t)(at - base) / PAGE);
	} else {
		ADD(r->result, "%s", (uintptr_t)at % PAGE ? "askew" : "elsewhere");
	}
}

static int told(struct run *r, const char *word)
{
	ADD(r->result, "%s%s", *r->result ? ", " : "", word);
	return 0;
}

/* The pattern: a word in each cache line, none zero, different in every page. */
static uint64_t word(size_t page, size_t line)
{
	uint64_t x = (page << 8 | line) + 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return (x ^ x >> 27) | 1;
}

static void fill(unsigned char *p, size_t first, size_t pages)
{
	for (size_t i = first; i < first + pages; i++)
		for (size_t line = 0; line < 64; line++)
			((uint64_t *)(p + i * PAGE))[line * 8] = word(i, line);
}

static sigjmp_buf back;
static volatile int refused_by, refused_code;

static void refused(int signal, siginfo_t *info, void *context)
{
	(void)context;
	refused_by = signal;
	refused_code = info->si_code;
	siglongjmp(back, 1);
}

/* Faults are counted from here on, not deadly. */
static void catch_faults(int on)
{
	struct sigaction action = {.sa_sigaction = refused, .sa_flags = SA_SIGINFO | SA_NODEFER};
	if (!on)
		action = (struct sigaction){.sa_handler = SIG_DFL};
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
}

static const char *why_refused(void)
{
	if (refused_by == SIGBUS)
		return "SIGBUS";
	return refused_code == SEGV_MAPERR ? "unmapped" : refused_code == SEGV_ACCERR ? "refused" : "SIGSEGV";
}

/* What a page has: in a word. What is neither of ours nor zero is summed up. */
static const char *content(unsigned char *at, size_t page)
{
	static char other[40];
	if (sigsetjmp(back, 1))
		return why_refused();
	uint64_t *p = (uint64_t *)at, any = 0, sum = 1469598103934665603u;
	int kept = 1;
	for (size_t w = 0; w < 512; w++) {
		uint64_t is = ((volatile uint64_t *)p)[w];
		any |= is;
		sum = (sum ^ is) * 1099511628211u;
		kept &= is == (w % 8 ? 0 : word(page, w / 8));
	}
	snprintf(other, sizeof other, "other:%04x", (unsigned)(sum >> 48));
	return kept ? "kept" : any ? other : "zero";
}

/* Writes a byte and reads it again. */
static const char *writable(unsigned char *at, size_t page)
{
	(void)page;
	volatile unsigned char *p = at + PAGE - 3;
	if (sigsetjmp(back, 1))
		return why_refused();
	unsigned char before = *p;
	*p = (unsigned char)(before + 1);
	if (*p != (unsigned char)(before + 1))
		return "lost";
	*p = before;
	return *p == before ? "yes" : "lost";
}

/* Words for pages, equal ones side by side counted: in sixteenths of the memory, where that is large
   and they are whole, else in pages. */
static void pages_in_words(char *to, size_t room, struct view v, const char *(*look)(unsigned char *, size_t))
{
	static struct {
		char word[60];
		size_t count;
	} runs[SMALL_PAGES * 4];
	size_t nr = 0, unit = v.pages >= HUGE_PAGES / 4 ? HUGE_PAGES / 16 : 1;
	for (size_t i = 0; i < v.pages; i++) {
		const char *is = look(v.at + i * PAGE, v.first + i);
		if (nr && strcmp(runs[nr - 1].word, is) == 0) {
			runs[nr - 1].count++;
			continue;
		}
		CHECK(nr < sizeof runs / sizeof *runs);
		snprintf(runs[nr].word, sizeof runs[nr].word, "%s", is);
		runs[nr++].count = 1;
	}
	int whole = 1;
	for (size_t i = 0; i < nr; i++)
		whole &= runs[i].count % unit == 0;
	for (size_t i = 0; i < nr; i++) {
		size_t count = whole ? runs[i].count / unit : runs[i].count;
		add(to, room, "%s%s %zu%s", i ? " " : "", runs[i].word, count, whole ? "" : "p");
	}
}

/* Both in a word: what a page has, and a hyphen and why not where it cannot be written. */
static const char *content_and_rights(unsigned char *at, size_t page)
{
	static char both[60];
	char has[40];
	snprintf(has, sizeof has, "%s", content(at, page));
	const char *writes = writable(at, page);
	if (strcmp(writes, "yes") == 0 || strcmp(writes, has) == 0)
		snprintf(both, sizeof both, "%s", has);
	else
		snprintf(both, sizeof both, "%s-%s", has, strcmp(writes, "refused") == 0 ? "ro" : writes);
	return both;
}

/* The bytes of a view. */
static void bytes_of(char *to, size_t room, struct view v)
{
	add(to, room, "%s%s%s", *to ? "; " : "", v.name, *v.name ? ": " : "");
	catch_faults(1);
	pages_in_words(to, room, v, content_and_rights);
	catch_faults(0);
}

static const char *share(size_t count, size_t of)
{
	return count == 0 ? "none" : count >= of ? "all" : "some";
}

/* Flags of smaps that say what a mapping is; the others are the same for everyone, or the size of
   the account of addresses. */
static void flags_in_words(char *to, size_t room, const char *line)
{
	static const char *const known[] = {
		"rd", "wr", "ex", "sh", "gd", "lo", "dc", "ht", "wf", "dd", "mg", "hg", "nh", "um", "uw", "sl", "gu",
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		char word[5];
		snprintf(word, sizeof word, " %s", known[i]);
		if (strstr(line, word))
			add(to, room, "%s", word);
	}
}

static char text[1 << 20];

static void read_all(const char *path)
{
	size_t used = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (ssize_t got = 1; got > 0; used += (size_t)got)
		CHECK((got = read(fd, text + used, sizeof text - 1 - used)) >= 0);
	text[used] = 0;
	close(fd);
}

/* What smaps says of a view: how much is resident, huge and locked, and the flags. */
static void smaps_of(char *to, size_t room, struct view v)
{
	size_t rss = 0, huge = 0, locked = 0, swap = 0, mapped = 0, n;
	char flags[400] = "", last[80] = "none";
	int key = 0;
	uintptr_t from = (uintptr_t)v.at, end = from + v.pages * PAGE;
	unsigned long start, stop, here = 0;
	read_all("/proc/self/smaps");
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		if (sscanf(line, "%lx-%lx ", &start, &stop) == 2) {
			here = start < end && stop > from ? (stop < end ? stop : end) - (start > from ? start : from) : 0;
			mapped += here;
		}
		if (!here)
			continue;
		if (sscanf(line, "Rss: %zu", &n) == 1)
			rss += n;
		if (sscanf(line, "AnonHugePages: %zu", &n) == 1)
			huge += n;
		if (sscanf(line, "Locked: %zu", &n) == 1)
			locked += n;
		if (sscanf(line, "Swap: %zu", &n) == 1)
			swap += n;
		if (sscanf(line, "ProtectionKey: %zu", &n) == 1)
			key = n != 0;
		if (strncmp(line, "VmFlags:", 8) == 0) {
			char these[80] = "";
			flags_in_words(these, sizeof these, line);
			if (key)
				add(these, sizeof these, " key");
			if (strcmp(these, last) != 0)
				add(flags, sizeof flags, "%s%s", *flags ? " |" : "", *these ? these : " -");
			strcpy(last, these);
		}
	}
	size_t all = mapped / 1024;
	if (all == 0) {
		add(to, room, "nothing mapped");
		return;
	}
	add(to, room, "rss %s", share(rss, all));
	if (huge)
		add(to, room, ", huge %s", share(huge, all));
	if (locked)
		add(to, room, ", locked %s", share(locked, all));
	if (swap)
		add(to, room, ", swap %s", share(swap, all));
	add(to, room, ", flags%s", flags);
}

/* What mincore and pagemap say of a view, where it is not what smaps says. */
static void presence_of(char *to, size_t room, struct view v)
{
	size_t core = 0, mapped = 0, present = 0, swapped = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	for (size_t i = 0; i < v.pages; i++) {
		unsigned char *at = v.at + i * PAGE, vec = 0;
		uint64_t entry = 0;
		if (mincore(at, PAGE, &vec) == 0) {
			mapped++;
			core += vec & 1;
		}
		if (pread(fd, &entry, 8, (off_t)((uintptr_t)at / PAGE * 8)) != 8)
			entry = 0;
		present += entry >> 63;
		swapped += entry >> 62 & 1;
	}
	close(fd);
	if (mapped)
		add(to, room, ", mincore %s, present %s", share(core, mapped), share(present, mapped));
	if (swapped)
		add(to, room, ", swapped %s", share(swapped, mapped));
}

/* The memory that the case is about. */
static void prepare(struct run *r)
{
	if (r->state == NONE)
		return;
	r->n = r->state == HUGE ? HUGE_PAGES : SMALL_PAGES;
	r->p = mmap(HERE, r->n * PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(r->p == HERE);
	if (r->state == FRESH)
		return;
	if (r->state == HUGE)
		CHECK(madvise(r->p, r->n * PAGE, MADV_HUGEPAGE) == 0);
	if (r->state == ZEROS)
		memset(r->p, 0, r->n * PAGE);
	else
		fill(r->p, 0, r->n);
	if (r->state == EVICTED || r->state == ZEROS)
		CHECK(madvise(r->p, r->n * PAGE, MADV_PAGEOUT) == 0);
	if (r->state == LOCKED)
		CHECK(mlock(r->p, r->n * PAGE) == 0);
}

/* Closes a pipe's end here; the other side sees it. */
struct holder {
	pid_t pid;
	int go;
};

/* A child that holds a copy, and says what it has of it once it may. */
static struct holder held(struct run *r)
{
	int pair[2];
	CHECK(pipe(pair) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		char c;
		close(pair[1]);
		while (read(pair[0], &c, 1) < 0 && errno == EINTR) {}
		bytes_of(r->other, sizeof r->other, (struct view){"", r->p, r->n, 0});
		_exit(0);
	}
	close(pair[0]);
	return (struct holder){pid, pair[1]};
}

static void release(struct run *r, struct holder h)
{
	int status;
	close(h.go);
	while (waitpid(h.pid, &status, 0) != h.pid)
		CHECK(errno == EINTR);
	if (status)
		ADD(r->other, " killed by %d", WTERMSIG(status));
}

/* The cases, in the order in which they are written down. */
struct call {
	const char *name;
	unsigned states;
	int arg;
	void (*make)(struct run *);
};
static struct call calls[1000];
static size_t nr_calls;

static void enlist(const char *name, unsigned states, int arg, void (*make)(struct run *))
{
	CHECK(nr_calls < sizeof calls / sizeof *calls);
	calls[nr_calls++] = (struct call){name, states, arg, make};
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define CASE_(id, name, states) \
	static void JOIN(case_, id)(struct run *); \
	__attribute__((constructor)) static void JOIN(enlist_, id)(void) \
	{ \
		enlist(name, states, 0, JOIN(case_, id)); \
	} \
	static void JOIN(case_, id)(struct run *r)
/* Defines one case: its name begins with the call's. */
#define CASE(name, states) CASE_(__COUNTER__, name, states)

#define IN(state) (1u << (state))
#define ALONE IN(NONE)
#define ALL (IN(FRESH) | IN(WRITTEN) | IN(EVICTED) | IN(ZEROS) | IN(HUGE) | IN(FORKED) | IN(LOCKED))
#define FULL (IN(WRITTEN) | IN(EVICTED) | IN(HUGE))
#define SOME (IN(FRESH) | IN(WRITTEN) | IN(EVICTED))
/* The memory, its length, and pages of it. A quarter of it is the unit of what is done to parts. */
#define P (r->p)
#define L (r->n * PAGE)
#define AT(quarter) (P + (quarter) * (L / 4))
#define Q (L / 4)
