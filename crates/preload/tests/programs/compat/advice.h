/* madvise, of oneself and as of another process. */
#include <sys/pidfd.h>

#define POPULATE_READ 22
#define POPULATE_WRITE 23
#define DONTNEED_LOCKED 24
#define COLLAPSE 25
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define HWPOISON 100
#define SOFT_OFFLINE 101

static const struct {
	const char *name;
	int advice;
} ADVICE[] = {
	{"MADV_NORMAL", MADV_NORMAL},
	{"MADV_RANDOM", MADV_RANDOM},
	{"MADV_SEQUENTIAL", MADV_SEQUENTIAL},
	{"MADV_WILLNEED", MADV_WILLNEED},
	{"MADV_DONTNEED", MADV_DONTNEED},
	{"MADV_DONTNEED_LOCKED", DONTNEED_LOCKED},
	{"MADV_FREE", MADV_FREE},
	{"MADV_REMOVE", MADV_REMOVE},
	{"MADV_DONTFORK", MADV_DONTFORK},
	{"MADV_DOFORK", MADV_DOFORK},
	{"MADV_MERGEABLE", MADV_MERGEABLE},
	{"MADV_UNMERGEABLE", MADV_UNMERGEABLE},
	{"MADV_HUGEPAGE", MADV_HUGEPAGE},
	{"MADV_NOHUGEPAGE", MADV_NOHUGEPAGE},
	{"MADV_COLLAPSE", COLLAPSE},
	{"MADV_DONTDUMP", MADV_DONTDUMP},
	{"MADV_DODUMP", MADV_DODUMP},
	{"MADV_WIPEONFORK", MADV_WIPEONFORK},
	{"MADV_KEEPONFORK", MADV_KEEPONFORK},
	{"MADV_COLD", MADV_COLD},
	{"MADV_PAGEOUT", MADV_PAGEOUT},
	{"MADV_POPULATE_READ", POPULATE_READ},
	{"MADV_POPULATE_WRITE", POPULATE_WRITE},
	{"MADV_GUARD_INSTALL", GUARD_INSTALL},
	{"MADV_GUARD_REMOVE", GUARD_REMOVE},
	{"an advice that is not known", 12345},
	{"an advice below zero", -1},
};

static void advise_whole(struct run *r) { said(r, "", madvise(P, L, r->arg)); }
static void advise_part(struct run *r) { said(r, "", madvise(AT(1), Q, r->arg)); }
static void advise_over_hole(struct run *r)
{
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "madvise", madvise(P, L, r->arg));
}
static void advise_read_only(struct run *r)
{
	said(r, "mprotect", mprotect(P, L, PROT_READ));
	said(r, "madvise", madvise(P, L, r->arg));
}
static void advise_untouchable(struct run *r)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	said(r, "madvise", madvise(P, L, r->arg));
	said(r, "mprotect", mprotect(P, L, RW));
}
static void advise_file_within(struct run *r)
{
	placed(r, "mmap", mmap(AT(1), 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, file(), 0));
	said(r, "madvise", madvise(P, L, r->arg));
}
static void advise_nothing(struct run *r) { said(r, "", madvise(P, 0, r->arg)); }
static void advise_unaligned(struct run *r) { said(r, "", madvise(P + 1, Q, r->arg)); }
static void advise_odd_length(struct run *r) { said(r, "", madvise(P, Q - 9, r->arg)); }
static void advise_nowhere(struct run *r) { said(r, "", madvise(HERE, PAGE, r->arg)); }
static void advise_all_addresses(struct run *r) { said(r, "", madvise(P, SIZE_MAX, r->arg)); }
/* What a child gets of it, and keeps while the parent writes. */
static void advise_and_fork(struct run *r)
{
	said(r, "madvise", madvise(AT(1), Q, r->arg));
	struct holder h = held(r);
	for (size_t i = 0; i < r->n; i++)
		if (i / (r->n / 8) % 2 == 0)
			memset(P + i * PAGE, 0x33, PAGE);
	release(r, h);
}

static const struct {
	const char *name;
	unsigned states;
	void (*make)(struct run *);
} WAYS[] = {
	{"", ALL, advise_whole},
	{" of a part", ALL, advise_part},
	{" over a hole", SOME | IN(HUGE), advise_over_hole},
	{" of what is read-only", SOME | IN(HUGE), advise_read_only},
	{" of what nobody may touch", SOME | IN(HUGE), advise_untouchable},
	{" with a file in the range", SOME, advise_file_within},
	{" of no bytes", IN(WRITTEN), advise_nothing},
	{" not aligned", IN(WRITTEN), advise_unaligned},
	{" of a length that is no whole page", SOME, advise_odd_length},
	{" where nothing is", ALONE, advise_nowhere},
	{" of the largest length", IN(WRITTEN), advise_all_addresses},
	{", and fork", SOME | IN(HUGE) | IN(ZEROS), advise_and_fork},
};

__attribute__((constructor)) static void enlist_advice(void)
{
	static char names[sizeof ADVICE / sizeof *ADVICE * sizeof WAYS / sizeof *WAYS][90];
	size_t n = 0;
	for (size_t i = 0; i < sizeof ADVICE / sizeof *ADVICE; i++)
		for (size_t k = 0; k < sizeof WAYS / sizeof *WAYS; k++) {
			/* The kernel would kill who touches a guard page; so would deckle. */
			if (ADVICE[i].advice == GUARD_INSTALL && WAYS[k].make == advise_and_fork)
				continue;
			snprintf(names[n], sizeof *names, "madvise %s%s", ADVICE[i].name, WAYS[k].name);
			enlist(names[n++], WAYS[k].states, ADVICE[i].advice, WAYS[k].make);
		}
}

CASE("madvise MADV_DONTFORK, MADV_DOFORK, and fork", FULL)
{
	said(r, "", madvise(AT(1), Q, MADV_DONTFORK));
	said(r, "", madvise(AT(1), Q, MADV_DOFORK));
	release(r, held(r));
}
CASE("madvise MADV_WIPEONFORK, MADV_KEEPONFORK, and fork", FULL)
{
	said(r, "", madvise(AT(1), Q, MADV_WIPEONFORK));
	said(r, "", madvise(AT(1), Q, MADV_KEEPONFORK));
	release(r, held(r));
}
CASE("madvise MADV_GUARD_INSTALL, MADV_GUARD_REMOVE", ALL)
{
	said(r, "", madvise(AT(1), Q, GUARD_INSTALL));
	said(r, "", madvise(P, L, GUARD_REMOVE));
}
CASE("madvise MADV_GUARD_INSTALL, and fork", SOME)
{
	said(r, "", madvise(AT(1), Q, GUARD_INSTALL));
	release(r, held(r));
}
CASE("madvise MADV_FREE, and a write", ALL)
{
	said(r, "", madvise(P, L, MADV_FREE));
	if (r->state != LOCKED)
		fill(P, r->n / 4, r->n / 4);
}
CASE("madvise MADV_DONTNEED, and a write", ALL)
{
	said(r, "", madvise(P, L, MADV_DONTNEED));
	if (r->state != LOCKED)
		fill(P, r->n / 4, r->n / 4);
}

/* Who has given up the right to take memory out of use. */
static void without_rights(struct run *r)
{
	CHECK(setresuid(65534, 65534, 65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	said(r, "madvise", madvise(AT(1), PAGE, r->arg));
}
__attribute__((constructor)) static void enlist_poison(void)
{
	enlist("madvise MADV_HWPOISON without the right", ALL, HWPOISON, without_rights);
	enlist("madvise MADV_SOFT_OFFLINE without the right", ALL, SOFT_OFFLINE, without_rights);
}

static int self_fd(void) { return pidfd_open(getpid(), 0); }

static void advise_by_pidfd(struct run *r)
{
	struct iovec parts[2] = {{P, Q}, {AT(2), Q}};
	said(r, "", process_madvise(self_fd(), parts, 2, r->arg, 0));
}
static void advise_by_pidfd_over_hole(struct run *r)
{
	struct iovec parts[3] = {{P, Q}, {AT(1), Q}, {AT(2), Q}};
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "process_madvise", process_madvise(self_fd(), parts, 3, r->arg, 0));
}
__attribute__((constructor)) static void enlist_process_advice(void)
{
	static const struct {
		const char *names[2];
		int advice;
	} list[] = {
		{{"process_madvise MADV_COLD", "process_madvise MADV_COLD over a hole"}, MADV_COLD},
		{{"process_madvise MADV_PAGEOUT", "process_madvise MADV_PAGEOUT over a hole"}, MADV_PAGEOUT},
		{{"process_madvise MADV_WILLNEED", "process_madvise MADV_WILLNEED over a hole"}, MADV_WILLNEED},
		{{"process_madvise MADV_COLLAPSE", "process_madvise MADV_COLLAPSE over a hole"}, COLLAPSE},
		{{"process_madvise MADV_DONTNEED", "process_madvise MADV_DONTNEED over a hole"}, MADV_DONTNEED},
		{{"process_madvise MADV_FREE", "process_madvise MADV_FREE over a hole"}, MADV_FREE},
		{{"process_madvise MADV_GUARD_INSTALL", "process_madvise MADV_GUARD_INSTALL over a hole"}, GUARD_INSTALL},
		{{"process_madvise of an advice that is not known", "process_madvise of an advice that is not known over a hole"}, 12345},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		enlist(list[i].names[0], ALL, list[i].advice, advise_by_pidfd);
		enlist(list[i].names[1], SOME, list[i].advice, advise_by_pidfd_over_hole);
	}
}
CASE("process_madvise of nothing", SOME) { said(r, "", process_madvise(self_fd(), NULL, 0, MADV_COLD, 0)); }
CASE("process_madvise with flags", SOME)
{
	struct iovec part = {P, L};
	said(r, "", process_madvise(self_fd(), &part, 1, MADV_PAGEOUT, 1));
}
CASE("process_madvise by a bad descriptor", SOME)
{
	struct iovec part = {P, L};
	said(r, "", process_madvise(99, &part, 1, MADV_PAGEOUT, 0));
}
CASE("process_madvise by the number that means oneself", SOME)
{
	struct iovec part = {P, L};
	said(r, "", process_madvise(-10001, &part, 1, MADV_PAGEOUT, 0));
}
CASE("process_madvise not aligned", SOME)
{
	struct iovec parts[2] = {{P, Q}, {P + 1, Q}};
	said(r, "", process_madvise(self_fd(), parts, 2, MADV_PAGEOUT, 0));
}
CASE("process_madvise of a list that cannot be read", SOME)
{
	said(r, "", process_madvise(self_fd(), (struct iovec *)8, 1, MADV_PAGEOUT, 0));
}
CASE("process_madvise of too many ranges", SOME)
{
	static struct iovec parts[1025];
	said(r, "", process_madvise(self_fd(), parts, 1025, MADV_PAGEOUT, 0));
}
CASE("posix_madvise POSIX_MADV_DONTNEED", ALL) { said(r, "", posix_madvise(P, L, POSIX_MADV_DONTNEED)); }
CASE("posix_madvise POSIX_MADV_WILLNEED", ALL) { said(r, "", posix_madvise(P, L, POSIX_MADV_WILLNEED)); }
CASE("posix_madvise of an advice that is not known", SOME) { said(r, "", posix_madvise(P, L, 77)); }
