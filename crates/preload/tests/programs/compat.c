/* Calls on memory in its states, each in a process of its own, and what can be seen of it: one line
   for each, of fields with tabs between. `tests/compat.rs` runs it natively and under `deckle run`.
   Arguments: the beginning of the names that are wanted; which part of them, of how many. */
#include "compat/area.h"
#include "compat/places.h"
#include "compat/rights.h"
#include "compat/advice.h"
#include "compat/access.h"

/* A case that takes longer hangs. */
#define SECONDS 20

static void carry_out(struct run *r, const struct call *call)
{
	/* More than a small process needs, so that what follows is managed where anything is. */
	size_t much = 4 * MIB;
	void *p = mmap(NULL, much, RW, ANON, -1, 0);
	CHECK(p != MAP_FAILED);
	memset(p, 1, much);
	CHECK(munmap(p, much) == 0);
	prepare(r);
	struct holder h = {0};
	if (r->state == FORKED)
		h = held(r);
	call->make(r);
	if (r->nr_views == 0 && r->p)
		view(r, "", r->p, r->n);
	for (size_t i = 0; i < r->nr_views; i++) {
		ADD(r->proc, "%s%s%s", i ? "; " : "", r->views[i].name, *r->views[i].name ? ": " : "");
		smaps_of(r->proc, sizeof r->proc, r->views[i]);
		presence_of(r->proc, sizeof r->proc, r->views[i]);
	}
	for (size_t i = 0; i < r->nr_views; i++)
		bytes_of(r->bytes, sizeof r->bytes, r->views[i]);
	if (h.pid)
		release(r, h);
	_exit(0);
}

/* How a case has ended, where it has not ended well. */
static void await(struct run *r, pid_t pid)
{
	struct timespec step = {SECONDS, 0};
	sigset_t chld;
	int status;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	pid_t done = waitpid(pid, &status, WNOHANG);
	while (done == 0) {
		int late = sigtimedwait(&chld, NULL, &step) < 0 && errno == EAGAIN;
		done = waitpid(pid, &status, WNOHANG);
		if (late && done == 0) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			told(r, "hangs");
			return;
		}
	}
	if (WIFSIGNALED(status)) {
		told(r, "killed by SIG");
		ADD(r->result, "%s", sigabbrev_np(WTERMSIG(status)));
	} else if (status) {
		told(r, "FAILED");
	}
}

int main(int argc, char **argv)
{
	sigset_t chld;
	size_t part = argc > 3 ? (size_t)atoi(argv[2]) : 0, parts = argc > 3 ? (size_t)atoi(argv[3]) : 1;
	struct run *r = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(r != MAP_FAILED && sizeof *r <= 2 * PAGE);
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	CHECK(sigprocmask(SIG_BLOCK, &chld, NULL) == 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < nr_calls; i++) {
		const struct call *call = &calls[i];
		if (i % parts != part || (argc > 1 && strncmp(call->name, argv[1], strlen(argv[1])) != 0))
			continue;
		for (enum state s = NONE; s < STATES; s++) {
			if (!(call->states & IN(s)))
				continue;
			memset(r, 0, sizeof *r);
			r->state = s;
			r->arg = call->arg;
			fflush(stdout);
			pid_t pid = fork();
			CHECK(pid >= 0);
			if (pid == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				sigprocmask(SIG_UNBLOCK, &chld, NULL);
				carry_out(r, call);
			}
			await(r, pid);
			printf("%s\t%s\t%s\t%s\t%s\t%s\n", call->name, STATE_NAMES[s], *r->result ? r->result : "-", r->bytes, r->other, r->proc);
		}
	}
	return 0;
}
