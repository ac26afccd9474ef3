/* prefork SHARED WORKERS OWN HOG [ADJ]: a server with SHARED MiB that do not compress and WORKERS
   that share them and have OWN MiB each; then one more, of the oom_score_adj ADJ, grows to HOG MiB.
   The limit ends it, and no other process. */
#include "defects.h"

static size_t mib(const char *text) { return (size_t)atoi(text) << 20; }

static unsigned char *noise(size_t bytes, uint64_t x)
{
	unsigned char *p = map(bytes);
	for (size_t i = 0; i < bytes; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p + i, &x, 8);
	}
	return p;
}

static uint64_t sum(const unsigned char *p, size_t bytes)
{
	uint64_t all = 0, word;
	for (size_t i = 0; i < bytes; i += 8) {
		memcpy(&word, p + i, 8);
		all = all * 31 + word;
	}
	return all;
}

static void adjust(const char *adj)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "w");
	CHECK(f && fputs(adj, f) >= 0 && fclose(f) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 5);
	size_t shared = mib(argv[1]), own = mib(argv[3]), hog = mib(argv[4]);
	int workers = atoi(argv[2]), go[2], ready[2], status;
	char c;
	unsigned char *p = noise(shared, 7);
	uint64_t right = sum(p, shared);
	CHECK(!pipe(go) && !pipe(ready));
	for (int k = 0; k < workers; k++) {
		pid_t worker = fork();
		CHECK(worker >= 0);
		if (!worker) {
			close(go[1]);
			unsigned char *q = own ? noise(own, 100 + k) : p;
			uint64_t before = own ? sum(q, own) : right;
			CHECK(write(ready[1], "x", 1) == 1);
			CHECK(read(go[0], &c, 1) == 0);
			CHECK(!own || sum(q, own) == before);
			_exit(sum(p, shared) == right ? 7 : 8);
		}
	}
	for (int k = 0; k < workers; k++)
		CHECK(read(ready[0], &c, 1) == 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		close(go[1]);
		if (argc > 5)
			adjust(argv[5]);
		noise(hog, 9);
		_exit(9);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(go[1]);
	for (int k = 0; k < workers; k++)
		CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	CHECK(sum(p, shared) == right);
	puts("prefork right");
	return 0;
}
