/* Threads that take and give back one of the locks that a fork, too, takes or meets. */
#include <dlfcn.h>
#include <pwd.h>

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int busy_over;

static void library_prepare(void) { pthread_mutex_lock(&library_lock); }
static void library_after(void) { pthread_mutex_unlock(&library_lock); }

static int wants_library_lock(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "atfork") == 0)
			return 1;
	return 0;
}

/* Before the constructor of any library, as a library does it that is initialised first: its
   handler is the last to run before the fork. */
static void library_start(int argc, char **argv, char **environment)
{
	(void)environment;
	if (wants_library_lock(argc, argv))
		pthread_atfork(library_prepare, library_after, library_after);
}
__attribute__((section(".preinit_array"), used))
static void (*const library_starts)(int, char **, char **) = library_start;

static void once_stdio(unsigned char *own)
{
	char line[200];
	(void)own;
	FILE *f = fopen("/etc/passwd", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {}
	fclose(f);
	f = fopen("/dev/null", "w");
	CHECK(f && fputs("text", f) >= 0);
	fflush(NULL);
	fclose(f);
}

static void once_nss(unsigned char *own)
{
	char text[2000];
	struct passwd entry, *found = NULL;
	(void)own;
	CHECK(getpwnam_r("root", &entry, text, sizeof text, &found) == 0 && found);
	CHECK(getpwnam_r("nobody-of-this-name", &entry, text, sizeof text, &found) == 0 && !found);
}

static void once_dlopen(unsigned char *own)
{
	(void)own;
	void *l = dlopen("libm.so.6", RTLD_NOW);
	CHECK(l && dlsym(l, "cos"));
	dlclose(l);
}

static void once_malloc(unsigned char *own)
{
	void *p[20];
	(void)own;
	for (size_t i = 0; i < 20; i++) {
		p[i] = malloc(16ul << (i % 15));
		CHECK(p[i]);
		memset(p[i], (int)i, 16ul << (i % 15));
	}
	for (size_t i = 0; i < 20; i++)
		free(p[i]);
}

static void once_atfork(unsigned char *own)
{
	pthread_mutex_lock(&library_lock);
	for (size_t i = 0; i < 16; i++)
		own[i * PAGE]++;
	pthread_mutex_unlock(&library_lock);
}

static const struct busy {
	const char *name;
	void (*once)(unsigned char *);
} BUSY[] = {
	{"stdio", once_stdio}, {"nss", once_nss}, {"dlopen", once_dlopen}, {"malloc", once_malloc},
	{"atfork", once_atfork},
};

static void *busy_thread(void *p)
{
	const struct busy *b = p;
	unsigned char *own = map(16 * PAGE);
	while (!busy_over)
		b->once(own);
	return NULL;
}

static void busy_start(const char *name, int threads, pthread_t *t)
{
	const struct busy *b = NULL;
	for (size_t i = 0; i < sizeof BUSY / sizeof BUSY[0]; i++)
		if (strcmp(BUSY[i].name, name) == 0)
			b = &BUSY[i];
	CHECK(b);
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&t[i], NULL, busy_thread, (void *)b) == 0);
}

static void busy_end(int threads, pthread_t *t)
{
	busy_over = 1;
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}
