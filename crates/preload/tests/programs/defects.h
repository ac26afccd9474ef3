/* What the programs that reproduce defects share: patterned memory, and a watch that ends a program
   which hangs. Each program prints "... right" as its last line, and passes without deckle too. */
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define WORDS 50

static inline unsigned char *map(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes, RW, ANON, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

/* A system call by an instruction of the program's own, which nobody hears. */
static inline long by_instruction(long number, const void *a, long b, long c, long d, long e)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = 0;
	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10),
			 "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

/* Whether faults on a range are delivered (VmFlags of smaps). */
static inline int is_managed(uintptr_t at)
{
	char line[600];
	unsigned long from, to;
	int here = 0, managed = 0;
	FILE *f = fopen("/proc/self/smaps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= at && at < to;
		else if (here && !strncmp(line, "VmFlags:", 8))
			managed = strstr(line, " um") != NULL;
	}
	fclose(f);
	return managed;
}

static inline uint64_t mixed(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Word `w` of page `page` of the pattern `seed`: never zero. */
static inline uint64_t word(uint64_t seed, size_t page, size_t w)
{
	return mixed((seed << 48) + page * 512 + w + 1) | 1;
}

/* Page `page` of `p` gets its part of the pattern: enough of it that it is neither zero nor easily
   compressed, little enough that three times a limit of it fit into the limit when compressed. */
static inline void fill_page(unsigned char *p, uint64_t seed, size_t page)
{
	uint64_t *at = (uint64_t *)(p + page * PAGE);
	for (size_t w = 0; w < WORDS; w++)
		at[w] = word(seed, page, w);
}

static inline int right_page(const unsigned char *p, uint64_t seed, size_t page)
{
	const uint64_t *at = (const uint64_t *)(p + page * PAGE);
	for (size_t w = 0; w < WORDS; w++)
		if (at[w] != word(seed, page, w))
			return 0;
	return at[WORDS] == 0 && at[511] == 0;
}

static inline void fill(unsigned char *p, uint64_t seed, size_t bytes)
{
	for (size_t i = 0; i < bytes / PAGE; i++)
		fill_page(p, seed, i);
}

static inline int right(const unsigned char *p, uint64_t seed, size_t bytes)
{
	for (size_t i = 0; i < bytes / PAGE; i++)
		if (!right_page(p, seed, i))
			return 0;
	return 1;
}

static inline int zero(const unsigned char *p, size_t bytes)
{
	const uint64_t *at = (const uint64_t *)p;
	for (size_t i = 0; i < bytes / 8; i++)
		if (at[i])
			return 0;
	return 1;
}

/* Away with these pages, as far as somebody answers that request; without swap nobody does. */
static inline void evict(void *p, size_t bytes)
{
	CHECK(madvise(p, bytes, MADV_PAGEOUT) == 0);
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void pause_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

static inline void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0) {}
}

/* What the watch looks at: counted up by whoever gets on. */
struct watched {
	long steps;
	int seconds;
	pid_t pid;
};
static struct watched here, *watched = &here;

static inline void step(void)
{
	__atomic_fetch_add(&watched->steps, 1, __ATOMIC_RELAXED);
}

/* Kills the children of the program, which may hang, too, and then it. Allocates nothing: the
   allocator may be what hangs. */
static void end_all(pid_t pid)
{
	static char entries[16384], path[80], list[4096];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	int tasks = open(path, O_RDONLY | O_DIRECTORY);
	long got = syscall(SYS_getdents64, tasks, entries, sizeof entries);
	for (long at = 0; at < got; at += *(unsigned short *)(entries + at + 16)) {
		if (atoi(entries + at + 19) == 0)
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, entries + at + 19);
		int f = open(path, O_RDONLY);
		ssize_t n = f < 0 ? 0 : read(f, list, sizeof list - 1);
		close(f);
		list[n > 0 ? n : 0] = 0;
		for (char *p = list; *p; p += strcspn(p, " "), p += *p == ' ')
			if (atoi(p) != getpid())
				kill(atoi(p), SIGKILL);
	}
	kill(pid, SIGKILL);
}

static void watch_now(void)
{
	long last = -1;
	for (double since = now(); ; pause_ms(50)) {
		long is = __atomic_load_n(&watched->steps, __ATOMIC_RELAXED);
		if (is != last)
			since = now();
		last = is;
		if (now() - since > watched->seconds)
			break;
	}
	char text[80];
	snprintf(text, sizeof text, "HANG: nothing for %d s after step %ld\n", watched->seconds, last);
	say(text);
	end_all(watched->pid);
	_exit(3);
}

static void *watch_thread(void *unused)
{
	watch_now();
	return unused;
}

/* Kills the program when it has made no step for so long. */
static inline void watch(int seconds)
{
	pthread_t t;
	here.seconds = seconds;
	here.pid = getpid();
	CHECK(pthread_create(&t, NULL, watch_thread, NULL) == 0);
}

/* The same by a process, for a program that must have one thread. To be called first. */
static inline void watch_from_outside(int seconds)
{
	watched = mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(watched != MAP_FAILED);
	watched->seconds = seconds;
	watched->pid = getpid();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != watched->pid)
			_exit(0);
		watch_now();
	}
}

/* Waits until a thread is no more, for the kernel too. */
static inline void await_end_of(pid_t tid)
{
	for (int i = 0; syscall(SYS_tgkill, getpid(), tid, 0) == 0; i++) {
		CHECK(i < 5000);
		pause_ms(1);
	}
}

/* Whether a child has ended well; says what it did otherwise. */
static inline int well(pid_t pid, const char *what)
{
	int status = 0;
	while (waitpid(pid, &status, 0) != pid)
		CHECK(errno == EINTR);
	if (status == 0)
		return 1;
	char text[100];
	snprintf(text, sizeof text, "%s: status %#x\n", what, (unsigned)status);
	say(text);
	return 0;
}
