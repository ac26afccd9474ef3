/* system and popen after the program has emptied its environment: what they start is managed.
   Prints "shells right". */
#include "check.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static volatile sig_atomic_t caught;
static void on(int signal) { caught += signal == SIGINT; }

int main(void)
{
	static const char *managed = "case $LD_PRELOAD:$DECKLE_GROUP in *libdeckle.so*:?*) exit 7;; esac; exit 8";
	for (int round = 0; round < 2; round++) {
		int status = system(managed);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
		FILE *f = popen(managed, "r");
		CHECK(f && (status = pclose(f), WIFEXITED(status) && WEXITSTATUS(status) == 7));
		CHECK(clearenv() == 0);
	}
	CHECK(system(NULL) == 1);
	char line[100];
	FILE *r = popen("echo one; cat", "r"), *w = popen("read x; test \"$x\" = two && exit 3", "we");
	CHECK(r && w && fputs("two\n", w) >= 0);
	int status = pclose(w);
	CHECK(WEXITSTATUS(status) == 3);
	CHECK(fgets(line, sizeof line, r) && strcmp(line, "one\n") == 0);
	status = pclose(r);
	CHECK(status == 0);
	errno = 0;
	CHECK(popen("true", "rw") == NULL && errno == EINVAL);
	/* The parent of a command that is interrupted goes on; after it signals are as before. */
	signal(SIGINT, on);
	status = system("kill -INT $PPID; kill -INT $$; exit 5");
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && caught == 0);
	raise(SIGINT);
	CHECK(caught == 1);
	sigset_t mask;
	CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && !sigismember(&mask, SIGCHLD));
	signal(SIGINT, SIG_IGN);
	status = system("kill -INT $$; exit 5");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
	status = system("exit 300");
	CHECK(WEXITSTATUS(status) == 44);
	puts("shells right");
	return 0;
}
